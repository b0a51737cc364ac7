"""Bytes that are read and not used: the finding is first where reads are the bound."""

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pytest
import slow_storage
from hooked import environment
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import PROGRAMS
from timeline import timeline
from told import summarise

from ioprof.analysis.reads.read_use import reads_of_ranks, reads_of_workers, repeated_reads
from ioprof.format.run_record import Finding, ReadsOfRanks, ReadsOfWorkers, RepeatedReads
from ioprof.format.schema import RETURNED
from ioprof.format.trace import Trace
from ioprof.instrument.faults import refusal
from ioprof.instrument.hooks.pytorch.sent_batches import content_bytes
from ioprof.model.summary import with_gains
from ioprof.report.run import Run

RATE: Final = 8 << 20
"""Of the disk, per second."""


def findings(
    program: str, tmp_path: Path, *arguments: object, launcher: tuple[object, ...] = ()
) -> tuple[Run, tuple[Finding, ...]]:
    """Of a program whose data is cold on a slow disk."""
    path = PROGRAMS / program
    with slow_storage.throttled_disk(tmp_path) as disk:
        subprocess.run([sys.executable, path, "prepare", disk.path], check=True)
        slow_storage.evict(disk.path)
        disk.throttle(RATE)
        out = tmp_path / "run"
        job = [sys.executable, *launcher, path, disk.path, *arguments]
        command = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", out, "--", *job]
        ended = subprocess.run(
            list(map(str, command)),
            env=environment(None),
            capture_output=True,
            text=True,
            timeout=200,
            preexec_fn=disk.join,
        )
    assert 0 == ended.returncode, ended.stderr
    run = with_gains(Run.load(out))
    return run, run.summary.verdict.findings


def of_code(found: tuple[Finding, ...], code: str) -> Finding:
    """The only one with this code."""
    (told,) = (each for each in found if each.code == code)
    return told


@needs_library
@on_a_quiet_machine
@pytest.mark.parametrize(
    ("program", "steps", "file", "ratio"),
    [
        pytest.param("slices_of_clips.py", 24, "*.pcm", 1 << 6, id="slices of clips"),
        pytest.param("rows_of_groups.py", 24, "rows.bin", 1 << 8, id="rows of groups"),
        pytest.param(
            "rows_of_map.py",
            160,
            "rows.npy",
            1 << 8,
            id="rows of a map",
            marks=pytest.mark.skipif(refusal() is not None, reason=str(refusal())),
        ),
    ],
)
def test_less_of_what_is_read_and_not_used_is_the_first_finding(
    program: str, steps: int, file: str, ratio: int, tmp_path: Path
) -> None:
    """With the file and the ratio, by the sizes that the program knows; of a map the kernel reads
    128 kB around a row of 512 bytes, less what other rows' reads left in memory."""
    run, found = findings(program, tmp_path, 1, steps)
    told, is_mapped = of_code(found, "read_part"), "map" in program
    assert told.subject is not None
    assert ("file", file) == (told.subject.kind, Path(told.subject.name).name)
    assert is_mapped == bool(told.facts.get("mapped"))
    least = ratio / 4 if is_mapped else ratio
    assert least <= told.facts["ratio"] <= ratio
    with comparing_times():
        assert ("storage", told) == (run.summary.verdict.bound_by, found[0])
        assert 2 < (told.gain or 0.0)


@needs_library
@on_a_quiet_machine
def test_batches_that_are_skipped_to_resume_are_the_first_finding(tmp_path: Path) -> None:
    """90 of 120 batches, with their samples."""
    _, found = findings("skip_to_resume.py", tmp_path, 1, 30, 90)
    told = of_code(found, "discard")
    assert [90, 180] == [told.facts[name] for name in ("discarded", "samples")]
    assert told.facts["batches"] >= 120
    with comparing_times():
        assert told == found[0]


@needs_library
@on_a_quiet_machine
def test_an_index_that_each_rank_reads_is_the_first_finding(tmp_path: Path) -> None:
    """Two ranks read the same 32 MB of storage."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run, found = findings("index_for_each_rank.py", tmp_path, 40, launcher=launcher)
    told = of_code(found, "share_reads")
    assert told.subject is not None
    assert ("file", "train.index") == (told.subject.kind, Path(told.subject.name).name)
    facts = [told.facts[name] for name in ("ranks", "once_bytes", "read_bytes")]
    assert [2, 32 << 20, 64 << 20] == facts
    with comparing_times():
        assert ("start-up", told) == (run.summary.verdict.phase, found[0])


@needs_library
@on_a_quiet_machine
@pytest.mark.parametrize("how", ["discard", "divide", "select"])
def test_workers_that_each_read_all_of_a_file_are_told(how: str, tmp_path: Path) -> None:
    """First where their work is the bound, and not where each reads a part."""
    path, out = PROGRAMS / "lines_of_log.py", tmp_path / "run"
    subprocess.run([sys.executable, path, "prepare", tmp_path], check=True)
    job = [sys.executable, path, tmp_path, 2, 2, how]
    command = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", out, "--", *job]
    subprocess.run(list(map(str, command)), env=environment(None), check=True, timeout=200)
    run = with_gains(Run.load(out))
    found = run.summary.verdict.findings
    if how == "divide":
        assert "divide_data" not in [each.code for each in found]
        return
    told = of_code(found, "divide_data")
    assert told.subject is not None
    assert ("log.txt", 2) == (Path(told.subject.name).name, told.facts["workers"])
    assert (tmp_path / "log.txt").stat().st_size == told.facts["bytes"]
    if how == "select":
        assert told.facts["decodes"]
        assert told.facts["calls"] == pytest.approx(2, rel=0.05)
    else:
        assert "calls" not in told.facts
    with comparing_times():
        assert told == found[0]
        assert 1.3 < (told.gain or 0.0) <= 2.1


# ------------------------------------------------------------------------------ what was returned

MB: Final = 1_000_000


def with_reads(drawn: Trace, rows: list[dict[str, Any]], path: str) -> Trace:
    """The trace with further spans, all of one file."""
    spans = pl.concat([drawn.spans, pl.DataFrame(rows, schema=drawn.spans.schema)])
    files = pl.DataFrame([{"file": 0, "path": path}], schema=drawn.files.schema)
    return Trace(drawn.run, spans.sort("start_ns"), files)


def looked_at(read: int, returned: int | None, first: int = 0, kind: str = "read") -> Trace:
    """Four batches of 2 samples, made by a worker that reads so many bytes for each, and `first`
    more for the first; of the last two it is known what they have."""
    at = {"host": "node1", "rank": 0, "pid": 101, "tid": 101}
    rows: list[dict[str, Any]] = []
    for batch in range(4):
        begin_ns = batch * 100
        made = {**at, "batch": batch, "start_ns": begin_ns, "end_ns": begin_ns + 90}
        rows.append({**made, "kind": "fetch", "offset": 2})
        size = read + (0 if batch else first)
        rows.append({**made, "kind": kind, "bytes": size, "file": 0, "source": "storage"})
        known = {**made, "kind": "deliver", "start_ns": begin_ns + 90, "name": RETURNED}
        rows += [{**known, "bytes": returned}] if returned and batch > 1 else []
    drawn = timeline("step 0000\nwait 00..\ncompute ..00")
    return with_reads(drawn, rows, "/data/a.wav")


IS_READ: Final = pl.col("kind").is_in(["read", "fault"])


@pytest.mark.parametrize(
    ("first", "ratio"),
    [
        pytest.param(0, 100.0, id="each batch"),
        pytest.param(400 * MB, 100.0, id="more for the first one"),
        pytest.param(-10 * MB, 75.0, id="nothing for the first one"),
    ],
)
def test_what_is_read_is_compared_with_what_is_returned(first: int, ratio: float) -> None:
    """In the batches that were looked at, and in all: whichever is less."""
    summary = summarise(looked_at(10 * MB, MB // 10, first))
    found = summary.findings.reads.returned
    assert found is not None
    assert (ratio, 2.0, "/data/a.wav") == (found.ratio, found.samples, found.file)
    assert (10 * MB, MB // 10, False) == (found.read_bytes, found.returned_bytes, found.mapped)
    (told,) = (each for each in summary.verdict.findings if each.code == "read_part")
    facts = [told.facts[name] for name in ("file", "read_bytes", "returned_bytes")]
    assert ["/data/a.wav", 5 * MB, MB // 20] == facts
    assert told.facts["of_sample"]
    assert told.facts["stored"]


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(looked_at(10 * MB, None), id="not known what was returned"),
        pytest.param(looked_at(MB, MB // 10), id="few bytes"),
        pytest.param(looked_at(10 * MB, 6 * MB), id="most of what was read"),
        pytest.param(looked_at(10 * MB, MB // 10, kind="fault"), id="a map in order"),
    ],
)
def test_what_is_used_or_not_known_is_not_told(trace: Trace) -> None:
    """How much of what the kernel fetched for a map was touched is not known, unless it was at
    random places."""
    told = [each.code for each in summarise(trace).verdict.findings]
    assert told
    assert "read_part" not in told


def test_a_batch_has_the_bytes_of_all_that_is_in_it() -> None:
    """Tensors and arrays wherever they are stored, texts and numbers; nothing is known of a batch
    with another object, nor of one that is not looked at as a whole."""
    torch = pytest.importorskip("torch")
    image = torch.zeros(10, 10).share_memory_()
    batch = {"image": [image[:5]], "mask": (np.zeros(7, np.uint8),), "name": "abc", "label": 1}
    assert 5 * 10 * 4 + 7 + 3 + 8 == content_bytes(batch)
    assert 0 == content_bytes([])
    unknown = (object(), {1}, np.array([None]), torch.zeros(3).to_sparse())
    assert [None] * 4 == [content_bytes([image, each]) for each in unknown]
    assert content_bytes([0] * 5000) is None


# ------------------------------------------------------------------------- what was read repeatedly


def of_file(
    *reads: tuple[int, int, int, str], passes: int = 1, sampler: str = "RandomSampler"
) -> Trace:
    """Reads of all of a file of 10 MB: for a batch, of a rank, so many times, from a source. Each
    rank begins so many passes over the data."""
    starts = "".join("#="[each % 2] for each in range(passes)) or "."
    drawn = timeline(
        f"step 0000\nstep r1 0000\nwait name=start {starts}\nwait r1 name=start {starts}",
        loaders=[{"sampler": sampler, "purposes": ["train", "step"]}],
    )
    rows = [
        {
            "host": "node1",
            "rank": rank,
            "pid": 101 + 100 * rank,
            "tid": 101 + 100 * rank,
            "kind": "read",
            "batch": batch,
            "start_ns": 2,
            "end_ns": 4,
            "source": source,
            "bytes": 10 * MB,
            "file": 0,
            "offset": 0,
        }
        for batch, rank, times, source in reads
        for _ in range(times)
    ]
    return with_reads(drawn, rows, "/data/a")


def repeated(trace: Trace) -> RepeatedReads | None:
    sums = trace.spans.filter(IS_READ).group_by("file").agg(pl.col("bytes").sum(), end=10 * MB)
    return repeated_reads(trace, IS_READ, sums)


def test_bytes_that_a_rank_reads_again_in_a_pass_are_told() -> None:
    """Four times in the only pass, of which the first is needed; that from memory costs no
    storage."""
    found = repeated(of_file((0, 0, 3, "storage"), (0, 0, 1, "page_cache")))
    assert RepeatedReads("/data/a", 10 * MB, 4.0, 20 * MB, 10 * MB) == found


FOUR: Final = (0, 0, 4, "storage")


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(of_file(FOUR, passes=3), id="several passes"),
        pytest.param(of_file((0, 0, 1, "storage"), (0, 1, 1, "storage")), id="ranks"),
        pytest.param(of_file((0, 0, 1, "storage")), id="once"),
        pytest.param(of_file(FOUR, sampler="_InfiniteConstantSampler"), id="without an end"),
        pytest.param(of_file(FOUR, passes=0), id="passes that are not known"),
    ],
)
def test_each_pass_and_each_rank_may_read_all(trace: Trace) -> None:
    """Then nothing is read again, as far as is known."""
    assert repeated(trace) is None


def read_in_pieces(
    *pids: int, pieces: int = 10, passes: int = 1, in_order: bool = True, sampler: str | None = None
) -> Trace:
    """A file of 10 MB that these workers, numbered by their ids, read in so many pieces each."""
    starts = "".join("#="[each % 2] for each in range(passes))
    workers = [
        {"host": "node1", "pid": 100 + pid, "role": "worker"}
        | {"rank": pid // 100, "worker": pid % 10}
        for pid in pids
    ]
    drawn = timeline(
        f"step 0000\nstep r1 0000\nwait name=start {starts}\nwait r1 name=start {starts}",
        loaders=[{"sampler": sampler or "_InfiniteConstantSampler", "purposes": ["train", "step"]}],
        processes=workers,
    )
    each = {"host": "node1", "kind": "read", "batch": 0, "source": "page_cache"}
    rows = [
        each
        | {"rank": pid // 100, "pid": 100 + pid, "tid": 100 + pid, "file": 0, "bytes": MB}
        | {"start_ns": number, "end_ns": number + 1}
        | {"offset": MB * (number % 10 if in_order else number * 7 % 10)}
        for pid in pids
        for number in range(pieces)
    ]
    return with_reads(drawn, rows, "/data/a")


def by_each_worker(trace: Trace) -> ReadsOfWorkers | None:
    sums = trace.spans.filter(IS_READ).group_by("file").agg(pl.col("bytes").sum(), end=10 * MB)
    return reads_of_workers(trace, IS_READ, sums)


@pytest.mark.parametrize(
    ("trace", "workers"),
    [
        pytest.param(read_in_pieces(1, 2), 2, id="two workers"),
        pytest.param(read_in_pieces(1, 2, 3, pieces=9), 3, id="the last pass is cut short"),
        pytest.param(read_in_pieces(1, 2, 11, 12, passes=2), 2, id="workers that start anew"),
        pytest.param(read_in_pieces(1, 2, pieces=20, passes=2), 2, id="persistent workers"),
        pytest.param(read_in_pieces(1, 101), 2, id="workers of two ranks"),
        pytest.param(read_in_pieces(1), None, id="one worker"),
        pytest.param(read_in_pieces(1, 2, pieces=5), None, id="parts"),
        pytest.param(read_in_pieces(1, 2, pieces=20), None, id="more than once"),
        pytest.param(read_in_pieces(1, 2, in_order=False), None, id="at random"),
        pytest.param(read_in_pieces(1, 2, sampler="RandomSampler"), None, id="by a sampler"),
    ],
)
def test_files_that_each_worker_reads_whole(trace: Trace, workers: int | None) -> None:
    """In order, once in each pass, and by more than one of them."""
    expected = ReadsOfWorkers("/data/a", workers, 10 * MB) if workers else None
    assert expected == by_each_worker(trace)


def decoded(
    number: int,
    *pids: int,
    call: str = "JPEG",
    kept: int = 0,
    late_ns: int = 0,
    passes: int = 1,
    other_bytes: int = 0,
) -> Trace:
    """A file of 10 MB that these workers read whole, so often in a pass of the loader, while each
    makes 4 batches of 2 samples of so many records for a sample: each is decoded in 100 ns and
    transformed in 100 ns, and takes 1000 ns. Each last of these records has further transforms
    (`kept`) and takes so much longer. Of another file the first worker reads so many bytes.
    """
    drawn = read_in_pieces(*pids, pieces=10 * passes)
    rows: list[dict[str, Any]] = []
    for place, pid in enumerate(pids):
        at = {"host": "node1", "rank": pid // 100, "pid": 100 + pid, "tid": 100 + pid}
        for turn in range(4):
            batch = {**at, "batch": 8 * turn + place}
            begin_ns = 20_000 * turn
            end_ns = begin_ns + 2 * (1000 * number + late_ns)
            fetch = {"kind": "fetch", "start_ns": begin_ns, "end_ns": end_ns}
            rows.append({**batch, **fetch, "offset": 2})
            for record in range(2 * number):
                record_ns = begin_ns + 1000 * record + late_ns * (record // number)
                done = [("transform" if call == "Compose" else "decode", call), ("transform", None)]
                done += [("transform", None)] * (kept if record % number == number - 1 else 0)
                rows += [
                    {**batch, "kind": kind, "name": name}
                    | {"start_ns": record_ns + after_ns, "end_ns": record_ns + after_ns + 100}
                    for after_ns, (kind, name) in zip(range(0, 1000, 100), done, strict=False)
                ]
        other = {"kind": "read", "file": 1, "offset": 0, "bytes": other_bytes, "batch": 0}
        rows += [] if place or not other_bytes else [{**at, **other, "start_ns": 0, "end_ns": 1}]
    return with_reads(drawn, rows, "/data/a")


@pytest.mark.parametrize(
    ("trace", "workers", "transforms", "rest"),
    [
        pytest.param(decoded(2, 1, 2), 2, 2, 2, id="all"),
        pytest.param(decoded(4, 1, 2, 3, 4, passes=5), 4, 4, 4, id="a stream without an end"),
        pytest.param(decoded(2, 1, 2, 101, 102), 2, 2, 2, id="divided among ranks alone"),
        pytest.param(decoded(4, 1, 2, 101, 102), 4, 4, 4, id="workers of two ranks"),
        pytest.param(decoded(4, 1, 2, 3, 4, kept=1), 4, 2.5, 4, id="transforms of samples"),
        pytest.param(decoded(4, 1, 2, 3, 4, late_ns=2400), 4, 4, 1.75, id="other work for samples"),
        pytest.param(decoded(2, 1, 2, call="zlib.decompress"), 2, 2, 2, id="another decoder"),
        pytest.param(decoded(2, 1, 2, call="Compose"), 2, 2, 2, id="a transform with a name"),
    ],
)
def test_what_workers_do_for_each_record_is_counted_for_each_sample(
    trace: Trace, workers: int, transforms: float, rest: float
) -> None:
    """And by the time of it: what is done for records that are delivered is done once."""
    found = by_each_worker(trace)
    assert found is not None
    assert found.repeated is not None
    assert (workers, workers) == (found.repeated.calls, found.repeated.workers)
    by_cause = [found.repeated.by_cause[name] for name in ("decode", "transform", "loader")]
    assert [workers, transforms, rest] == pytest.approx(by_cause)


@pytest.mark.parametrize(
    ("trace", "is_whole"),
    [
        pytest.param(decoded(1, 1, 2), True, id="one record for a sample"),
        pytest.param(decoded(1, 1, 2, passes=5), False, id="streams, each delivered whole"),
        pytest.param(decoded(2, 1, 2, 3, 4), True, id="another number"),
        pytest.param(decoded(2, 1, 2, other_bytes=30 * MB), True, id="mostly another file"),
        pytest.param(read_in_pieces(1, 2), True, id="not known"),
    ],
)
def test_work_that_no_other_worker_does_is_not_repeated(trace: Trace, is_whole: bool) -> None:
    """Whoever reads all of a stream several times in a pass may deliver all of it."""
    found = by_each_worker(trace)
    assert is_whole == (found is not None)
    assert found is None or found.repeated is None


def test_work_for_samples_of_other_workers_is_taken_away() -> None:
    """All of it, and no more: what is done for samples that are delivered stays."""
    trace = decoded(4, 1, 2, 3, 4, kept=1)
    loop = {"host": "node1", "rank": 0, "pid": 100, "tid": 100}
    begins_ns = [40 + 20_000 * turn for turn in range(4)]
    rows = [
        {**loop, "kind": kind, name: 8 * turn, "start_ns": begin_ns, "end_ns": begin_ns + took_ns}
        for kind, name, took_ns in (("step", "step", 20_000), ("wait", "batch", 8000))
        for turn, begin_ns in enumerate(begins_ns)
    ]
    verdict = summarise(with_reads(trace, rows, "/data/a")).verdict
    told = of_code((*verdict.findings, *verdict.candidates), "divide_data")
    assert {"calls": 4.0, "workers": 4, "decodes": True}.items() <= told.facts.items()
    assert told.change is not None
    assert {"decode": 4.0, "transform": 2.5}.items() <= told.change.speeds.items()
    assert not told.is_bound


def before_steps(*parts: tuple[int, int, int, str]) -> Trace:
    """Reads before the first step: of a rank, from one megabyte of a file to another, from a
    source."""
    drawn = timeline("step ....0000\nstep r1 ....0000\ncompute ......00")
    rows = [
        {
            "host": "node1",
            "rank": rank,
            "pid": 100 + 100 * rank,
            "tid": 100 + 100 * rank,
            "kind": "read",
            "start_ns": 2,
            "end_ns": 22,
            "source": source,
            "file": 0,
            "bytes": (until - first) * MB,
            "offset": first * MB,
        }
        for rank, first, until, source in parts
    ]
    return with_reads(drawn, rows, "/data/i")


def test_what_each_rank_of_a_node_reads_from_storage_is_told() -> None:
    found = reads_of_ranks(before_steps((0, 0, 40, "storage"), (1, 0, 40, "storage")), 40)
    assert ReadsOfRanks("/data/i", 2, 40 * MB, 80 * MB, 20e-9) == found


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(before_steps((0, 0, 40, "storage"), (1, 40, 80, "storage")), id="parts"),
        pytest.param(before_steps((0, 0, 40, "storage"), (1, 0, 40, "page_cache")), id="memory"),
        pytest.param(before_steps((0, 0, 40, "storage"), (0, 0, 40, "storage")), id="one rank"),
        pytest.param(before_steps((0, 0, 4, "storage"), (1, 0, 4, "storage")), id="few bytes"),
    ],
)
def test_what_storage_delivers_once_is_not_shared(trace: Trace) -> None:
    """Ranks that read parts of a file, or find in memory what another one read."""
    assert reads_of_ranks(trace, 40) is None
