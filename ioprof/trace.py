"""Trace: everything that a run recorded. It loads, saves, merges and selects; every later stage takes this one object."""

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import polars as pl

from ioprof.errors import RunError
from ioprof.schema import COUNTER_COLUMNS, FILE_COLUMNS, KINDS, RUN_SCHEMA, SOURCES, SPAN_COLUMNS

_DTYPES: Final[dict[str, pl.DataType]] = {
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "float64": pl.Float64(),
    "string": pl.String(),
    "category": pl.Categorical(),
    "kind": pl.Enum(KINDS),
    "source": pl.Enum(SOURCES),
}


def table_schema(columns: dict[str, str]) -> dict[str, pl.DataType]:
    """The polars schema of a table described in `ioprof.schema`."""
    return {name: _DTYPES[dtype] for name, dtype in columns.items()}


def empty_table(columns: dict[str, str]) -> pl.DataFrame:
    """A table with those columns and no row."""
    return pl.DataFrame(schema=table_schema(columns))


@dataclass(frozen=True)
class Trace:
    """Spans, files and counters of a run on one clock, and the facts about the run (`run.json`)."""

    run: dict[str, Any]
    """What is in run.json: command, config, device, hosts, versions, clock table, processes, capture, failures, status."""
    spans: pl.DataFrame
    """Columns of `ioprof.schema.SPAN_COLUMNS`; times in nanoseconds since the run's zero; in no particular order."""
    files: pl.DataFrame = field(default_factory=lambda: empty_table(FILE_COLUMNS))
    """Columns of `ioprof.schema.FILE_COLUMNS`."""
    counters: pl.DataFrame = field(default_factory=lambda: empty_table(COUNTER_COLUMNS))
    """Columns of `ioprof.schema.COUNTER_COLUMNS`."""

    @classmethod
    def load(cls, path: Path | str) -> "Trace":
        """The run in the folder `path`; `RunError` says what is wrong with it and what to type."""
        folder = Path(path)
        return cls(
            run=_load_run(folder),
            spans=_load_table(folder / "spans.parquet", SPAN_COLUMNS),
            files=_load_table(folder / "files.parquet", FILE_COLUMNS),
            counters=_load_table(folder / "counters.parquet", COUNTER_COLUMNS),
        )

    def save(self, path: Path | str) -> None:
        """Write the tables, then `run.json`, each by rename: a folder whose `run.json` is there has its tables whole."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        _save_table(self.spans, folder / "spans.parquet")
        _save_table(self.files, folder / "files.parquet")
        _save_table(self.counters, folder / "counters.parquet")
        _replace(folder / "run.json", json.dumps({"schema": RUN_SCHEMA, **self.run}, indent=1).encode() + b"\n")

    @classmethod
    def merge(cls, traces: "list[Trace]") -> "Trace":
        """One trace of several that share a clock zero; facts come from the first, processes and failures from all."""
        first = traces[0]
        run = dict(first.run)
        for key in ("processes", "failures"):
            run[key] = [entry for trace in traces for entry in trace.run.get(key, [])]
        shift = 0
        spans, files = [], []
        for trace in traces:
            spans.append(trace.spans.with_columns(pl.col("file") + shift))
            files.append(trace.files.with_columns(pl.col("file") + shift))
            shift += 1 + int(trace.files["file"].max() or 0) if len(trace.files) else 0  # type: ignore[arg-type]
        return cls(run, pl.concat(spans), pl.concat(files), pl.concat([trace.counters for trace in traces]))

    def select(self, *predicates: pl.Expr, **equals: object) -> "Trace":
        """The same trace with only the spans that fit, e.g. `trace.select(kind="read", rank=0)`."""
        return replace(self, spans=self.spans.filter(*predicates, **equals))

    @property
    def ranks(self) -> list[int]:
        """The ranks that recorded a span, in order."""
        return self.spans["rank"].drop_nulls().unique().sort().to_list()


def _load_run(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    if not folder.is_dir():
        raise RunError(f"{folder}: no such run folder; make one with: ioprof run --out {folder}")
    try:
        run = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{folder}: not an ioprof run (no run.json); make one with: ioprof run --out {folder}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from None
    if not isinstance(run, dict) or run.get("schema") != RUN_SCHEMA:
        raise RunError(f"{path}: not a run that this version of ioprof reads ({RUN_SCHEMA})")
    return run


def _load_table(path: Path, columns: dict[str, str]) -> pl.DataFrame:
    try:
        table = pl.read_parquet(path)
        return table.select(pl.col(name).cast(dtype) for name, dtype in table_schema(columns).items())
    except FileNotFoundError:
        raise RunError(f"{path}: missing; the run folder was not copied whole") from None
    except (OSError, pl.exceptions.PolarsError) as error:
        raise RunError(f"{path}: damaged ({str(error).splitlines()[0]})") from None


def _save_table(table: pl.DataFrame, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        table.write_parquet(temporary, compression="zstd")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
