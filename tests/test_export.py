"""Exports: what the files of other programs' formats hold is what the run holds, whatever the names
in it are."""

import dataclasses
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_runs import sampled_run
from perfetto_files import Decoded, check_summary, of_slices, rows
from sample_run import sample_run, trace_of
from strategies import examples
from trace_processor import ask

from ioprof.cli import main
from ioprof.format.trace import Trace
from ioprof.interchange.chrome import write_chrome
from ioprof.interchange.perfetto import write_perfetto
from ioprof.interchange.rows import varints
from ioprof.interchange.stacks import durations, slices
from ioprof.interchange.tables import write_table
from ioprof.interchange.tracks import Tracks, harmless
from ioprof.report.run import Run

HOSTILE = (
    b'<script>alert(1)</script>\x1b[31m\xff\xe2\x80\xae\r\n"\\'.decode("utf-8", "backslashreplace")
    + "y" * 4000
)
"""As the reader of recordings has it: a byte that is not UTF-8 is the text of its escape."""


@cache
def sample() -> Run:
    """Two ranks of a simulated job, with counters and a GPU's stream."""
    trace = sample_run(steps=12).trace
    counters = pl.DataFrame(
        [
            {
                "time_ns": time * 1_000_000,
                "host": "node1",
                "rank": rank,
                "pid": pid,
                "name": name,
                "value": value,
                "unit": "bytes",
            }
            for time in range(20)
            for rank, pid, name, value in (
                (0, 1000, "process.rss", time * 1e6),
                (None, None, "disk.read", -0.5),
            )
        ],
        schema=trace.counters.schema,
    )
    return Run.of(trace.with_facts(counters=counters))


def test_slices_counters_and_arrows_of_a_perfetto_trace_are_those_of_the_run(
    tmp_path: Path,
) -> None:
    """Every span is one slice with its times and numbers; counts and sums per kind are those of
    summary.json; arrows lead from each read to the fetch of its batch, to its wait, and to the step
    that used it."""
    run = sample()
    written = write_perfetto(run.trace, tmp_path / "run.pftrace")
    found = Decoded(tmp_path / "run.pftrace")
    assert found.unbalanced == 0
    assert of_slices(found.slices) == rows(run.trace.spans)
    assert written.spans == dict(Counter(each["kind"] for each in found.slices))
    check_summary(found.slices, run)
    assert {"process.rss of rank 0", "disk.read"} == found.counters.keys()
    assert (written.counters, found.counters["disk.read"][3]) == (40, (3_000_000, -0.5))
    assert found.begun.keys() == found.ended.keys()
    assert len(found.begun) == written.arrows
    led = Counter(
        (found.begun[number]["kind"], found.ended[number]["kind"]) for number in found.begun
    )
    assert led == {("read", "fetch"): 2 * 12 * 24, ("fetch", "wait"): 24, ("wait", "step"): 24}
    assert all(found.begun[number]["end"] <= found.ended[number]["end"] for number in found.begun)
    paths = {each["file"] for each in found.slices if each["kind"] == "read"}
    assert paths == set(run.trace.files["path"])
    names = {track.name for track in found.tracks.values() if track.HasField("process")}
    assert {"rank 0 (1000)", "rank 1 worker 2 (1103)"} <= names


SLICES = """SELECT category, ts, ts + dur, name, EXTRACT_ARG(arg_set_id, 'debug.step'), EXTRACT_ARG(arg_set_id, 'debug.batch'),
    EXTRACT_ARG(arg_set_id, 'debug.bytes'), EXTRACT_ARG(arg_set_id, 'debug.offset'), EXTRACT_ARG(arg_set_id, 'debug.source'),
    EXTRACT_ARG(arg_set_id, 'debug.file') FROM slice"""  # noqa: E501
SLICE_COLUMNS = (
    "kind",
    "start",
    "end",
    "name",
    "step",
    "batch",
    "bytes",
    "offset",
    "source",
    "file",
)
TROUBLES = "SELECT name, value FROM stats WHERE value > 0 AND severity IN ('error', 'data_loss')"


@pytest.mark.job(every=4)
def test_perfettos_own_trace_processor_finds_the_same_slices_counters_and_arrows(
    tmp_path: Path,
) -> None:
    """Its slices are the spans of the run, one by one; their counts and sums per kind, those of
    summary.json; arrows are between the kinds that they should be; it reports no error in the
    file."""
    run = sample()
    written = write_perfetto(run.trace, tmp_path / "run.pftrace")
    slices, sums, arrows, counters, processes, troubles = ask(
        tmp_path / "run.pftrace",
        SLICES,
        "SELECT category, COUNT(*), SUM(dur) FROM slice GROUP BY category",
        """SELECT begin.category, finish.category, COUNT(*) FROM flow JOIN slice begin ON flow.slice_out = begin.id
           JOIN slice finish ON flow.slice_in = finish.id GROUP BY 1, 2""",  # noqa: E501
        "SELECT name, unit, ts, value FROM counter JOIN counter_track ON counter_track.id ="
        " track_id ORDER BY ts",
        "SELECT name FROM process WHERE name IS NOT NULL",
        TROUBLES,
    )
    assert troubles == []
    named = [dict(zip(SLICE_COLUMNS, each, strict=True)) for each in slices]
    assert of_slices(named) == rows(run.trace.spans)
    check_summary(named, run)
    by_kind = run.trace.spans.group_by(pl.col("kind").cast(pl.String)).agg(
        pl.len(), (pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    assert sorted(sums) == sorted(by_kind.rows())
    # It turns an arrow around whose second slice began first, as a fetch before its reads.
    assert sorted(arrows) == [
        ("fetch", "read", 2 * 12 * 24),
        ("fetch", "wait", 24),
        ("wait", "step", 24),
    ]
    assert sum(count for *_, count in arrows) == written.arrows
    assert [each for each in counters if each[0] == "disk.read"][3] == (
        "disk.read",
        "bytes",
        3_000_000,
        -0.5,
    )
    assert len(counters) == written.counters
    assert {("rank 0 (1000)",), ("rank 1 worker 2 (1103)",)} <= set(processes)


@pytest.mark.job
def test_hostile_names_are_texts_to_perfettos_trace_processor(tmp_path: Path) -> None:
    """Markup, control characters, invalid UTF-8 and 4,000 characters: the same number of slices and
    counters, no error."""
    trace = hostile_trace()
    write_perfetto(trace, tmp_path / "run.pftrace")
    texts, counted, troubles = ask(
        tmp_path / "run.pftrace",
        """SELECT name FROM slice UNION ALL SELECT EXTRACT_ARG(arg_set_id, 'debug.file') FROM slice UNION ALL
           SELECT name FROM counter_track UNION ALL SELECT name FROM process UNION ALL SELECT name FROM thread""",  # noqa: E501
        "SELECT (SELECT COUNT(*) FROM slice), (SELECT COUNT(*) FROM counter)",
        TROUBLES,
    )
    assert troubles == []
    assert counted == [(1, 1)]
    assert sum("alert(1)" in text for (text,) in texts if text) >= 3
    assert all(text.isprintable() for (text,) in texts if text)


STACK = st.lists(
    st.sampled_from(("/a.py:1:f", "/a.py:2:f", "/b.py:1:g", "<frozen x>:9:<module>")),
    min_size=1,
    max_size=5,
)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.booleans(), STACK), min_size=1, max_size=30),
)
@settings(max_examples=examples(200))
def test_at_the_time_of_each_sample_the_slices_are_its_stack(
    samples: list[tuple[int, bool, list[str]]],
) -> None:
    """They nest, and together take the time that the samples stand for; some samples are far
    apart."""
    times = np.cumsum([gap * (1000 if is_far else 1) for gap, is_far, _ in samples])
    texts = ["\n".join(stack) for *_, stack in samples]
    found = slices(pl.DataFrame({"time_ns": times, "stack": texts}))
    expected = [
        [
            f"{frame.rsplit(':', 2)[2]} ({frame.rsplit(':', 2)[0].rpartition('/')[2]})"
            for frame in stack
        ]
        for *_, stack in samples
    ]
    lengths = durations(times)
    for time_ns, length, labels in zip(times, lengths, expected, strict=True):
        if length:
            during = found.filter(pl.col("start_ns") <= time_ns, pl.col("end_ns") > time_ns)
            assert during["label"].to_list() == labels
    opened: list[int] = []
    outermost = 0
    for start, end in found.select("start_ns", "end_ns").iter_rows():
        while opened and opened[-1] <= start and not start == end == opened[-1]:
            opened.pop()
        assert not opened or end <= opened[-1]
        outermost += 0 if opened else end - start
        opened.append(end)
    assert outermost == sum(lengths)


@pytest.mark.parametrize("write", [write_perfetto, write_chrome])
def test_functions_of_stacks_are_slices_beside_the_spans(tmp_path: Path, write: Any) -> None:
    """In tracks of their own; the spans are as without them."""
    run = sampled_run(sample_run(steps=6))
    written = write(run.trace, tmp_path / "run.file")
    without = write(dataclasses.replace(run.trace, stacks=run.trace.stacks.clear()), tmp_path / "x")
    assert written.spans == without.spans
    assert (without.functions, written.arrows) == (0, without.arrows)
    if write is write_perfetto:
        decoded = Decoded(tmp_path / "run.file")
        assert decoded.unbalanced == 0
        found = Counter(each["name"] for each in decoded.slices if each["kind"] == "python")
    else:
        events = json.loads((tmp_path / "run.file").read_bytes())["traceEvents"]
        found = Counter(each["name"] for each in events if each.get("cat") == "python")
    assert sum(found.values()) == written.functions
    assert {"main (train.py)", "log_metrics (metrics.py)", "Images.load (data.py)"} <= found.keys()


@pytest.mark.parametrize("name", ["run.trace.json", "run.trace.json.gz"])
def test_events_of_a_chrome_trace_are_those_of_the_run(tmp_path: Path, name: str) -> None:
    """Each span is one complete event; arrows begin and end within events of their track; the
    fields are those of the format."""
    run = sample()
    written = write_chrome(run.trace, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    events = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)["traceEvents"]
    assert all(
        {"ph", "pid", "tid", "ts", "name"} <= each.keys() for each in events if each["ph"] in "XMsf"
    )
    slices = [
        {
            "kind": each["cat"],
            "start": round(each["ts"] * 1e3),
            "end": round((each["ts"] + each["dur"]) * 1e3),
            **each["args"],
        }
        for each in events
        if each["ph"] == "X"
    ]
    assert of_slices(slices) == rows(run.trace.spans)
    check_summary(slices, run)
    phases = Counter(each["ph"] for each in events)
    assert phases["s"] == phases["f"] == written.arrows
    assert phases["C"] == written.counters == 40
    assert {each["id"] for each in events if each["ph"] == "s"} == {
        each["id"] for each in events if each["ph"] == "f"
    }
    threads = {(each["pid"], each["tid"]) for each in events if each["ph"] == "X"}
    assert len({tid for _, tid in threads}) == len(threads)


def test_a_table_has_all_spans_with_texts(tmp_path: Path) -> None:
    run = sample()
    written = write_table(run.trace, tmp_path / "spans.parquet")
    table = pl.read_parquet(tmp_path / "spans.parquet")
    assert len(table) == written.num_spans == run.trace.num_spans
    assert table.schema["kind"] == pl.String
    assert (
        table.filter(kind="read")["bytes"].sum()
        == run.trace.spans.filter(kind="read")["bytes"].sum()
    )
    assert set(table.filter(kind="read")["path"]) == set(run.trace.files["path"])
    assert set(table["worker"].drop_nulls()) == {0, 1, 2}


def hostile_trace() -> Trace:
    """One span and one sample; host, name, file and unit are all hostile."""
    span = {
        "kind": "user",
        "start_ns": 0,
        "end_ns": 9,
        "host": HOSTILE,
        "pid": 7,
        "tid": 7,
        "name": HOSTILE,
        "file": 0,
    }
    counter = {
        "time_ns": 5,
        "host": HOSTILE,
        "rank": None,
        "pid": 7,
        "name": HOSTILE,
        "value": 1.0,
        "unit": HOSTILE,
    }
    trace = trace_of({"processes": []}, [span], [{"file": 0, "path": HOSTILE}])
    return trace.with_facts(counters=pl.DataFrame([counter], schema=trace.counters.schema))


def test_hostile_names_change_nothing_but_themselves(tmp_path: Path) -> None:
    """A name with markup, control characters or 4,000 characters is one harmless text in the file,
    and no event is lost."""
    trace = hostile_trace()
    write_perfetto(trace, tmp_path / "run.pftrace")
    found = Decoded(tmp_path / "run.pftrace")
    write_chrome(trace, tmp_path / "run.json")
    events = json.loads((tmp_path / "run.json").read_bytes())["traceEvents"]
    (one,) = found.slices
    (other,) = (each for each in events if each["ph"] == "X")
    texts = [one["name"], one["file"], other["name"], other["args"]["file"], *found.counters]
    texts += [track.process.process_name or track.name for track in found.tracks.values()]
    assert all(text.isprintable() for text in texts)
    assert all(len(text) <= 220 for text in (one["name"], other["name"], *found.counters))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=40))
@settings(max_examples=examples(60), deadline=None)
def test_any_spans_of_one_thread_are_paired_again(
    tmp_path_factory: pytest.TempPathFactory, times: list[tuple[int, int]]
) -> None:
    """Spans that overlap, touch, nest or have no length come back with their own times, on tracks
    where they nest."""
    spans = [
        {
            "kind": "user",
            "start_ns": start,
            "end_ns": start + length,
            "host": "h",
            "pid": 1,
            "tid": 1,
            "step": place,
        }
        for place, (start, length) in enumerate(times)
    ]
    trace = trace_of({"processes": []}, spans, [])
    path = tmp_path_factory.mktemp("any") / "run.pftrace"
    write_perfetto(trace, path)
    found = Decoded(path)
    assert found.unbalanced == 0
    assert of_slices(found.slices) == rows(trace.spans)
    for track in Tracks(trace):
        assert all(_nests(track.spans.select("start_ns", "end_ns").rows()))


def _nests(times: list[tuple[int, int]]) -> Iterator[bool]:
    for first, (start, end) in enumerate(times):
        for later_start, later_end in times[first + 1 :]:
            yield later_start >= end or later_end <= end or start == end


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1))
def test_whole_numbers_are_coded_as_protobuf_codes_them(values: list[int]) -> None:
    encode = pytest.importorskip(
        "google.protobuf.internal.encoder", reason="needs protobuf"
    )._VarintBytes
    coded = varints(values)
    assert coded.flat().tobytes() == b"".join(map(encode, values))
    assert coded.lengths.tolist() == [len(encode(value)) for value in values]


@given(st.text(), st.integers(2, 50))
def test_a_harmless_name_is_printable_and_short(text: str, most: int) -> None:
    assert harmless(text, most).isprintable()
    assert len(harmless(text, most)) <= most


def test_the_command_names_what_it_wrote_and_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Trace.save(sample().trace, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    spans = f"{sample().trace.num_spans:,} spans"
    for name, file in (
        ("perfetto", "run.pftrace"),
        ("chrome", "run.trace.json.gz"),
        ("parquet", "run.spans.parquet"),
    ):
        assert main(["export", "run", "--to", name]) == 0
        assert f"wrote {file}: {spans}" in " ".join(capsys.readouterr().err.split())
        assert (tmp_path / file).stat().st_size > 1000
    assert main(["export", "run", "--to", "perfetto"]) == 2
    assert "replace it with --force" in capsys.readouterr().err
    assert main(["export", "run", "--to", "svg"]) == 2
    assert "--to perfetto|chrome|parquet|speedscope" in capsys.readouterr().err
    assert main(["export", "run", "stacks.json", "--to", "speedscope"]) == 2
    assert "record the job with: ioprof record --stacks" in capsys.readouterr().err
