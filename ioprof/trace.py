"""Trace: everything that a run recorded. It loads, saves, merges and selects; every later stage takes this one object."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
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
    def merge(cls, traces: Sequence["Trace"]) -> "Trace":
        """One trace of the parts of one run on one clock, each with processes of its own, e.g. those of its nodes.

        A path is one file, whatever its number was in each part. Facts are those of all parts: their lists are joined, the worst
        status and the greatest uncertainty hold. Raises `RunError` for parts of different runs, and where two hold one process.
        """
        _check_parts(traces)
        files, numbers = _one_numbering([trace.files for trace in traces])
        spans = [_renumbered(trace.spans, known) for trace, known in zip(traces, numbers, strict=True)]
        counters = pl.concat([trace.counters for trace in traces])
        return cls(_merged([trace.run for trace in traces], _RUN_RULES), pl.concat(spans), files, counters)

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
        run = json.loads(path.read_bytes(), parse_int=_number(int), parse_float=_number(float), parse_constant=_number(float))
    except FileNotFoundError:
        raise RunError(f"{folder}: not an ioprof run (no run.json); make one with: ioprof run --out {folder}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from None
    if not isinstance(run, dict) or run.get("schema") != RUN_SCHEMA:
        raise RunError(f"{path}: not a run that this version of ioprof reads ({RUN_SCHEMA})")
    if wrong := _too_deep(run) or _misfit(run, RUN_SHAPE):
        raise RunError(f"{path}: {wrong}; the file is not as ioprof wrote it: record the run again with: ioprof run --out FOLDER")
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


# ------------------------------------------------------------------------------------------------ checks of run.json

_Shape = str | list[Any] | dict[str, Any]

_COUNT: Final = "a whole number from 0 to 1,048,576"
_FITS: Final[dict[str, Callable[[Any], bool]]] = {
    "anything": lambda _: True,
    "a text": lambda value: isinstance(value, str),
    "a number": lambda value: type(value) in (int, float),
    "a whole number": lambda value: type(value) is int and abs(value) < 2**63,
    _COUNT: lambda value: type(value) is int and 0 <= value <= 1 << 20,
}
"""What a value can have to be, in words, and whether it is; `type`, since true is an int in Python."""

RUN_SHAPE: Final[dict[str, _Shape]] = {
    "name": "a text",
    "status": "a text",
    "started": "a text",
    "failures": ["anything"],
    "config": {"ranks": _COUNT, "workers": _COUNT, "batch_size": _COUNT, "loader": "a text", "device": "a text"},
    "device": {"name": "a text", "basis": "a text", "samples_per_s": "a number"},
    "dataset": {"name": "a text", "layout": "a text", "bytes": "a whole number"},
    "hosts": [{"cpus": "a whole number", "memory_bytes": "a whole number", "others_cpu_ratio": "a number"}],
    "clocks": {"method": "a text", "uncertainty_ns": "a whole number"},
    "processes": [{"pid": "a whole number", "rank": "a whole number", "worker": "a whole number"}],
    "capture": {
        "ns_per_span": "a number",
        "ns_per_call": "a number",
        "bytes_by_kernel": [{"pid": "a whole number"}],
        "gpu": {"windows": ["anything"], "notes": ["anything"]},
        **{key: ["anything"] for key in ("damaged", "fault_records", "unobserved", "unseen_processes")},
    },
}
"""What readers use of run.json, and what it may hold. Null or missing means "not recorded"; further keys are free."""

_DEEPEST: Final = 32  # levels; what prints or saves a value calls itself for each of them
_GREATEST: Final = 2.0**64  # counts in a damaged capture file go that far; far beyond, sums and rates would overflow


def _misfit(value: Any, shape: _Shape, key: str = "") -> str | None:
    """What is wrong with the value of `key`, in words; None if it fits."""
    if value is None:
        return None
    if isinstance(shape, str):
        return None if _FITS[shape](value) else f"{key} is {_shown(value)}, not {shape}"
    if isinstance(shape, list) and isinstance(value, list):
        found = [_misfit(entry, shape[0], f"{key}[{place}]") for place, entry in enumerate(value)]
    elif isinstance(shape, dict) and isinstance(value, dict):
        found = [_misfit(value.get(name), inner, f"{key}.{name}".lstrip(".")) for name, inner in shape.items()]
    else:
        return f"{key} is {_shown(value)}, not {'a list' if isinstance(shape, list) else 'an object'}"
    return next(filter(None, found), None)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _too_deep(value: Any) -> str | None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for entry in level for inner in _inner(entry)]
    return f"it is nested more than {_DEEPEST} levels deep" if level else None


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _number(kind: Callable[[str], int | float]) -> Callable[[str], int | float]:
    """What makes a number of JSON's text; ValueError for one that no fact of a run can be, NaN and Infinity among them."""

    def parse(text: str) -> int | float:
        number = kind(text)
        if not abs(number) <= _GREATEST:
            raise ValueError(f"{text[:20]} is no number that a run can hold")
        return number

    return parse


# ------------------------------------------------------------------------------------------------ merging

_IDENTITY: Final = ("name", "command", "started", "config", "device", "dataset")
"""Facts that all parts of a run share."""
_STATUSES: Final = ("complete", "interrupted", "failed")

_Rules = dict[str, Callable[[list[Any]], Any]]


def _joined(lists: list[list[Any]]) -> list[Any]:
    """Every entry once, in order: parts made by `select` hold the same ones."""
    return list({json.dumps(entry, sort_keys=True): entry for entries in lists for entry in entries}.values())


def _worst(statuses: list[str]) -> str:
    return max(statuses, key=lambda status: (_STATUSES.index(status) if status in _STATUSES else len(_STATUSES), status))


def _merged(parts: list[dict[str, Any]], rules: _Rules) -> dict[str, Any]:
    """Each key by its rule from the parts that know it; where there is no rule, the first that knows it is believed."""
    known = {key: [part[key] for part in parts if part.get(key) is not None] for part in parts for key in part}
    return {key: rules.get(key, itemgetter(0))(values) if values else None for key, values in known.items()}


_CAPTURE_RULES: Final[_Rules] = {
    "reads": all,
    "native": all,
    "ns_per_span": max,
    "ns_per_call": max,
    "gpu": lambda parts: _merged(parts, {"windows": _joined, "notes": _joined}),
    **dict.fromkeys(("bytes_by_kernel", "damaged", "fault_records", "unobserved", "unseen_processes"), _joined),
}

_RUN_RULES: Final[_Rules] = {
    "status": _worst,
    "failures": _joined,
    "hosts": _joined,
    "processes": _joined,
    "storage": _joined,
    "clocks": lambda parts: _merged(parts, {"anchors": _joined, "uncertainty_ns": max}),
    "capture": lambda parts: _merged(parts, _CAPTURE_RULES),
}


def _check_parts(traces: Sequence[Trace]) -> None:
    if not traces:
        how = "Trace.merge([Trace.load(folder) for folder in folders])"
        raise RunError(f"there is nothing to merge; give the parts of a run: {how}")
    runs = [trace.run for trace in traces]
    for key in _IDENTITY:
        _check_same(key, [run.get(key) for run in runs])
    zeros = [(run.get("clocks") or {}).get("zero_monotonic_ns") for run in runs]
    _check_same("clocks.zero_monotonic_ns", [zero for zero in zeros if zero is not None])  # null: a part without any span
    _check_disjoint([trace.spans for trace in traces])


def _check_same(key: str, values: list[Any]) -> None:
    for value in values:
        if value != values[0]:
            what = f"{key} is {_shown(values[0])} in one and {_shown(value)} in another"
            raise RunError(f"traces of different runs cannot be merged: {what}; merge the parts of one run only")


def _check_disjoint(tables: list[pl.DataFrame]) -> None:
    processes = pl.concat([spans.select("host", "rank", "pid").drop_nulls("pid").unique() for spans in tables])
    for host, rank, pid in processes.filter(processes.is_duplicated()).rows():
        what = f"process {pid} of rank {rank} on {host} has spans in two of them, which would count twice"
        raise RunError(f"the traces cannot be merged: {what}; give each part once")


def _one_numbering(tables: list[pl.DataFrame]) -> tuple[pl.DataFrame, list[pl.DataFrame]]:
    """The files of all tables, one row per path, and for each table its numbers (`file`) beside those of the whole (`number`).

    What one part does not know of a file is filled in from another; of two values the greater holds.
    """
    rows = pl.concat(tables).group_by("path", maintain_order=True).agg(pl.exclude("file", "path").max())
    files = rows.with_row_index("file").cast({"file": pl.Int64}).select(list(FILE_COLUMNS))
    known = files.select("path", number="file")
    return files, [
        table.unique("file", keep="first").join(known, on="path", nulls_equal=True).select("file", "number") for table in tables
    ]


def _renumbered(spans: pl.DataFrame, numbers: pl.DataFrame) -> pl.DataFrame:
    """The spans with the whole's numbers of files; one that names no file becomes null, or it would come to name another's."""
    joined = spans.join(numbers, on="file", how="left", maintain_order="left")
    return joined.with_columns(file="number").select(spans.columns)
