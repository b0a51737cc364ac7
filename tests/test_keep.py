"""`record --keep`, `ioprof snapshot`: the last minutes are as in a full recording, the sums of all,
the spool bounded."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from captures import allocated_bytes, recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import ioprof as run_ioprof
from jobs import start, wait_until
from repository import PROGRAMS

from ioprof import clock
from ioprof.errors import CommandError
from ioprof.format.layout import RECORD_DTYPE
from ioprof.format.run_record import WholeJob
from ioprof.format.trace import Trace
from ioprof.ingest import dropping, read_spool
from ioprof.ingest.dropping import FileDropper
from ioprof.ingest.job_sums import JobSums, merged_jobs
from ioprof.ingest.kept_state import KEPT, KeptState, locked
from ioprof.ingest.spool_copy import copy_spool
from ioprof.instrument.host import host
from ioprof.instrument.ring import KNOWN_STRINGS as KNOWN_BY_WRITER
from ioprof.instrument.span import emit, intern
from ioprof.recording.keeping import Keeper, parse_keep, repeat_drops
from ioprof.recording.run_folder import MARKER
from ioprof.recording.spool import JOB
from ioprof.report.run import Run
from ioprof.report.texts.markdown import markdown
from ioprof.report.texts.statements import statements
from ioprof.report.texts.whole_job import length
from ioprof.watching.target import only_target

STEPS = 3000
STEP_NS = 1_000_000
KNOWN = 4096
"""Strings that a writer is taken to know."""
WRITER = """
import itertools, sys, time
from pathlib import Path
from ioprof.instrument import recorder
from ioprof.instrument.span import intern, span
recorder.start(Path(sys.argv[1]))
for number in itertools.count():
    with span("read", step=number, file=intern(f"/data/{number}")):
        pass
    if number % 20 == 0:
        time.sleep(0.001)
"""


def make_steps(numbers: range, zero_ns: int) -> None:
    """Steps of 1 ms, each with a wait for its batch, which was fetched three steps before with two
    reads."""
    for step in numbers:
        at_ns = zero_ns + step * STEP_NS
        fetched_ns = at_ns - 3 * STEP_NS
        own = intern(f"/data/{step}")
        for place, source in enumerate((1, 2)):
            emit(
                "read",
                fetched_ns + place,
                fetched_ns + place + 7,
                bytes=10,
                file=own,
                source=source,
            )
        emit("fetch", fetched_ns, fetched_ns + STEP_NS, batch=step)
        emit("wait", at_ns, at_ns + 100, step=step, batch=step)
        emit("tokenize", at_ns, at_ns + 5, "mine")
        emit("step", at_ns, at_ns + STEP_NS - 1, step=step)


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two threads of a rank, 36,000 spans, of which the chunks that are full are flushed.

    The thread with the later steps comes last: a thread that ends leaves its chunk to the next one,
    and nothing could be dropped of a chunk that begins with the last steps.
    """
    folder = tmp_path_factory.mktemp("full")
    with recorded(folder, True, rank=0):
        zero_ns = clock.monotonic_ns()
        other = threading.Thread(target=make_steps, args=(range(STEPS, 2 * STEPS), zero_ns))
        make_steps(range(STEPS), zero_ns)
        other.start()
        other.join()
    return folder


def rows(trace: Trace) -> pl.DataFrame:
    """All spans in a comparable form: absolute times, paths for numbers of files."""
    zero_ns = trace.run.clocks.zero_monotonic_ns or 0
    spans = trace.spans.with_columns(
        pl.col("start_ns") + zero_ns, pl.col("end_ns") + zero_ns, pl.col("name").cast(pl.String)
    )
    joined = spans.join(trace.files.select("file", "path"), on="file", how="left").drop("file")
    return joined.sort("start_ns", "end_ns", "kind", "tid", "step", "path")


def keep(folder: Path, cut_ns: int, end_ns: int, cuts: list[int] | None = None) -> KeptState:
    """Drop what was over before each of the cuts, as a keeper does."""
    state = KeptState(host(), clock.anchor().offset_ns, keep_ns=end_ns - cut_ns, end_ns=end_ns)
    droppers = [FileDropper(path) for path in folder.glob("*.ring")]
    for before_ns in cuts or [cut_ns]:
        for dropper in droppers:
            dropper.plan(before_ns, state.sums)
            state.done[dropper.path.name] = dropper.done
        state.save(folder)
        for dropper in droppers:
            dropper.carry_out()
    return state


@settings(max_examples=6)
@given(places=st.lists(st.integers(-10, 2 * STEPS + 10), min_size=1, max_size=4).map(sorted))
def test_the_window_is_that_of_a_full_recording(
    tmp_path_factory: pytest.TempPathFactory, spool: Path, places: list[int]
) -> None:
    """Whatever was dropped when: spans that begin in the window are those of the full recording,
    and the sums are of all of it."""
    full = read_spool(spool)
    zero_ns = full.run.clocks.zero_monotonic_ns or 0
    folder = tmp_path_factory.mktemp("kept") / "spool"
    shutil.copytree(spool, folder)
    cuts = [zero_ns + place * STEP_NS for place in places]
    end_ns = zero_ns + (2 * STEPS + 20) * STEP_NS
    keep(folder, cuts[-1], end_ns, cuts)
    found = read_spool(folder)
    job = found.run.whole_job
    assert job is not None
    assert () == found.run.capture.damaged
    expected = rows(full).filter(pl.col("start_ns") >= cuts[-1])
    own, whole = rows(found), rows(full)
    assert expected.filter(pl.col("kind") != "step").equals(own.filter(pl.col("kind") != "step"))
    steps = expected.filter(pl.col("kind") == "step")
    assert steps.tail(len(steps) - job.steps_left_out).equals(own.filter(pl.col("kind") == "step"))
    assert job.steps_left_out <= 3
    by_kind = whole.group_by("kind", "source").agg(
        pl.len(), pl.col("bytes").sum(), took=(pl.col("end_ns") - pl.col("start_ns")).sum()
    )
    sums = {
        (each.kind, each.source): (each.spans, each.bytes, round(each.took_s * 1e9))
        for each in job.kinds
    }
    assert sums == {row[:2]: row[2:] for row in by_kind.rows()}
    assert job.spans == len(whole) == 12 * STEPS
    assert (2 * STEPS, 40 * STEPS) == (
        sum(each.steps for each in job.minutes),
        sum(each.bytes for each in job.minutes),
    )
    shutil.rmtree(folder)


def test_steps_whose_batch_was_begun_before_are_left_out(tmp_path: Path, spool: Path) -> None:
    """A batch was fetched three steps before it was used: the first three steps of the window have
    no reads in it."""
    shutil.copytree(spool, tmp_path / "spool")
    first = STEPS // 2
    zero_ns = read_spool(spool).run.clocks.zero_monotonic_ns or 0
    # the first span is the read for step 0, three steps before it
    cut_ns = zero_ns + (first + 3) * STEP_NS
    keep(tmp_path / "spool", cut_ns, cut_ns + 4 * STEPS * STEP_NS)
    found = read_spool(tmp_path / "spool")
    assert found.run.whole_job is not None
    assert (3, first + 3) == (
        found.run.whole_job.steps_left_out,
        found.spans.filter(pl.col("kind") == "step")["step"].min(),
    )


@pytest.mark.parametrize("carried_out", [0, 1], ids=["nothing dropped", "all dropped"])
def test_a_kill_between_summing_and_dropping_counts_nothing_twice(
    tmp_path: Path, spool: Path, carried_out: int
) -> None:
    """Sums are written before the spans go; `gather` drops again what they include."""
    folder = tmp_path / "spool"
    shutil.copytree(spool, folder)
    zero_ns = read_spool(spool).run.clocks.zero_monotonic_ns or 0
    cut_ns = zero_ns + STEPS // 2 * STEP_NS
    state = KeptState(host(), 0, keep_ns=1, end_ns=None)
    for path in folder.glob("*.ring"):
        dropper = FileDropper(path)
        assert dropper.plan(cut_ns, state.sums)
        state.done[path.name] = dropper.done
        state.save(folder)
        if carried_out:
            dropper.carry_out()
    assert state.sums.spans > 0
    repeat_drops(folder)
    repeat_drops(folder)
    job = read_spool(folder).run.whole_job
    assert job is not None
    assert 12 * STEPS == job.spans


def test_the_spool_is_bounded_and_so_are_the_strings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many spans and paths there were, the file takes a few chunks: strings that the writer
    forgot are dropped, too, but that of a file that stays open is not.
    """
    assert dropping.KNOWN_STRINGS == KNOWN_BY_WRITER
    monkeypatch.setattr(dropping, "KNOWN_STRINGS", KNOWN)
    state, most, base_ns = KeptState(host(), 0, keep_ns=1), 0, clock.monotonic_ns()
    with recorded(tmp_path, True):
        (path,) = tmp_path.glob("*.ring")
        dropper, opened = FileDropper(path), intern("/stays/open")
        for place in range(20 * KNOWN):
            now_ns = base_ns + place
            emit(
                "read",
                now_ns,
                now_ns + 1,
                bytes=1,
                file=intern(f"/{place}") if place % 16 else opened,
            )
            if place % 8_000 == 0:
                dropper.plan(now_ns, state.sums)
                dropper.carry_out()
                most = max(most, allocated_bytes([path]))
        state.keep_ns, state.end_ns = 1000, base_ns + 20 * KNOWN
        state.save(tmp_path)
    assert path.stat().st_size > 2 * most
    found = read_spool(tmp_path)
    assert found.run.whole_job is not None
    assert () == found.run.capture.damaged
    assert 20 * KNOWN == found.run.whole_job.spans
    names = found.spans.join(found.files, on="file")["path"]
    assert {"/stays/open"} < set(names)
    assert len(names) == len(found.spans) == 1000


@pytest.mark.job
def test_a_copy_while_a_process_writes_is_whole(tmp_path: Path) -> None:
    """Copied at any moment, with a keeper at work: no span is lost, torn or double from the first
    that is kept to the last."""
    spool = tmp_path / "spool"
    spool.mkdir()
    keeper = Keeper(spool, 200_000_000)
    command = [sys.executable, "-c", WRITER, spool]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as writer:
        try:
            wait_until(
                lambda: sum(path.stat().st_blocks for path in spool.glob("*.ring")) * 512 > 1 << 20
            )
            for number in range(4):
                keeper.drop_old(clock.monotonic_ns())
                folder = tmp_path / f"copy-{number}"
                folder.mkdir()
                copy_spool(spool, folder, host())
                found = read_spool(folder)
                steps = found.spans["step"].sort()
                assert () == found.run.capture.damaged
                assert steps.to_list() == list(range(steps[0], steps[0] + len(steps)))
                assert found.run.whole_job is not None
                assert found.run.whole_job.spans == steps[-1] + 1
                assert all(process.closed for process in found.run.processes)
        finally:
            writer.kill()


@pytest.mark.job(every=4)
def test_a_job_of_some_seconds(tmp_path: Path) -> None:
    """A snapshot has the last seconds so far; the launcher is killed, and `gather` makes the run;
    its sums are of all steps."""
    job = [sys.executable, PROGRAMS / "step_until.py", "enough"]
    recording = start("record", "--keep", "5s", "--out", "run", "--", *job, cwd=tmp_path)
    wait_until(
        lambda: any(
            json.loads(path.read_bytes())["sums"]["spans"]
            for path in tmp_path.glob(f"tmp/ioprof-*/{KEPT}")
        )
    )
    snapped = run_ioprof("snapshot", "run", "--out", "now", cwd=tmp_path)
    assert 0 == snapped.code, snapped.err
    (spool,) = tmp_path.glob("tmp/ioprof-*")
    os.kill(recording.pid, signal.SIGKILL)
    (tmp_path / "enough").touch()
    made, _ = recording.communicate()  # ends when the job does, which has the other end of the pipe
    gathered = run_ioprof("gather", "run", cwd=tmp_path)
    assert 0 == gathered.code, gathered.err
    assert not spool.exists()
    now, run = Trace.load(tmp_path / "now"), Trace.load(tmp_path / "run")
    assert now.run.whole_job is not None
    assert run.run.whole_job is not None
    assert [int(made)] * 3 == [
        run.run.whole_job.num_spans(kind) for kind in ("step", "fetch", "wait")
    ]
    assert ("running", False, True) == (
        now.run.status,
        now.run.whole_job.ended,
        now.run.whole_job.is_part,
    )
    for trace in (now, run):
        steps = trace.spans.filter(pl.col("kind") == "step").sort("step")
        first, last = steps["start_ns"].min(), steps["end_ns"].max()
        assert isinstance(first, int)
        assert isinstance(last, int)
        assert last - first < 5.5e9
        assert steps["step"].to_list() == list(
            range(steps["step"][0], steps["step"][0] + len(steps))
        )
    assert "The last 5 s of " in " ".join(snapped.out.split())
    assert "so far, of a job that goes on; of all of it: " in " ".join(snapped.out.split())
    found = Run.load(tmp_path / "run")
    part = "the last 5 s of"
    texts = [markdown(found.summary, found.steps), (tmp_path / "run/report.html").read_text()]
    texts += [f"{each.label} {each.text}" for each in statements(found.summary)[:1]]
    assert all(part in text.replace("The last", "the last") for text in texts)
    summary = json.loads(found.summary.to_json())
    assert int(made) == sum(
        each["spans"] for each in summary["whole_job"]["kinds"] if each["kind"] == "step"
    )


@pytest.mark.job(every=4)
def test_a_shorter_job_is_kept_whole(tmp_path: Path) -> None:
    """Its figures are of all of it, and nothing says otherwise; there is nothing to take a snapshot
    of any more."""
    ended = run_ioprof(
        "record",
        "--keep",
        "10m",
        "--out",
        "run",
        "--",
        sys.executable,
        PROGRAMS / "step_until.py",
        ".",
        cwd=tmp_path,
    )
    assert 0 == ended.code, ended.err
    run = Trace.load(tmp_path / "run")
    assert run.run.whole_job is not None
    assert (False, 0) == (run.run.whole_job.is_part, run.run.whole_job.steps_left_out)
    assert (
        int(ended.out.split()[0])
        == run.run.whole_job.num_spans("step")
        == len(run.spans.filter(pl.col("kind") == "step"))
    )
    assert "of all of it" not in ended.out + ended.err
    refused = run_ioprof("snapshot", "run", cwd=tmp_path)
    assert (2, "ioprof report run") == (refused.code, refused.err.strip()[-17:])


def test_what_a_snapshot_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no recording goes on, one line says what to type; a recording whose processes are gone
    is for `gather`."""
    (tmp_path / "spool").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "spool" / JOB).write_text('{"launcher": [1, 1], "out": "run"}')
    (tmp_path / "run" / MARKER).write_text(
        json.dumps({"spool": str(tmp_path / "spool"), "host": host()})
    )
    monkeypatch.chdir(tmp_path)
    for argument, what in (
        ("nowhere", "ioprof record --out nowhere"),
        ("4194304", "no such process"),
        ("run", "ioprof gather"),
    ):
        with pytest.raises(CommandError, match=what) as refused:
            only_target(argument)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600), ("30s", 30), ("1.5h", 5400), ("2d", 172800), (" 15 min ", 900)],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    """A number and a unit."""
    assert seconds * 1e9 == parse_keep(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "m",
        "-5m",
        "1e3s",
        "4s",
        "0m",
        "31d",
        "10 weeks",
        "٣m",
        "nan s",
        "m" * 5000,
        "\x1b[31m",
    ],
)
def test_nonsense_is_refused_before_the_job_starts(text: str, tmp_path: Path) -> None:
    """One clear line, that is safe to print, and says what to type."""
    with pytest.raises(CommandError) as refused:
        parse_keep(text)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 200
    assert "--keep" in str(refused.value)


damaged = st.sampled_from(
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"format": "ioprof.spool.kept/1"}',
        b'{"format": "ioprof.spool.kept/2"}',
        b"[" * 9999,
    ]
)


@given(
    data=damaged,
    changes=st.dictionaries(
        st.sampled_from(["sums", "done", "keep_ns", "removing", "end_ns"]),
        st.integers() | st.text(),
    ),
)
def test_a_damaged_state_is_none(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, changes: dict[str, Any]
) -> None:
    """A spool with a damaged file of sums is read as one that was kept whole; no file outside of it
    is ever touched."""
    folder = tmp_path_factory.mktemp("state")
    (folder / KEPT).write_bytes(data)
    assert KeptState.load(folder) is None
    KeptState(host(), 0, keep_ns=5).save(folder)
    whole = json.loads((folder / KEPT).read_bytes())
    (folder / KEPT).write_text(json.dumps({**whole, **changes, "removing": ["../precious.ring"]}))
    (folder.parent / "precious.ring").write_text("mine")
    repeat_drops(folder)
    assert "mine" == (folder.parent / "precious.ring").read_text()


def test_sums_are_the_same_in_any_order_and_bounded(tmp_path: Path) -> None:
    """Of a job of a week: adding, merging and writing down give the same; a minute becomes longer,
    so that they are at most 128."""
    import numpy as np

    spans = np.zeros(20_000, RECORD_DTYPE)
    spans["start_ns"] = np.linspace(1, 7 * 86400e9, len(spans)).astype(np.int64)
    spans["end_ns"], spans["bytes"], spans["kind"], spans["source"] = (
        spans["start_ns"] + 5,
        3,
        5,
        np.arange(len(spans)) % 4,
    )
    at_once, merged = JobSums(), JobSums()
    at_once.add(spans)
    for part in reversed(np.array_split(spans, 17)):
        other = JobSums()
        other.add(part)
        merged.merge(JobSums.from_dict(json.loads(json.dumps(other.to_dict()))))
    assert at_once.by_kind() == merged.by_kind()
    assert at_once.by_minute() == merged.by_minute()
    assert len(at_once.by_minute()) <= 128
    assert len(spans) == sum(each.reads for each in at_once.by_minute()) == at_once.spans
    parts = [
        WholeJob(keep_s=60, window_s=60, job_s=each, spans=3, kinds=at_once.by_kind())
        for each in (90, 100)
    ]
    found = merged_jobs([parts[0], None, parts[1]])
    assert found is not None
    assert (100, 6, 2 * len(spans)) == (found.job_s, found.spans, found.num_spans("read"))


def test_only_one_drops_or_copies(tmp_path: Path) -> None:
    """A keeper does not wait for a snapshot."""
    with locked(tmp_path, wait=True) as first, locked(tmp_path, wait=False) as second:
        assert (True, False) == (first, second)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (10, "10 s"),
        (0.25, "0.2 s"),
        (600, "10 min"),
        (11_520, "3 h 12 min"),
        (90_000, "1 d 1 h"),
        (59.96, "1 min"),
    ],
)
def test_lengths_are_said_in_two_units(seconds: float, text: str) -> None:
    """The two largest."""
    assert text == length(seconds)
