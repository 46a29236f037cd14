"""Finding a pipeline by name: an entry point, `module:name`, or `path/to/file.py:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TypeVar

from intermission.errors import IntermissionError, PipelineError
from intermission.model import identity
from intermission.pipeline.graph import Pipeline

T = TypeVar("T")

GROUP = "intermission.pipelines"


def load(ref: str) -> Pipeline:
    """The pipeline a reference names. Runs the module's own code, and nothing else."""
    return load_one(ref)[1]


def load_one(ref: str) -> tuple[str, Pipeline]:
    """The one pipeline that a reference names, after a reference that names it alone."""
    found = load_all(ref)
    if len(found) != 1:
        raise PipelineError(
            f"{ref}: {len(found)} pipelines are defined there.",
            remedy=f"Name one: {', '.join(sorted(at.rpartition(':')[2] for at in found))}.",
        )
    return next(iter(found.items()))


def load_all(ref: str) -> dict[str, Pipeline]:
    """Every pipeline that a reference names, by a reference to each that names it alone.

    A file, or a module with a colon and no name, stands for all that are defined there.
    """
    if not is_reference(ref):
        return {ref: _installed(ref)}
    path, _, attribute = ref.rpartition(":") if ":" in ref else (ref, "", "")
    if path.endswith(".py"):
        module = _import_file(Path(path))
    else:
        module = _import(lambda: importlib.import_module(path), ref)
    found = {name: value for name, value in vars(module).items() if isinstance(value, Pipeline)}
    offer = f"It has: {', '.join(found)}." if found else "Define one: Pipeline(name, [steps])."
    if attribute:
        if not hasattr(module, attribute):
            raise PipelineError(f"{ref}: the module has no {attribute!r}.", remedy=offer)
        found = {attribute: _as_pipeline(getattr(module, attribute), ref)}
    if not found:
        raise PipelineError(f"{ref}: 0 pipelines are defined there.", remedy=offer)
    return {resolve(f"{path}:{name}"): value for name, value in found.items()}


def _installed(name: str) -> Pipeline:
    for entry in entry_points(group=GROUP, name=name):
        return _as_pipeline(_import(entry.load, name), name)
    raise PipelineError(
        f"there is no pipeline {name!r}.",
        remedy=f"Installed: {', '.join(names()) or 'none'}. A pipeline of your own is "
        "path/to/file.py:name.",
    )


def is_reference(text: str) -> bool:
    """Whether this says where code is, instead of naming a pipeline."""
    return ":" in text or text.endswith(".py")


def names() -> list[str]:
    """The pipelines that installed packages offer."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def resolve(ref: str) -> str:
    """The reference as any process of this machine understands it: file paths made absolute."""
    path, colon, attribute = ref.rpartition(":") if ":" in ref else (ref, "", "")
    return f"{Path(path).resolve()}{colon}{attribute}" if path.endswith(".py") else ref


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise PipelineError(
            f"{path} is not a file.", remedy="Give the path of a Python file that has a pipeline."
        )
    name = f"{path.stem}_{identity(str(path))[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PipelineError(f"{path} cannot be imported.", remedy="Its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    loader = spec.loader
    try:
        _import(lambda: loader.exec_module(module), str(path))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(do: Callable[[], T], ref: str) -> T:
    try:
        return do()
    except IntermissionError:
        raise
    except (Exception, SystemExit) as e:
        where = _line_of(e)
        raise PipelineError(
            f"{ref} does not import: {type(e).__name__}: {e}{where}.",
            remedy="Fix the module; `python -c 'import ...'` shows the whole traceback.",
        ) from e


def _line_of(e: BaseException) -> str:
    """Where the user's own code failed; nothing when it failed in finding or compiling it."""
    ours = {__file__, importlib.__file__}
    frames = [f for f in extract_tb(e.__traceback__) if f.filename not in ours]
    if isinstance(e, SyntaxError) or not frames or frames[-1].filename.startswith("<"):
        return ""
    return f" (line {frames[-1].lineno} of {frames[-1].filename})"


def _as_pipeline(value: object, ref: str) -> Pipeline:
    if not isinstance(value, Pipeline):
        raise PipelineError(
            f"{ref} is {type(value).__name__}, not a Pipeline.", remedy="Name the pipeline object."
        )
    return value
