"""The formats that a run can be exported to."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from ioprof.format.trace import Trace
from ioprof.interchange.chrome import write_chrome
from ioprof.interchange.exported import Exported
from ioprof.interchange.perfetto import write_perfetto
from ioprof.interchange.speedscope import write_speedscope
from ioprof.interchange.tables import write_table

Waited = Callable[[], pl.DataFrame]
"""Analyses the run: the time of each cause by stack, columns `cause stack seconds`."""


@dataclass(frozen=True)
class Format:
    """How a run is written for another program."""

    ending: str
    """Of the file's name."""
    purpose: str
    """What to do with the file, or what it is."""
    write: Callable[[Trace, Path, str, Waited], Exported]
    """Writes a run to a file; the text is the run as the user named it."""


FORMATS: Final = {
    "perfetto": Format(
        ".pftrace",
        "open it at https://ui.perfetto.dev",
        lambda trace, path, *_: write_perfetto(trace, path),
    ),
    "chrome": Format(
        ".trace.json.gz",
        "open it at https://ui.perfetto.dev or chrome://tracing",
        lambda trace, path, *_: write_chrome(trace, path),
    ),
    "parquet": Format(
        ".spans.parquet", "all spans in one table", lambda trace, path, *_: write_table(trace, path)
    ),
    "speedscope": Format(
        ".speedscope.json",
        "open it at https://www.speedscope.app",
        lambda trace, path, name, waited: write_speedscope(trace, path, name, waited()),
    ),
}
"""By name, as `ioprof export --to` has it."""
