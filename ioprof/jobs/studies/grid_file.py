"""What the file of a study over several settings says."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Final

from ioprof.analysis.grid import QUANTITIES, Axis
from ioprof.errors import CommandError

Settings = dict[str, str | int | float | bool]
"""Options by name, and values of the system by key."""
SIMULATE, RUN = "simulate", "run"
_SUFFIX: Final = ".toml"
_KEYS: Final = {"about", "source", "year", "undated", "kind", "quantity", "job", "dataset", "axes"}


@dataclass(frozen=True)
class GridFile:
    """A study, before anything is made."""

    name: str
    about: str
    source: str
    date: str
    kind: str
    quantity: str
    job: Settings
    dataset: Settings
    axes: tuple[Axis, ...]
    options: Mapping[tuple[str, str], Settings]
    """By axis and value."""

    def places(self) -> list[tuple[str, ...]]:
        """All combinations, the last axis first to change."""
        return list(product(*(axis.values for axis in self.axes)))

    def of(self, place: tuple[str, ...]) -> Settings:
        """The options of a cell."""
        found = dict(self.job)
        for axis, value in zip(self.axes, place, strict=True):
            found |= self.options[axis.name, value]
        return found


def grid_names() -> list[str]:
    """The studies that come with ioprof."""
    return sorted(
        path.name.removesuffix(_SUFFIX)
        for path in files(__package__).iterdir()
        if path.name.endswith(_SUFFIX)
    )


def load_grid(name: str) -> GridFile | None:
    """The study of that name, or in a file NAME.toml. None: it is no study over several settings,
    but perhaps a preset; CommandError for a file that cannot be read.
    """
    if name in grid_names():
        text = files(__package__).joinpath(name + _SUFFIX).read_text()
    elif name.endswith(_SUFFIX):
        try:
            text = Path(name).read_text()
        except OSError as error:
            raise CommandError(f"{name}: cannot be read ({error.strerror})") from None
    else:
        return None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"{name}: is not TOML ({error})") from None
    return parse_grid(Path(name).stem, table) if "axes" in table else None


def parse_grid(name: str, table: Mapping[str, Any]) -> GridFile:
    """The study of a table; CommandError for what it may not have."""
    unknown = sorted(table.keys() - _KEYS)
    if unknown:
        raise CommandError(
            f"{name}: {unknown[0]} is unknown; a study has {', '.join(sorted(_KEYS))}"
        )
    kind, quantity = table.get("kind", RUN), table.get("quantity", "samples_per_s")
    if kind not in (SIMULATE, RUN) or quantity not in QUANTITIES:
        raise CommandError(
            f"{name}: kind = {kind!r}, quantity = {quantity!r}: give kind simulate or run, and"
            f" quantity {', '.join(QUANTITIES)}"
        )
    axes, options = list[Axis](), dict[tuple[str, str], Settings]()
    for each in table["axes"]:
        values = each.get("values") or []
        if not isinstance(each.get("name"), str) or not all("is" in value for value in values):
            raise CommandError(f"{name}: [[axes]] needs a name, and `is` in each of its values")
        labels = tuple(str(value["is"]) for value in values)
        if len({*labels}) < len(labels) or not labels:
            raise CommandError(f"{name}: [[axes]] {each['name']}: give values of different names")
        axes.append(Axis(each["name"], labels))
        for value, label in zip(values, labels, strict=True):
            options[each["name"], label] = {k: v for k, v in value.items() if k != "is"}
    return GridFile(
        name,
        str(table.get("about", "")),
        str(table.get("source", "")),
        str(table.get("year", "")) or str(table.get("undated", "")),
        kind,
        quantity,
        dict(table.get("job", {})),
        dict(table.get("dataset", {})),
        tuple(axes),
        options,
    )
