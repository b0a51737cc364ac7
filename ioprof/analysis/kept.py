"""The analysis of a large run, kept in its folder, so that a report does not compute it anew.

It is what `steps.parquet` and `summary.json` say. `analysis.json` says of which run it is, by the
checksum of run.json, which has those of all other files; and of which version of the analysis. It
is used as long as both are the same.
"""

import json
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

import polars as pl

from ioprof.errors import RunError
from ioprof.files import read_regular_file, write_atomically
from ioprof.format import run_record, schema, span_parts, trace
from ioprof.format.run_files import STEPS, SUMMARY, is_whole, read_run
from ioprof.format.run_record import Summary

ANALYSIS: Final = "analysis.json"
"""Its file in a run folder; small runs have none."""


def keep_analysis(folder: Path) -> None:
    """Note in a run folder, whose run.json has all checksums, that its steps and its summary are
    those of its other files.
    """
    if (code := _code()) is not None:
        write_atomically(
            folder / ANALYSIS,
            json.dumps({"analysis": code, "run": read_run(folder).check}, indent=1) + "\n",
        )


def kept_analysis(folder: Path) -> tuple[pl.DataFrame, Summary] | None:
    """The steps and the summary of a run that were kept; None if there are none, or if any file has
    changed since.
    """
    try:
        noted, run = json.loads(read_regular_file(folder / ANALYSIS)), read_run(folder)
        is_of_run = (
            _code() is not None
            and run.check is not None
            and noted == {"analysis": _code(), "run": run.check}
        )
        if (
            not is_of_run
            or run.kept.damaged
            or not all(is_whole(folder, name, run.files) for name in (STEPS, SUMMARY))
        ):
            return None
        return pl.read_parquet(folder / STEPS), Summary.from_json(
            read_regular_file(folder / SUMMARY)
        )
    except (OSError, ValueError, RecursionError, RunError, pl.exceptions.PolarsError):
        return None


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
        yield from Path(package or "").parent.rglob("*.py")
