"""`intermission config`: the settings that hold here."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from intermission.cli import options
from intermission.cli.command import Command

_PASSWORD = re.compile(r"^(\w[\w+.-]*://[^/@:]*:)[^/@]*@")

app = typer.Typer(
    name="config",
    help="Show the settings that hold here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _group() -> None:
    pass


@app.command(cls=Command)
def show(
    origin: Annotated[
        bool, typer.Option("--origin", help="Say where each value came from.")
    ] = False,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Print every setting and its value.

    Flags beat the environment (INTERMISSION_SLOTS), which beats the nearest intermission.toml,
    which beats your own config.toml, which beats the defaults.
    """
    from intermission.cli.formatting import table
    from intermission.cli.jsonout import emit
    from intermission.settings import Settings, load_settings

    resolved = load_settings({})
    values = {
        name: _shown(value) for name, value in resolved.settings.model_dump(mode="json").items()
    }
    if as_json:
        fields = {
            name: {"value": value, "origin": resolved.origin[name]}
            for name, value in values.items()
        }
        emit({"event": "settings", "settings": fields})
        return
    fields = Settings.model_fields
    rows = [
        (name, text, resolved.origin[name] if origin else fields[name].description or "")
        for name, value in values.items()
        for text in _texts(value)
    ]
    print(table(("SETTING", "VALUE", "ORIGIN" if origin else "MEANING"), rows))


def _shown(value: object) -> object:
    """As it is, but for the password in a URL."""
    return _PASSWORD.sub(r"\1**********@", value) if isinstance(value, str) else value


def _texts(value: object) -> list[str]:
    """A row of text; of tables, a row for each, with what it says and without the rest."""
    if not isinstance(value, list) or not any(isinstance(one, dict) for one in value):
        return [_text(value)]
    return [
        " ".join(f"{name}={_text(said)}" for name, said in one.items() if said) for one in value
    ]


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return " ".join(f"{name}={_text(one)}" for name, one in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
