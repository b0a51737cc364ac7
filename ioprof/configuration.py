"""`ioprof.toml`: defaults for options of the command line.

    store = "/shared/runs"          # for every command with --store

    [record]
    keep = "10m"
    stacks = false

    [report]
    price-per-gpu-hour = 2.5

    [history.trend]
    html = "trend.html"

A name is that of a long option without its dashes. What is given on the command line wins.
"""

import difflib
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError

FILE: Final = "ioprof.toml"
"""In the folder in which a command is typed."""

_EVERYWHERE: Final = ("store",)
"""Options that are the same in all commands that have them."""
Options = Mapping[str, "str | Options"]
"""Of a command: long option without dashes to parameter; of one with verbs: verb to its options."""


def read_defaults(path: Path, commands: Collection[str], known: Options) -> dict[str, Any]:
    """The defaults in the file as parameter to value, by command; empty where there is no file.

    `commands` are all commands; `known` are the options of those that are needed now, and only
    their tables are read.

    Raises CommandError for a file that is no TOML, and for a command or an option that does not
    exist, with the nearest that does.
    """
    try:
        found = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CommandError(f"{path}: cannot be read ({error}); mend it, or remove it") from None
    everywhere = {name: value for name, value in found.items() if not isinstance(value, dict)}
    tables = {name: value for name, value in found.items() if isinstance(value, dict)}
    _check(path, "", tables, commands)
    _check(path, "", everywhere, _EVERYWHERE)
    return {
        name: _of_command(path, name, tables.get(name, {}), everywhere, options)
        for name, options in known.items()
        if isinstance(options, Mapping)
    }


def _of_command(
    path: Path,
    name: str,
    table: Mapping[str, Any],
    everywhere: Mapping[str, Any],
    options: Options,
) -> dict[str, Any]:
    table = {key.replace("_", "-"): value for key, value in table.items()}
    _check(path, f"[{name}] ", table, options)
    defaults: dict[str, Any] = {}
    for option, parameter in options.items():
        if isinstance(parameter, Mapping):
            inner = table.get(option, {})
            if not isinstance(inner, dict):
                raise CommandError(f"{path}: [{name}] {option} is a command: write a table of it")
            defaults[option] = _of_command(path, f"{name}.{option}", inner, everywhere, parameter)
        elif option in table or option in everywhere:
            defaults[parameter] = table.get(option, everywhere.get(option))
    return defaults


def _check(path: Path, where: str, given: Collection[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise CommandError(f"{path}: {where}{name}: no such name; {hint}")
