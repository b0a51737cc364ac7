"""The analysis of a large run, kept in its folder, so that a report does not compute it anew.

It is what `steps.parquet` and `summary.json` say. `analysis.json` says of which files it is, and of which version of the analysis:
it is used as long as all of them are the same, byte for byte. Of spans.parquet that is its length and its end, where the parquet
format has the statistics of all data in the file.
"""

import json
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import polars as pl

from ioprof import run_record, schema, span_parts, trace
from ioprof.errors import RunError
from ioprof.files import write_atomically
from ioprof.run_record import Summary
from ioprof.trace import SPANS, STACKS

ANALYSIS: Final = "analysis.json"
"""Its file in a run folder; small runs have none."""
STEPS: Final = "steps.parquet"
SUMMARY: Final = "summary.json"
_COMPARED: Final = (SPANS, "files.parquet", "counters.parquet", STACKS, "run.json", STEPS, SUMMARY)
_END_BYTES: Final = 1 << 20


def keep_analysis(folder: Path) -> None:
    """Note in the folder of a run that its steps and its summary are those of its other files."""
    if (code := _code()) is not None:
        write_atomically(folder / ANALYSIS, json.dumps({"analysis": code, "files": _digests(folder)}, indent=1) + "\n")


def kept_analysis(folder: Path) -> tuple[pl.DataFrame, Summary] | None:
    """The steps and the summary of a run that were kept; None if there are none, or if any file has changed since."""
    try:
        noted = json.loads((folder / ANALYSIS).read_bytes())
        if _code() is None or noted != {"analysis": _code(), "files": _digests(folder)}:
            return None
        return pl.read_parquet(folder / STEPS), Summary.from_json((folder / SUMMARY).read_bytes())
    except (OSError, ValueError, RecursionError, RunError, pl.exceptions.PolarsError):
        return None


def _digests(folder: Path) -> dict[str, str]:
    return {name: f"{(folder / name).stat().st_size} {_digest(folder / name)}" for name in _COMPARED if (folder / name).exists()}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        if path.name == SPANS:
            file.seek(-min(_END_BYTES, path.stat().st_size), 2)
        return sha256(file.read()).hexdigest()


@cache
def _code() -> str | None:
    """A digest of the source of the analysis; None where that is not in files."""
    try:
        return sha256(b"".join(path.read_bytes() for path in sorted(_sources()))).hexdigest()
    except OSError:
        return None


def _sources() -> Iterator[Path]:
    for module in (schema, span_parts, trace):
        yield Path(module.__file__ or "")
    for package in (__file__, run_record.__file__):
        yield from Path(package or "").parent.glob("*.py")
