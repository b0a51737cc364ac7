"""`ioprof watch`: what it says of a job that goes on is what the run folder says afterwards, and
nothing disturbs it."""

import io
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from jobs import ioprof as run_ioprof
from jobs import start, wait_until
from perfetto_files import Decoded, of_slices, rows
from preload import needs_library
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import PROGRAMS, ROOT
from rich.console import Console

from ioprof import clock
from ioprof.converters import GenerateOptions, generate
from ioprof.format.layout import CHUNK_HEADER_DTYPE, FILE_HEADER_DTYPE, RECORD_DTYPE
from ioprof.format.schema import CAUSES, KINDS
from ioprof.format.wire_format import (
    CHUNK_BYTES,
    CHUNK_HEADER_BYTES,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    SLOTS,
)
from ioprof.interchange.perfetto import write_perfetto
from ioprof.recording.run_folder import MARKER
from ioprof.report.run import Run
from ioprof.watching.follower import Follower
from ioprof.watching.live import Live
from ioprof.watching.metrics import families, metrics_text
from ioprof.watching.screen import line, screen
from ioprof.watching.spool import LiveSpool, News, Who
from ioprof.watching.target import targets
from ioprof.watching.watched_job import Totals

HOSTILE = b'<script>\x1b[31m\xff\xe2\x80\xae\r\n"\\' + b"y" * 4000


@dataclass
class Watched:
    """A job that was watched by this process and by the command."""

    live: Live
    run: Run
    printed: str
    messages: str
    code: int
    metrics: list[str] = field(default_factory=list)
    before_end: int = 0
    """Steps that were known before the job had ended."""


def follow(live: Live, spool: LiveSpool) -> None:
    until_ns = clock.monotonic_ns()
    for news in spool.look():
        live.add(news)
    live.settle(until_ns)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return watch_a_job(tmp_path_factory.mktemp("watched"))


def watch_a_job(folder: Path) -> Watched:
    generate(folder / "tree", GenerateOptions(images=80, classes=4))
    job = [sys.executable, PROGRAMS / "train_on_files.py", folder / "tree", 2, 80]
    live, metrics, before_end = Live(), [], 0
    recording = start("record", "--out", "run", "--", *job, cwd=folder)
    wait_until(lambda: (folder / "run" / MARKER).exists() or recording.poll() is not None)
    with subprocess.Popen(
        [sys.executable, "-m", "ioprof", "watch", "run", "--every", "0.5", "--prometheus", "0"],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "100"},
    ) as command:
        (target,) = targets(str(folder / "run"))
        spool = LiveSpool(target.spool)
        assert command.stderr is not None
        url = command.stderr.readline().split()[-1]
        while recording.poll() is None:
            follow(live, spool)
            before_end = max(
                before_end,
                (
                    live.ranks[0].steps
                    if 0 in live.ranks and not (folder / "run/run.json").exists()
                    else 0
                ),
            )
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    metrics.append(answer.read().decode())
            except OSError:
                pass
            time.sleep(0.1)
        follow(live, spool)
        spool.close()
        printed, messages = command.communicate(timeout=60)
    _, errors = recording.communicate()
    assert recording.returncode == 0, errors
    return Watched(
        live, Run.load(folder / "run"), printed, messages, command.returncode, metrics, before_end
    )


@pytest.mark.job(every=4)
@needs_library
def test_sums_are_those_of_the_run_folder(watched: Watched) -> None:
    """Every span is counted once although chunks are flushed meanwhile; bytes by source, steps and
    batches are those of the run."""
    live, trace = watched.live, watched.run.trace
    kinds = Counter(
        dict(trace.spans.filter(pl.col("kind") != "sampler").group_by("kind").len().rows())
    )
    # which another program writes
    assert live.spans - live.skipped >= sum(kinds.values()) - kinds["fault"]
    assert live.skipped == 0
    reads = trace.spans.filter(pl.col("kind") == "read", pl.col("rank").is_not_null())
    by_source = {str(source): (number, size) for source, number, size in _sums(reads)}
    sums = live.ranks[0]
    assert {source: (sums.reads[source], sums.bytes[source]) for source in sums.reads} == by_source
    assert (sums.steps, sums.step_ns) == (len(watched.run.steps), _length(watched.run.steps))
    assert sums.samples == trace.spans.filter(pl.col("kind") == "fetch")["offset"].sum()
    assert len(live.workers) >= 2
    assert sum(worker.batches for worker in live.workers.values()) == kinds["fetch"]
    slowest = reads.select((pl.col("end_ns") - pl.col("start_ns")).max()).item()
    assert live.slowest[0].took_ns == slowest
    assert 0 < watched.before_end


def _sums(reads: pl.DataFrame) -> list[tuple[Any, ...]]:
    return reads.group_by("source").agg(pl.len(), pl.col("bytes").sum()).rows()


def _length(steps: pl.DataFrame) -> int:
    return int((steps["end_ns"] - steps["start_ns"]).sum())


@needs_library
@on_a_quiet_machine
def test_causes_so_far_are_near_those_of_the_report(tmp_path: Path) -> None:
    """The estimate of each cause is within 5 points of its share in the report, if waiting for
    ranks counts as exchange."""
    watched = watch_a_job(tmp_path)
    sums, causes = (
        watched.live.ranks[0],
        {entry.cause: entry.share or 0.0 for entry in watched.run.summary.steps.causes},
    )
    assert sum(sums.cause_ns.values()) == sums.step_ns
    causes["exchange"] += causes.pop("straggler")
    estimated = {
        cause: sums.cause_ns[cause] / sums.step_ns for cause in CAUSES if cause != "straggler"
    }
    with comparing_times():
        assert estimated == pytest.approx(causes, abs=0.05)


@pytest.mark.job(every=4)
@needs_library
def test_the_command_prints_lines_and_says_that_the_job_ended(watched: Watched) -> None:
    lines = watched.printed.splitlines()
    assert watched.code == 0, watched.messages
    assert all(" steps, " in each for each in lines[1:])
    assert lines[-1].startswith(f"{watched.live.ranks[0].steps} steps, ")
    assert "the job has ended" in watched.messages
    assert "next: ioprof report" in watched.messages


@pytest.mark.job
@needs_library
def test_metrics_are_parsed_by_the_client_library(watched: Watched) -> None:
    """Names, types and labels follow Prometheus's conventions, and counters never fall.

    The last text is of another watcher, which read at other times, and so may charge some waits to
    another cause.
    """
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    last = metrics_text(families(watched.live, "run", False, 0))
    before: dict[Any, float] = {}
    seen = set()
    for text in [*watched.metrics, last]:
        for family in parser.text_string_to_metric_families(text):
            seen.add((family.name, family.type))
            for sample in family.samples:
                assert "job" in sample.labels
                assert (
                    family.name == "ioprof_job_running"
                    or "spans" in family.name
                    or {"rank", "host"} <= sample.labels.keys()
                )
                key = sample.name, tuple(sorted(sample.labels.items()))
                is_divided = text is last and sample.name == "ioprof_cause_seconds_total"
                assert family.type == "gauge" or is_divided or sample.value >= before.get(key, 0)
                before[key] = sample.value
    assert ("ioprof_read_bytes", "counter") in seen
    assert ("ioprof_storage_read_latency_seconds", "histogram") in seen
    (steps,) = (value for (name, _), value in before.items() if name == "ioprof_steps_total")
    assert steps == watched.live.ranks[0].steps
    buckets = [
        value
        for (name, labels), value in before.items()
        if name.endswith("_bucket") and ("le", "+Inf") in labels
    ]
    sums = watched.live.ranks[0]
    assert buckets == [sums.reads["storage"] + sums.reads["unknown"]]


@pytest.mark.job(every=4)
@needs_library
def test_a_killed_recording_is_watched_to_its_end(tmp_path: Path) -> None:
    """ioprof is killed, the job goes on for a while: `watch` ends with the job and names the
    command that makes the run folder."""
    job = [
        sys.executable,
        "-c",
        "import time; [(open('/etc/hosts').read(), time.sleep(0.01)) for _ in range(300)]",
    ]
    recording = start("record", "--out", "run", "--", *job, cwd=tmp_path)
    wait_until(lambda: (tmp_path / "run" / MARKER).exists() or recording.poll() is not None)
    watching = start("watch", recording.pid, "--every", "0.3", cwd=tmp_path)
    try:
        assert watching.stdout is not None
        watching.stdout.readline()
        recording.kill()
        ended = time.monotonic()
        _, messages = watching.communicate(timeout=60)
        assert time.monotonic() - ended > 0.5
    finally:
        recording.kill()
        recording.communicate()
    assert watching.returncode == 0
    assert "ended without making a run folder" in messages
    assert "next: ioprof gather" in messages


@pytest.mark.job
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nothing", "nothing is recorded there"),
        ("999999999", "no such process"),
        (str(os.getpid()), "is not recorded by ioprof"),
    ],
    ids=["folder", "no process", "own process"],
)
def test_what_cannot_be_watched_is_said(tmp_path: Path, what: str, message: str) -> None:
    ended = run_ioprof("watch", what, cwd=tmp_path)
    assert (ended.code, message in ended.err, len(ended.err.splitlines())) == (2, True, 1)


# ---------------------------------------------------------------------- capture files, byte by byte


class Written:
    """A capture file that a test writes as the C writer does: slots first, then the count; full
    chunks are flushed to the end."""

    def __init__(self, path: Path, homes: int = 2) -> None:
        self.path, self.homes = path, homes
        self.data = bytearray(HEADER_BYTES + homes * CHUNK_BYTES)
        header = np.zeros(1, FILE_HEADER_DTYPE)
        header["magic"], header["version"], header["host"], header["pid"] = (
            MAGIC,
            FORMAT_VERSION,
            b"h",
            7,
        )
        self.data[: header.nbytes] = header.tobytes()
        self.counts, self.flushes = [0] * homes, [0] * homes
        for home in range(homes):
            self._state(home, home + 1)
        self.save()

    def _state(self, place: int, origin: int, home: int | None = None) -> None:
        home = place if home is None else home
        head = np.zeros(1, CHUNK_HEADER_DTYPE)
        head["state"], head["origin"] = self.flushes[home] << 32 | self.counts[home], origin
        start = HEADER_BYTES + place * CHUNK_BYTES
        self.data[start : start + CHUNK_HEADER_BYTES] = head.tobytes()

    def emit(self, home: int, number: int) -> None:
        if self.counts[home] == SLOTS:
            self.flush(home)
        record = np.zeros(1, RECORD_DTYPE)
        record["kind"], record["start_ns"], record["end_ns"] = (
            KINDS.index("user") + 1,
            number + 1,
            number + 2,
        )
        start = (
            HEADER_BYTES
            + home * CHUNK_BYTES
            + CHUNK_HEADER_BYTES
            + self.counts[home] * RECORD_DTYPE.itemsize
        )
        self.data[start : start + RECORD_DTYPE.itemsize] = record.tobytes()
        self.counts[home] += 1
        self._state(home, home + 1)

    def flush(self, home: int) -> None:
        start = HEADER_BYTES + home * CHUNK_BYTES
        self.data += self.data[start : start + CHUNK_BYTES]
        self.flushes[home] += 1
        self.counts[home] = 0
        self._state(home, home + 1)

    def save(self) -> None:
        self.path.write_bytes(self.data)


@pytest.mark.job
def test_every_record_is_read_once_however_chunks_are_flushed(tmp_path: Path) -> None:
    """Looks at any time find each record exactly once: within chunks, after one flush, after
    several."""
    random = np.random.default_rng(5)
    written, emitted, found = Written(tmp_path / "x.ring"), 0, []
    follower = Follower(tmp_path / "x.ring")
    for number in (3, 0, 500, SLOTS - 503, 1, 2 * SLOTS, 5 * SLOTS + 7, 1):
        for _ in range(number):
            written.emit(int(random.integers(2)), emitted)
            emitted += 1
        with open(written.path, "r+b") as file:  # the same file: the follower keeps it open
            file.write(written.data)
        found += (follower.look().records["start_ns"] - 1).tolist()
    assert sorted(found) == list(range(emitted))


@pytest.mark.job
def test_a_copy_that_is_being_written_is_read_when_it_is_complete(tmp_path: Path) -> None:
    """While a chunk is flushed its copy has the same flush count: it is left for the next look, and
    nothing is read twice."""
    written = Written(tmp_path / "x.ring", homes=1)
    for number in range(SLOTS):
        written.emit(0, number)
    written.save()
    follower = Follower(tmp_path / "x.ring")
    assert len(follower.look().records) == SLOTS
    start = HEADER_BYTES
    # the copy is there, the active chunk has not begun again
    with open(written.path, "ab") as file:
        file.write(written.data[start : start + CHUNK_BYTES])
    assert len(follower.look().records) == 0
    written.flush(0)
    written.emit(0, SLOTS)
    with open(written.path, "r+b") as file:
        file.write(written.data)
    assert (follower.look().records["start_ns"] - 1).tolist() == [SLOTS]


@pytest.mark.job
@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_raises_nothing(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    written = Written(tmp_path / "x.ring")
    for number in range(3 * SLOTS):
        written.emit(number % 2, number)
    data = np.frombuffer(bytes(written.data), np.uint8).copy()
    data[random.integers(0, len(data), 400)] = random.integers(0, 256, 400)
    data[random.integers(60, HEADER_BYTES + 2 * CHUNK_BYTES, 40)] = 255
    (tmp_path / "x.ring").write_bytes(data[: int(random.integers(1, len(data)))].tobytes())
    spool, live = LiveSpool(tmp_path), Live()
    for _ in range(2):
        follow(live, spool)
    show(live)
    metrics_text(families(live, "x", True, spool.lost))


def show(live: Live) -> str:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(screen(live, None, "name"))
    console.print(line(live, Totals.of(live)), markup=False)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_hostile_names_do_nothing_on_the_screen_and_in_metrics() -> None:
    """A path or host of markup, control characters, 4,000 characters and invalid UTF-8 is one
    harmless text."""
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    name = HOSTILE.decode("utf-8", "backslashreplace")
    records = np.zeros(3, RECORD_DTYPE)
    records["kind"] = [KINDS.index(kind) + 1 for kind in ("read", "fetch", "step")]
    records["start_ns"], records["end_ns"], records["source"], records["bytes"] = (
        [1, 1, 1],
        [5, 6, 9],
        [1, 0, 0],
        10,
    )
    live = Live()
    live.add(News(Who(name, 1, 0, 0), records, {0: HOSTILE}, 0))
    live.settle(100)
    shown = show(live)
    assert "slowest" in shown
    assert all(each.isprintable() for each in shown.splitlines())
    assert all(len(each) <= 80 for each in shown.splitlines()[1:-1])
    text = metrics_text(families(live, name, True, 0))
    found = list(parser.text_string_to_metric_families(text))
    labels = {
        each for family in found for sample in family.samples for each in sample.labels.values()
    }
    assert all(each.isprintable() and len(each) < 300 for each in labels)
    assert [
        sample.value
        for family in found
        for sample in family.samples
        if sample.name == "ioprof_steps_total"
    ] == [1]


@pytest.mark.job
@needs_library
def test_the_dashboard_asks_for_metrics_and_labels_that_there_are(watched: Watched) -> None:
    """Each name in the queries of docs/grafana-dashboard.json is a metric, and each label of a
    legend is one of its labels."""
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    text = metrics_text(families(watched.live, "run", True, 0))
    found = parser.text_string_to_metric_families(text)
    labels = {sample.name: sample.labels.keys() for family in found for sample in family.samples}
    panels = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())["panels"]
    assert len(panels) >= 8
    for panel in panels:
        (target,) = panel["targets"]
        names = re.findall(r"ioprof_\w+", target["expr"])
        assert names
        assert set(names) <= labels.keys()
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set.union(
            *(set(labels[name]) for name in names)
        )
    documented = set(re.findall(r"`(ioprof_\w+)`", (ROOT / "docs/interchange.md").read_text()))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in labels} == documented


@pytest.mark.job(every=4)
@needs_library
def test_the_perfetto_trace_of_a_recorded_run_has_the_sums_of_its_summary(
    watched: Watched, tmp_path: Path
) -> None:
    """Of a real run too, each span is one slice with its times, counts and bytes are those of
    summary.json, and arrows lead on. Slices of sampled stacks stand beside them."""
    run = watched.run
    written = write_perfetto(run.trace, tmp_path / "run.pftrace")
    found = Decoded(tmp_path / "run.pftrace")
    assert found.unbalanced == 0
    slices = [each for each in found.slices if each["kind"] != "python"]  # samples of stacks
    assert of_slices(slices) == rows(run.trace.spans)
    accesses = [
        each
        for each in slices
        if each["kind"] in ("read", "fault") and each.get("source") not in ("socket", "pipe")
    ]
    reads = [each for each in accesses if each.get("batch") is not None and each.get("bytes") != 0]
    assert len(reads) == run.summary.storage.accesses
    assert sum(each.get("bytes", 0) for each in reads) == run.summary.storage.bytes
    assert len(slices) == run.summary.capture.events
    led = Counter(
        (found.begun[number]["kind"], found.ended[number]["kind"]) for number in found.begun
    )
    assert led.keys() == {("read", "fetch"), ("fetch", "wait"), ("wait", "step")}
    # a wait may have begun before any step
    assert led["fetch", "wait"] == led["wait", "step"] >= watched.live.ranks[0].steps - 2
    assert written.counters == len(run.trace.counters) == sum(map(len, found.counters.values()))
