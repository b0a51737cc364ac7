"""`record --keep`: what the spool takes on disk, whether the window is that of a full recording,
and what it costs.

    python benchmarks/keep.py [SECONDS] [KEEP]

The job reads and decodes images in two workers of torch's DataLoader, for 150 s by default, with
`--keep 30s`. What each kind of file takes on disk is measured every 5 s, beside how much was
written to it. This program follows its capture files from the beginning, as `ioprof watch` does,
and holds all spans: a full recording of the same job by other code. A snapshot in the middle and
the run at the end are compared with it. The cost is the CPU time of the launcher until the job
ends.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from ioprof.converters import GenerateOptions, generate
from ioprof.format.perf import SUFFIX
from ioprof.format.schema import KINDS
from ioprof.format.trace import Trace
from ioprof.ingest.appended_files import KEPT_SUFFIX
from ioprof.ingest.dropping import allocated_bytes
from ioprof.watching.spool import LiveSpool

KINDS_OF_FILES = {
    "spans": "*.ring",
    "series": "counters-*",
    "stacks": "stacks-*",
    "page faults": f"*{SUFFIX}*",
}
JOB = Path(__file__).parent.parent / "tests" / "programs" / "train_on_files.py"


def main() -> None:
    """Run the job and print what was found."""
    seconds, keep = (*sys.argv[1:], *("150", "30s")[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        generate(folder / "tree", GenerateOptions(images=400, classes=4))
        command = [
            sys.executable,
            "-m",
            "ioprof",
            "record",
            "--quiet",
            "--keep",
            keep,
            "--out",
            str(folder / "run"),
            "--",
        ]
        begin_s, snapshot = time.monotonic(), None
        with subprocess.Popen(
            [*command, sys.executable, str(JOB), str(folder / "tree"), "2", "1000000"]
        ) as recording:
            while not (folder / "run/recording.json").exists():
                time.sleep(0.05)
            spool = Path(json.loads((folder / "run/recording.json").read_text())["spool"])
            live, seen, sizes = LiveSpool(spool), [], []
            while (passed_s := time.monotonic() - begin_s) < float(seconds):
                seen += _records(live)
                if not sizes or passed_s - sizes[-1][0] >= 5:
                    sizes.append((passed_s, _sizes(spool)))
                # not waited for: what is dropped meanwhile is to be seen
                if snapshot is None and passed_s > float(seconds) / 2:
                    snapshot = _snapshot(folder)
                time.sleep(0.5)
            cpu_s = _cpu_s(recording.pid)
            recording.terminate()
            while recording.poll() is None and (spool / "job.json").exists():
                seen += _records(live)
                time.sleep(0.2)
        assert snapshot is not None
        assert snapshot.wait() == 0
        for passed_s, kinds in sizes:
            shown = (
                f"{kind} {kept / 1e3:,.0f} of {written / 1e3:,.0f}"
                for kind, (kept, written) in kinds.items()
            )
            print(f"{passed_s:6.0f} s, kB on disk of kB written: {', '.join(shown)}")
        print(
            f"launcher, with its samplers: {cpu_s:.2f} s CPU in {seconds} s"
            f" ({cpu_s / float(seconds):.2%} of a core)"
        )
        full = np.unique(np.concatenate(seen)) if seen else np.zeros(0)
        for name in ("middle", "run"):
            _compare(name, Trace.load(folder / name), full)


def _records(live: LiveSpool) -> list[np.ndarray]:
    found = []
    for news in live.look():
        assert not news.skipped, "this program was too slow to see all"
        table = np.zeros(
            len(news.records),
            [("kind", "u1"), ("start", "i8"), ("end", "i8"), ("bytes", "i8"), ("pid", "i4")],
        )
        table["kind"], table["start"], table["end"] = (
            news.records[field] for field in ("kind", "start_ns", "end_ns")
        )
        table["bytes"], table["pid"] = np.maximum(news.records["bytes"], -1), news.who.pid
        found.append(table)
    return found


def _compare(name: str, trace: Trace, full: np.ndarray) -> None:
    """Print how the run's spans and sums compare with those that were followed."""
    job, zero_ns = trace.run.whole_job, trace.run.clocks.zero_monotonic_ns or 0
    assert job is not None
    spans = trace.spans.filter(
        pl.col("pid").is_not_null(), ~pl.col("kind").is_in(["fault", "step"])
    )
    # a snapshot has more of the files that were copied last
    last_ns = int(full["start"].min() + job.job_s * 1e9)
    since_ns = last_ns - int(job.window_s * 1e9) + 1000
    own = Counter(
        (KINDS.index(kind) + 1, start + zero_ns, end + zero_ns, -1 if size is None else size, pid)
        for kind, start, end, size, pid in spans.select(
            "kind", "start_ns", "end_ns", "bytes", "pid"
        ).iter_rows()
        if start + zero_ns >= since_ns and end + zero_ns <= last_ns
    )
    left_out = (KINDS.index("fault") + 1, KINDS.index("step") + 1)
    chosen = full[
        (full["start"] >= since_ns) & (full["end"] <= last_ns) & ~np.isin(full["kind"], left_out)
    ]
    expected = Counter(tuple(row) for row in chosen.tolist())
    lacking = expected - own
    missing, more = sum(lacking.values()), sum((own - expected).values())
    from_end_s = max(((last_ns - end) / 1e9 for _, _, end, _, _ in lacking), default=0.0)
    print(
        f"{name}: window {job.window_s:.1f} s of {job.job_s:.1f} s, {sum(own.values()):,} spans; of"
        f" those followed {missing:,} are missing (in its last {from_end_s:.3f} s), {more:,} were"
        f" not followed; sums of all: {job.spans:,} spans, {job.num_spans('step'):,} steps"
    )
    if name == "run":
        print(
            f"followed in all: {len(full):,} spans,"
            f" {int((full['kind'] == KINDS.index('step') + 1).sum()):,} steps"
        )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _sizes(spool: Path) -> dict[str, tuple[int, int]]:
    """By kind of file what these take on disk, and how long they are: what was written."""
    found, left = {}, set(spool.iterdir())
    for kind, pattern in {**KINDS_OF_FILES, "others": "*"}.items():
        chosen = left & set(spool.glob(pattern))
        left -= chosen
        found[kind] = (
            allocated_bytes(chosen),
            sum(_length(path) for path in chosen if path.suffix != KEPT_SUFFIX),
        )
    return found


def _length(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:  # removed meanwhile
        return 0


def _snapshot(folder: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "ioprof",
        "snapshot",
        str(folder / "run"),
        "--out",
        str(folder / "middle"),
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
