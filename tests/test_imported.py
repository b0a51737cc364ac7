"""Tables of other profilers as one run: files and processes are numbered in the order of their
first spans."""

from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from ioprof.format.schema import FILE_COLUMNS, KINDS, SPAN_COLUMNS
from ioprof.format.trace import table_schema
from ioprof.ingest.untrusted_values import LATEST_NS
from ioprof.interchange.imported import Imported, to_trace

NAMES = ("start_ns", "end_ns", "host", "rank", "pid", "path", "bytes")
spans = st.tuples(
    st.integers(0, 9) | st.sampled_from([None, -1, LATEST_NS - 1, LATEST_NS]),
    st.integers(5, 20) | st.sampled_from([None, -1, LATEST_NS - 1, LATEST_NS]),
    st.sampled_from([None, "n1", "n2"]),
    st.sampled_from([None, 0, 1, 2**31]),
    st.sampled_from([None, 7, 8]),
    st.sampled_from([None, "/a", "/b", "/c"]),
    st.sampled_from([None, 0, 5]),
)
usual = st.tuples(
    st.integers(0, 9),
    st.integers(9, 20),
    st.just("n1"),
    st.just(0),
    st.just(7),
    st.just("/a"),
    st.just(1),
)
rows_of_files = st.lists(st.lists(spans | usual, max_size=9), min_size=1, max_size=3)


def table(rows: list[tuple[Any, ...]], left_out: frozenset[str]) -> pl.DataFrame:
    """Columns as a reader may return them: texts as strings, numbers of 64 bits, some columns not
    at all."""
    types = [pl.Int64, pl.Int64, pl.String, pl.Int64, pl.Int64, pl.String, pl.Int64]
    columns = {
        name: pl.Series([row[at] for row in rows], dtype=types[at])
        for at, name in enumerate(NAMES)
        if name not in left_out
    }
    return pl.DataFrame(columns).with_columns(kind=pl.lit("read", pl.Enum(KINDS)))


@settings(max_examples=examples(200), deadline=None)
@given(
    files=rows_of_files,
    left_out=st.frozensets(st.sampled_from(["host", "rank", "pid", "path", "bytes"])),
)
def test_spans_files_and_processes_are_those_of_the_tables(
    files: list[list[tuple[Any, ...]]], left_out: frozenset[str]
) -> None:
    """With values that are missing anywhere; spans with impossible times are left out and
    counted."""
    given_rows = [row for rows in files for row in rows]
    kept = [
        {name: None if name in left_out else value for name, value in zip(NAMES, row, strict=True)}
        for row in given_rows
        if row[0] is not None and row[1] is not None and 0 <= row[0] <= row[1] < LATEST_NS
    ]
    if not kept:
        return
    imported = [
        Imported(Path(f"f{at}"), table(rows, left_out), profiler="x")
        for at, rows in enumerate(files)
    ]
    trace = to_trace(imported, "run", "command", "a clock")
    assert imported[0].damage["an event with impossible times was left out"] == len(
        given_rows
    ) - len(kept)

    paths = list(dict.fromkeys(row["path"] for row in kept if row["path"] is not None))
    assert (paths, list(range(len(paths)))) == (
        trace.files["path"].to_list(),
        trace.files["file"].to_list(),
    )
    zero_ns, number_of = (
        min(row["start_ns"] for row in kept),
        {path: at for at, path in enumerate(paths)},
    )
    # it is no 32-bit number
    rank_of = [row["rank"] if row["rank"] != 2**31 else None for row in kept]
    assert trace.spans.select(
        "start_ns", "end_ns", "host", "rank", "pid", "file", "bytes", "name"
    ).rows() == [
        (
            *(row[name] - zero_ns for name in ("start_ns", "end_ns")),
            *(row["host"], rank, row["pid"], number_of.get(row["path"]), row["bytes"], None),
        )
        for row, rank in zip(kept, rank_of, strict=True)
    ]
    assert (table_schema(SPAN_COLUMNS), table_schema(FILE_COLUMNS)) == (
        trace.spans.schema,
        trace.files.schema,
    )

    processes: dict[tuple[Any, Any], list[tuple[Any, int, int]]] = {}
    for row, rank in zip(kept, rank_of, strict=True):
        processes.setdefault((row["host"], row["pid"]), []).append(
            (rank, row["start_ns"] - zero_ns, row["end_ns"] - zero_ns)
        )
    assert [(each.host, each.pid, each.rank) for each in trace.run.processes] == [
        (*key, next((rank for rank, _, _ in rows if rank is not None), None))
        for key, rows in processes.items()
    ]
    assert [(each.spans, each.first_ns, each.last_ns) for each in trace.run.processes] == [
        (len(rows), min(first for _, first, _ in rows), max(last for _, _, last in rows))
        for rows in processes.values()
    ]
    assert (len({rank for rank in rank_of if rank is not None}) or None) == trace.run.config.ranks
