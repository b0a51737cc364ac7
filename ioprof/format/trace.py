"""Trace: everything that a run recorded. It loads, saves and selects; every later stage takes this
one object.
"""

import logging
import pickle
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
import polars as pl

from ioprof.errors import RunError
from ioprof.files import replaced_file
from ioprof.format.run_files import (
    BLOCKS,
    COUNTERS,
    FILES,
    OPTIONAL,
    SPANS,
    STACKS,
    check_files,
    damage_text,
    has_table,
    read_run,
    stored_file,
)
from ioprof.format.run_record import RunRecord
from ioprof.format.run_record.run_json import RUN_FILE
from ioprof.format.schema import (
    BLOCK_COLUMNS,
    COUNTER_COLUMNS,
    DENSE_KINDS,
    FILE_COLUMNS,
    KINDS,
    OBJECTS,
    SOURCES,
    SPAN_COLUMNS,
    STACK_COLUMNS,
)
from ioprof.format.span_parts import (
    FIRST_NS,
    LAST_NS,
    Nearby,
    Part,
    Query,
    Where,
    bounds,
    bounds_of,
    collected,
)

_log: Final = logging.getLogger(__name__)

_DTYPES: Final[dict[str, pl.DataType]] = {
    "int32": pl.Int32(),
    "int64": pl.Int64(),
    "float64": pl.Float64(),
    "bool": pl.Boolean(),
    "string": pl.String(),
    "category": pl.Categorical(),
    "kind": pl.Enum(KINDS),
    "source": pl.Enum(SOURCES),
    "object": pl.Enum(OBJECTS),
}


def table_schema(columns: dict[str, str]) -> dict[str, pl.DataType]:
    """The polars schema of a table described in `ioprof.format.schema`."""
    return {name: _DTYPES[dtype] for name, dtype in columns.items()}


def empty_table(columns: dict[str, str]) -> pl.DataFrame:
    """A table with those columns and no row."""
    return pl.DataFrame(schema=table_schema(columns))


ROWS_IN_MEMORY: Final = 500_000
"""Spans of a run folder up to which they are loaded at once; of more, what is asked for is read
from the file."""
ROWS_IN_GROUP: Final = 125_000
"""Spans in a row group of spans.parquet: what is read and written at a time."""


_TIME_STEPS: Final = 4096
"""Stretches of a run's time whose spans are counted."""


@dataclass(frozen=True)
class StoredSpans:
    """The spans in a spans.parquet that is read when it is asked for."""

    path: Path
    rows: int
    known: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Attributes of `Trace` that are known of them already, see `Inventory`."""

    def scan(self) -> pl.LazyFrame:
        """All spans, to be filtered before they are collected."""
        scanned, schema = pl.scan_parquet(self.path), table_schema(SPAN_COLUMNS)
        if scanned.collect_schema() == schema:
            # without a cast, which would keep filters from the statistics of row groups
            return scanned
        return scanned.select(pl.col(name).cast(dtype) for name, dtype in schema.items())


_OF_SPANS: Final = ("_parts", "structure", "sums", "starts")
"""Attributes of a trace that are computed from its spans alone, and kept."""


class _SpansField:
    """The attribute `Trace.spans`: set to a table, or to one that is loaded when the attribute is
    first read.
    """

    @overload
    def __get__(self, trace: None, owner: type) -> pl.DataFrame: ...
    @overload
    def __get__(self, trace: "Trace", owner: type) -> pl.DataFrame: ...
    def __get__(self, trace: "Trace | None", owner: type) -> pl.DataFrame:
        if trace is None:
            raise AttributeError("spans")  # there is no default
        held = trace.__dict__["_held"]
        if isinstance(held, StoredSpans):
            held = trace.__dict__["_held"] = held.scan().collect()
        return held  # type: ignore[no-any-return]

    def __set__(self, trace: "Trace", value: pl.DataFrame | StoredSpans) -> None:
        trace.__dict__["_held"] = value
        if isinstance(value, StoredSpans):
            trace.__dict__.update(value.known)


_SUM_KEYS: Final = (
    "host",
    "rank",
    "pid",
    "tid",
    "kind",
    "source",
    "in_batch",
    "on_stream",
    "moved",
)


def _sums(spans: pl.LazyFrame) -> pl.LazyFrame:
    """See `Trace.sums`."""
    flags = [
        pl.col("batch").is_not_null().alias("in_batch"),
        (pl.col("stream") >= 0).fill_null(value=False).alias("on_stream"),
        (pl.col("bytes") != 0).fill_null(value=True).alias("moved"),
    ]
    sums = {
        "spans": pl.len(),
        "bytes": pl.col("bytes").sum(),
        "took_ns": (pl.col("end_ns") - pl.col("start_ns")).sum(),
    }
    return spans.with_columns(flags).group_by(_SUM_KEYS).agg(**sums)


_DENSE: Final = frozenset(DENSE_KINDS)
_is_structure: Final = ~pl.col("kind").is_in(list(DENSE_KINDS)).fill_null(value=False)


class Inventory:
    """Finds what is asked of all spans while they are written to a file, so that they are not read
    again for it.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sums: list[pl.DataFrame] = []
        self._structure = [empty_table(SPAN_COLUMNS)]
        self._bounds: list[list[tuple[int, int, frozenset[int | None]]]] = []

    def add(self, block: pl.DataFrame) -> None:
        """Look at the next rows of the file."""
        self._sums.append(_sums(block.lazy()).collect())
        if not set(block["kind"].unique()) <= _DENSE:  # most blocks have nothing else
            self._structure.append(block.filter(_is_structure))
        done = 0
        while done < len(block):
            group, place = divmod(self.rows, ROWS_IN_GROUP)
            rows = block.slice(done, ROWS_IN_GROUP - place)
            if not place:
                self._bounds.append([])
            self._bounds[group].append(bounds_of(rows))
            self.rows, done = self.rows + len(rows), done + len(rows)

    def stored(self, path: Path) -> StoredSpans:
        """The spans in the file, with what is known of them."""
        sums = pl.concat(self._sums).group_by(_SUM_KEYS).agg(pl.exclude(_SUM_KEYS).sum())
        groups = []
        for found in self._bounds:
            firsts, lasts, ranks = zip(*found, strict=True)
            groups.append((min(firsts), max(lasts), frozenset().union(*ranks)))
        return _stored_spans(path, self.rows, sums, pl.concat(self._structure), groups)


def _stored_spans(
    path: Path,
    rows: int,
    sums: pl.DataFrame,
    structure: pl.DataFrame,
    groups: Sequence[tuple[int, int, frozenset[int | None]]],
) -> StoredSpans:
    """Spans in a file of which this is known: `groups` are the bounds of its row groups."""
    stored = StoredSpans(path, rows)
    spans = stored.scan()
    slices = (spans.slice(number * ROWS_IN_GROUP, ROWS_IN_GROUP) for number in range(len(groups)))
    parts = [Part(part, *group) for part, group in zip(slices, groups, strict=True)]
    stored.known.update(sums=sums, structure=structure, _parts=parts)
    return stored


@dataclass(frozen=True)
class Trace:
    """Spans, files and counters of a run on one clock, and the facts about the run (`run.json`)."""

    run: RunRecord
    """run.json: command, config, device, hosts, versions, clocks, processes, capture, failures,
    status."""
    spans: _SpansField = _SpansField()  # a descriptor, see PEP 681
    """Columns of `ioprof.format.schema.SPAN_COLUMNS`; times in nanoseconds since the run's zero; in
    no particular order.

    A data frame. Of a large run it is loaded when this is first read; `scan` and `rows` read only
    what is asked for.
    """
    files: pl.DataFrame = field(default_factory=lambda: empty_table(FILE_COLUMNS))
    """Columns of `ioprof.format.schema.FILE_COLUMNS`."""
    counters: pl.DataFrame = field(default_factory=lambda: empty_table(COUNTER_COLUMNS))
    """Columns of `ioprof.format.schema.COUNTER_COLUMNS`."""
    stacks: pl.DataFrame = field(default_factory=lambda: empty_table(STACK_COLUMNS))
    """Columns of `ioprof.format.schema.STACK_COLUMNS`; empty where no stacks were sampled."""
    blocks: pl.DataFrame = field(default_factory=lambda: empty_table(BLOCK_COLUMNS))
    """Columns of `ioprof.format.schema.BLOCK_COLUMNS`; empty where none were recorded."""

    @classmethod
    def load(cls, path: Path | str) -> "Trace":
        """The run in the folder `path`; `RunError` says what is wrong with it and what to type.

        A warning is logged, by default to standard error, of each file that is not as it was
        written and that the run does without.
        """
        folder = Path(path)
        run = read_run(folder)
        present = [name for name in OPTIONAL if has_table(folder, name, run.files)]
        facts = run.of_any_folder(check_files(folder, run.files))
        for name in facts.kept.damaged:
            _log.warning("ioprof: %s: %s", folder, damage_text(name))
        return cls(
            run=facts,
            spans=_load_spans(folder / SPANS),
            files=_load_table(folder / FILES, FILE_COLUMNS),
            counters=_load_table(folder / COUNTERS, COUNTER_COLUMNS),
            stacks=(
                _load_table(folder / STACKS, STACK_COLUMNS)
                if STACKS in present
                else empty_table(STACK_COLUMNS)
            ),
            blocks=(
                _load_table(folder / BLOCKS, BLOCK_COLUMNS)
                if BLOCKS in present
                else empty_table(BLOCK_COLUMNS)
            ),
        )

    @classmethod
    def load_known(cls, path: Path | str, known: bytes) -> "Trace":
        """The run in a folder, of whose spans another process passed on what it knows:
        `known_of_spans`.
        """
        trace = cls.load(path)
        found = pickle.loads(known)  # noqa: S301  # from a process that this one started
        return (
            trace
            if found is None
            else replace(trace, spans=_stored_spans(Path(path) / SPANS, *found))
        )

    def known_of_spans(self) -> bytes:
        """What `load_known` takes of a trace that has just been saved."""
        held = self.__dict__["_held"]
        if not isinstance(held, StoredSpans):
            return pickle.dumps(None)
        groups = [(part.first_ns, part.last_ns, part.ranks) for part in self._parts]
        return pickle.dumps((held.rows, self.sums, self.structure, groups), protocol=5)

    def save(self, path: Path | str) -> None:
        """Write the tables, then `run.json` with their checksums, each by rename once all are
        written.

        A folder whose `run.json` is there has its tables whole. If anything cannot be written, all
        stay as they were.
        """
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        tables = {
            FILES: self.files,
            COUNTERS: self.counters,
            **({STACKS: self.stacks} if len(self.stacks) else {}),
            **({BLOCKS: self.blocks} if len(self.blocks) else {}),
        }
        with ExitStack() as renamed:  # the last first
            description = renamed.enter_context(replaced_file(folder / RUN_FILE))
            stored = {SPANS: stored_file(self._save_spans(folder / SPANS, renamed))}
            for name, table in tables.items():
                table.write_parquet(
                    temporary := renamed.enter_context(replaced_file(folder / name)),
                    compression="zstd",
                )
                stored[name] = stored_file(temporary)
            description.write_text(self.run.to_checked_json(stored) + "\n", encoding="utf-8")
        for name in OPTIONAL:
            if name not in tables:
                (folder / name).unlink(missing_ok=True)

    def select(self, *predicates: pl.Expr, **equals: object) -> "Trace":
        """The same trace with only the spans that fit, e.g. `trace.select(kind="read", rank=0)`."""
        return replace(self, spans=self.found(lambda part: part.filter(*predicates, **equals)))

    @property
    def is_stored(self) -> bool:
        """Whether the spans are not in memory, but read from their file when they are asked for."""
        return isinstance(self.__dict__["_held"], StoredSpans)

    def scan(self) -> pl.LazyFrame:
        """The spans as a query, of which only what it asks for is read:
        `trace.scan().filter(kind="read").select("bytes")`.
        """
        held = self.__dict__["_held"]
        return held.scan() if isinstance(held, StoredSpans) else held.lazy()

    def rows(self, *predicates: pl.Expr, kinds: Sequence[str]) -> pl.DataFrame:
        """The spans of these kinds that fit."""
        of_kind = pl.col("kind").is_in(list(kinds))
        if set(kinds).isdisjoint(DENSE_KINDS):
            return self.structure.filter(of_kind, *predicates)
        if self.is_stored and self.sums.filter(of_kind).is_empty():
            return self.structure.clear()
        return self.found(lambda part: part.filter(of_kind, *predicates))

    def found(self, query: Query, where: Where | None = None) -> pl.DataFrame:
        """What a query that looks at single spans finds, in the parts that may have spans `where`;
        never all spans in memory.
        """
        return pl.concat(list(self.in_parts(query, where)))

    def in_parts(self, query: Query, where: Where | None = None) -> Iterator[pl.DataFrame]:
        """The same, in pieces of bounded size, at least one; the next is read while one is looked
        at.
        """
        parts = [
            part for part in self._parts if where is None or where.may_be_in(part)
        ] or self._parts[:1]
        return collected(parts, query)

    def near(self, query: Query, ranks: frozenset[int]) -> Nearby:
        """What a query that looks at single spans finds, to be asked for stretch by stretch of
        time.
        """
        parts = [
            part for part in self._parts if part.ranks is None or not part.ranks.isdisjoint(ranks)
        ]
        return Nearby(parts or self._parts[:1], query)

    def summed(self, query: Query, by: Sequence[str]) -> pl.DataFrame:
        """What a query that groups spans finds, its columns other than `by` added up over all
        spans; never all spans in memory.
        """
        found = collected(self._parts, query)
        so_far = pl.concat([next(found)])
        waiting, rows = [so_far], 0
        for part in found:
            waiting.append(part)
            rows += len(part)
            if rows > ROWS_IN_GROUP:
                waiting, rows = [pl.concat(waiting).group_by(by).agg(pl.exclude(by).sum())], 0
        return (
            pl.concat(waiting).group_by(by).agg(pl.exclude(by).sum())
            if len(waiting) > 1
            else so_far
        )

    @cached_property
    def _parts(self) -> list[Part]:
        held = self.__dict__["_held"]
        if not isinstance(held, StoredSpans):
            return [Part(held.lazy(), FIRST_NS, LAST_NS, None)]
        spans = held.scan()  # once, so that the file's footer is read once
        parts = [
            spans.slice(first, ROWS_IN_GROUP)
            for first in range(0, max(1, held.rows), ROWS_IN_GROUP)
        ]
        return [Part(part, *bounds(part)) for part in parts]

    @cached_property
    def structure(self) -> pl.DataFrame:
        """The spans of all kinds that are not in `DENSE_KINDS`."""
        return self.found(lambda part: part.filter(_is_structure))

    @cached_property
    def sums(self) -> pl.DataFrame:
        """Spans summed by what they have in common: `spans`, `bytes` and `took_ns` by
        `host rank pid tid kind source`, whether they have a batch (`in_batch`), a stream
        (`on_stream`), and moved bytes or may have (`moved`).
        """
        return self.summed(_sums, _SUM_KEYS)

    @cached_property
    def starts(self) -> pl.DataFrame:
        """How many `spans` of the kinds in `DENSE_KINDS` begin from `since_ns` to before
        `until_ns`, by `rank`.
        """
        extents = self.found(
            lambda part: part.select(first=pl.col("start_ns").min(), last=pl.col("start_ns").max())
        )
        first_ns, last_ns = (
            int(value or 0)
            for value in extents.select(pl.col("first").min(), pl.col("last").max()).row(0)
        )
        length_ns = (last_ns - first_ns) // _TIME_STEPS + 1
        ranks = [None, *self.ranks]
        counts, known = np.zeros((len(ranks), _TIME_STEPS), np.int64), np.array(ranks[1:], np.int32)
        begun = {
            "start_ns": pl.col("start_ns"),
            "rank": pl.col("rank").fill_null(-1),
            "is_dense": ~_is_structure,
        }
        for part in self.in_parts(lambda spans: spans.select(**begun).drop_nulls()):
            start, rank, is_dense = (part[name].to_numpy() for name in begun)
            place = (
                np.searchsorted(known, rank, side="right") * _TIME_STEPS
                + (start - first_ns) // length_ns
            )
            counts += np.bincount(place[is_dense], minlength=counts.size).reshape(counts.shape)
        of_rank, place = np.nonzero(counts)
        found = {
            "rank": [ranks[number] for number in of_rank],
            "spans": counts[of_rank, place],
            "since_ns": first_ns + place * length_ns,
        }
        table = pl.DataFrame(
            found, schema={"rank": pl.Int32, "spans": pl.Int64, "since_ns": pl.Int64}
        )
        return table.with_columns(until_ns=pl.col("since_ns") + length_ns)

    @property
    def last_ns(self) -> int | None:
        """The last end of any span; None: there are no spans."""
        ends = [part.last_ns for part in self._parts]
        if ends == [LAST_NS]:
            found = self._parts[0].spans.select(pl.col("end_ns").max()).collect().item()
            return None if found is None else int(found)
        return max(ends)

    @property
    def num_spans(self) -> int:
        """How many spans there are."""
        held = self.__dict__["_held"]
        return held.rows if isinstance(held, StoredSpans) else len(held)

    def with_facts(self, **changes: Any) -> "Trace":
        """The same spans with other fields replaced; nothing is loaded."""
        found = replace(self, spans=self.__dict__["_held"], **changes)
        found.__dict__.update(
            {name: self.__dict__[name] for name in _OF_SPANS if name in self.__dict__}
        )
        return found

    @property
    def ranks(self) -> list[int]:
        """The ranks that recorded a span, in order."""
        return self.sums["rank"].drop_nulls().unique().sort().to_list()

    def _save_spans(self, path: Path, renamed: ExitStack) -> Path:
        """Write the spans, unless they are in that file already; where they are until they are
        renamed.
        """
        held = self.__dict__["_held"]
        if isinstance(held, StoredSpans) and path.exists() and held.path.samefile(path):
            return path
        temporary = renamed.enter_context(replaced_file(path))
        if isinstance(held, StoredSpans):
            shutil.copyfile(held.path, temporary)
        else:
            held.write_parquet(temporary, compression="zstd")
        return temporary


def _load_table(path: Path, columns: dict[str, str]) -> pl.DataFrame:
    try:
        return pl.read_parquet(path).select(
            pl.col(name).cast(dtype) for name, dtype in table_schema(columns).items()
        )
    except _UNREADABLE as error:
        raise damaged_table(path, error) from None


def _load_spans(path: Path) -> pl.DataFrame | StoredSpans:
    try:
        rows = int(pl.scan_parquet(path).select(pl.len()).collect().item())
        if rows <= ROWS_IN_MEMORY:
            return _load_table(path, SPAN_COLUMNS)
        stored = StoredSpans(path, rows)
        stored.scan().head(1).collect()
    except _UNREADABLE as error:
        raise damaged_table(path, error) from None
    return stored


_UNREADABLE: Final = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)


def damaged_table(path: Path, error: BaseException) -> RunError:
    """The error for a table that polars cannot read."""
    return RunError(
        f"{path}: damaged ({next(iter(str(error).splitlines()), type(error).__name__)})"
    )
