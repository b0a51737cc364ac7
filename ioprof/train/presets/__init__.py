"""Published trainings as TOML files: where each is from, the settings of the job, and how its
weights change.

A file has `about`, `source` and `year`, or `undated`: why there is no year; a table `[job]` of the
options of `ioprof run` in `ioprof.train.options` (with underscores); a table `[recipe]` of the
fields of `ioprof.train.recipe.Recipe`; and perhaps a table `[study]` with the values of the setting
that the study varied. `ioprof run --preset` takes a name, or the path of a file of the user's own.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.options import declarations
from ioprof.train.options import JobOptions
from ioprof.train.recipe import Recipe

JOB_SETTINGS: Final = {each.name: each.types for each in declarations(JobOptions)}
"""What `[job]` may have, and of which types."""
_VARIED: Final = ("ranks", "dataset_scale")
_NUMBER: Final = (float, int)
_RECIPE_TYPES: Final = {
    "optimizer": (str,),
    "schedule": (str,),
    "epochs": (int,),
    "decay_epochs": (int,),
}


@dataclass(frozen=True)
class Preset:
    """A training that was published."""

    name: str
    about: str
    source: str
    year: int | None
    undated: str
    """Why `year` is None; empty in a file of a user's own that says nothing, and where there is a
    year."""
    job: dict[str, str | int | bool]
    recipe: Recipe
    study: tuple[str, tuple[str, ...]] | None = None
    """The setting of `ioprof run` that the study varied, and its values."""


def preset_names() -> list[str]:
    """The presets that come with ioprof."""
    return sorted(
        path.name.removesuffix(".toml")
        for path in files(__name__).iterdir()
        if path.name.endswith(".toml")
    )


def load_preset(name: str) -> Preset:
    """A preset by its name, or from a file whose name ends in `.toml`; CommandError if there is
    none, or it has what it may not.
    """
    if name.endswith(".toml"):
        try:
            return parse_preset(name, Path(name).read_text())
        except OSError as error:
            raise CommandError(f"--preset {name}: cannot be read ({error.strerror})") from None
    if name not in preset_names():
        raise CommandError(
            f"--preset {name}: unknown; choose one of {', '.join(preset_names())}, or name a file"
            " NAME.toml"
        )
    return parse_preset(name, files(__name__).joinpath(f"{name}.toml").read_text())


def parse_preset(name: str, text: str) -> Preset:
    """The preset in the text of a file; CommandError for what it may not have."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CommandError(f"--preset {name}: is not TOML ({error})") from None
    job, recipe, study = table.pop("job", {}), table.pop("recipe", {}), table.pop("study", None)
    known = {field.name: _RECIPE_TYPES.get(field.name, _NUMBER) for field in fields(Recipe)}
    _check(name, "", table, {"about": (str,), "source": (str,), "year": (int,), "undated": (str,)})
    if "year" in table and "undated" in table:
        raise CommandError(
            f"--preset {name}: give year or undated (why there is no year), not both"
        )
    _check(name, "[job] ", job, JOB_SETTINGS)
    _check(name, "[recipe] ", recipe, known)
    made = Recipe(**recipe)
    made.check()
    varied = None if study is None else _study(name, study)
    about, source, undated = (table.get(key, "") for key in ("about", "source", "undated"))
    return Preset(name, about, source, table.get("year"), undated, job, made, varied)


def _study(name: str, table: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    _check(name, "[study] ", table, dict.fromkeys(_VARIED, (list,)))
    if len(table) != 1 or not all(table.values()):
        raise CommandError(f"--preset {name}: [study] has one list, of {' or '.join(_VARIED)}")
    ((varied, values),) = table.items()
    return varied, tuple(map(str, values))


def _check(
    name: str, where: str, table: dict[str, Any], known: Mapping[str, tuple[type, ...]]
) -> None:
    for key, value in table.items():
        if key not in known:
            raise CommandError(
                f"--preset {name}: {where}{key} is unknown; choose one of {', '.join(known)}"
            )
        if not isinstance(value, known[key]) or (
            isinstance(value, bool) and bool not in known[key]
        ):
            raise CommandError(
                f"--preset {name}: {where}{key} = {value!r} is no {known[key][0].__name__}"
            )
