"""Fills in the parts of these pages that the code knows best; run it after changing the code.

A page says `<!-- generated: NAME -->` and `<!-- end -->` around such a part. Everything else is
written by hand and left alone.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel
from typer.main import get_group
from typer.testing import CliRunner

from intermission import Client, errors, model, run, submit
from intermission.cli import app
from intermission.model import CLAIMABLE, FINISHED, HELD, JobState, TaskState
from intermission.settings import PREFIX, Settings
from intermission.settings.parameter_overrides import Override
from intermission.settings.watch_rules import WatchedPlace

DOCS = Path(__file__).parent
HELP_WIDTH = 92

State = TypeVar("State", TaskState, JobState)

_PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def task_diagram() -> str:
    """The transition table as a picture, without the two arrows that nearly every state has."""
    aside = {TaskState.CANCELLED, TaskState.BLOCKED}
    unfinished = set(TaskState) - FINISHED
    if any(TaskState.CANCELLED not in model.TRANSITIONS[state] for state in unfinished):
        raise ValueError("not every unfinished task can be cancelled: the page says so")
    left_out = [(was, TaskState.BLOCKED) for was in TaskState]
    left_out += [(was, TaskState.CANCELLED) for was in unfinished]
    edges = [
        (was, now)
        for was, now in _edges(model.TRANSITIONS)
        if (was, now) not in left_out or was in aside
    ]
    return _mermaid([*edges, (TaskState.DONE, "[*]")], start=TaskState.BLOCKED)


def job_diagram() -> str:
    return _mermaid(list(_edges(model.JOB_TRANSITIONS)), start=JobState.PENDING)


def _edges(table: Mapping[State, frozenset[State]]) -> Iterator[tuple[State, State]]:
    for was, after in table.items():
        yield from ((was, now) for now in type(was) if now in after)


def _mermaid(edges: Iterable[tuple[str, str]], *, start: str) -> str:
    lines = ["stateDiagram-v2", f"    [*] --> {start}"]
    lines += [f"    {was} --> {now}" for was, now in edges]
    return "```mermaid\n" + "\n".join(lines) + "\n```"


def task_transitions() -> str:
    groups = {"claimable": CLAIMABLE, "held": HELD, "finished": FINISHED}
    rows = [
        [
            f"`{was}`",
            ", ".join(name for name, states in groups.items() if was in states),
            _states(after),
        ]
        for was, after in model.TRANSITIONS.items()
    ]
    return _table(["state", "it is", "may become"], rows)


def job_transitions() -> str:
    rows = [[f"`{was}`", _states(after)] for was, after in model.JOB_TRANSITIONS.items()]
    return _table(["state", "may become"], rows)


def _states(states: Iterable[str]) -> str:
    return ", ".join(f"`{state}`" for state in sorted(states))


def settings() -> str:
    rows = [
        [f"`{name}`", f"`{PREFIX}{name.upper()}`", _default(name), f"{field.description}"]
        for name, field in Settings.model_fields.items()
    ]
    return _table(["setting", "variable", "default", "what it is"], rows)


def _default(name: str) -> str:
    field = Settings.model_fields[name]
    if name == "slots":
        return "the number of usable cores"
    if name == "cache_dir":
        return "`~/.cache/intermission`"
    value = field.default
    if value in (None, ()):
        return "none"
    if isinstance(value, tuple):
        shown = (one if isinstance(one, str) else f"{one:g}" for one in value)
        return f"`{','.join(shown)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def watches() -> str:
    return _table_of(WatchedPlace)


def overrides() -> str:
    return _table_of(Override)


def _table_of(model: type[BaseModel]) -> str:
    rows = [
        [f"`{name}`", "needed" if field.is_required() else "", f"{field.description}"]
        for name, field in model.model_fields.items()
    ]
    return _table(["field", "", "what it is"], rows)


def error_tree() -> str:
    """The errors with their exit codes, as `errors.py` defines them."""
    rows = [
        [
            "\u00a0" * 4 * depth + f"`{kind.__name__}`",
            str(kind.exit_code),
            "yes" if kind.retryable else "no",
            (kind.__doc__ or "").splitlines()[0],
        ]
        for depth, kind in _descend(errors.IntermissionError, 0)
    ]
    return _table(["error", "exit code", "another attempt may help", "meaning"], rows)


def _descend(kind: type, depth: int) -> Iterator[tuple[int, type[errors.IntermissionError]]]:
    yield depth, kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _descend(below, depth + 1)


def receipt_fields() -> str:
    return _fields(model.Receipt)


def file_fields() -> str:
    return _fields(model.FileRef)


def _fields(kind: type) -> str:
    hints = typing.get_type_hints(kind)
    return _table(["field", "type"], [[f"`{name}`", _type(hint)] for name, hint in hints.items()])


def _type(hint: object) -> str:
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return {"str": "string", "int": "number"}.get(hint.__name__, hint.__name__)
    if typing.get_origin(hint) is tuple:
        return f"list of `{typing.get_args(hint)[0].__name__}`"
    if types.NoneType in typing.get_args(hint):
        return "string or null"
    return "object of strings"


def commands() -> str:
    """What every command says of itself."""
    return "\n\n".join(_help(name) for name in ["", *_command_names()])


def _command_names() -> Iterator[str]:
    for name, command in get_group(app).commands.items():
        below = getattr(command, "commands", None)
        yield from (f"{name} {one}" for one in below) if below else [name]


def _help(command: str) -> str:
    arguments = [*command.split(), "--help"]
    shown = CliRunner().invoke(app, arguments, prog_name="intermission", terminal_width=HELP_WIDTH)
    if shown.exit_code != 0:
        raise ValueError(f"intermission {command} --help failed: {shown.output}")
    lines = "\n".join(line.rstrip() for line in shown.output.strip().splitlines())
    return f"## intermission {command}".rstrip() + f"\n\n```text\n{lines}\n```"


def python_client() -> str:
    """Signatures and docstrings of what Python programs call."""
    methods = {
        f"Client.{name}": found
        for name, found in vars(Client).items()
        if inspect.isfunction(found) and not name.startswith("_")
    }
    offered = {"run": run, "submit": submit, "Client": Client, **methods}
    return "\n\n".join(_call(name, found) for name, found in offered.items())


def _call(name: str, found: Callable[..., object]) -> str:
    given = inspect.signature(found)
    named = [one for one in given.parameters.values() if one.name != "self"]
    parts = [str(one).replace("'", "") for one in named]
    kinds = [one.kind for one in named]
    if inspect.Parameter.KEYWORD_ONLY in kinds:
        parts.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    arguments = "".join(f"\n    {part}," for part in parts)
    returned = "" if inspect.isclass(found) else f" -> {given.return_annotation}"
    shown = f"{name}({arguments}\n){returned}".replace("Place", "str | os.PathLike[str]")
    return f"## {name}\n\n```text\n{shown}\n```\n\n{inspect.getdoc(found)}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("|" + "|".join(f" {cell} " for cell in line) + "|" for line in lines).replace(
        " --- ", "---"
    )


PARTS: dict[str, Callable[[], str]] = {
    "task-diagram": task_diagram,
    "task-transitions": task_transitions,
    "job-diagram": job_diagram,
    "job-transitions": job_transitions,
    "settings": settings,
    "watches": watches,
    "overrides": overrides,
    "error-tree": error_tree,
    "commands": commands,
    "python-client": python_client,
    "receipt-fields": receipt_fields,
    "file-fields": file_fields,
}


def filled(text: str) -> str:
    """A page with its generated parts made anew."""
    return _PART.sub(lambda found: f"{found[1]}{PARTS[found[2]]()}\n{found[3]}", text)


def pages() -> list[Path]:
    return [path for path in sorted(DOCS.rglob("*.md")) if _PART.search(path.read_text())]


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text()))
