"""Memory and time of `ioprof record` at the end of a job of many events. A peak is VmHWM of the
process that makes the run folder, with that of the process that stores for it while there is one.

    python benchmarks/record_scale.py                                        20,000 reads/s for 1
                                                                             minute, then 1 M and 10
                                                                             M events
    python benchmarks/record_scale.py --seconds 300 --workers 2 --events     a longer job, whose
                                                                             DataLoader reads
    python benchmarks/record_scale.py --seconds 0 --events 100_000_000       needs 7 GB for capture
                                                                             files and run folder
    python benchmarks/record_scale.py --seconds 0 --events --hosts 125       1,000 ranks

    live      a program that reads at a steady rate, under the real `ioprof record`. `recorded` is
              the time from the program's last line until the run folder has all that was recorded,
              `folder` that to the end of `ioprof record`: the run folder, its report, and the
              printed summary. `exited` is the part of both that the program's own exit takes.
    events    capture files of a job of 8 ranks with 4 workers each, written with NumPy in the
              format of the C writer. `folder` is the time to make the run folder in a fresh
              process, `report` that of `ioprof report RUN --html`.
    hosts     parts of one run, each written as above and stored as its host does. `folder` is the
              time of `ioprof gather`.

Targets: live, at most 300 MB and 5 s; 10 M events, at most 1.5 GB and 10 s, report 5 s; 100 M
events, 4 GB and 60 s; 1,000 ranks are gathered in 60 s.

6 M reads by a DataLoader with 2 workers in 300 s, alone on the machine, before freed memory was
returned: recorded 4.2 s after the job, folder after 18.2 s, 356 MB, report 5.2 s and 239 MB; 4.8 M
in 60 s since then, beside other programs: 301 MB. The 6 M once more since then, beside tests:
recorded after 6.4 s, folder after 26.5 s, 342 MB, report 6.1 s and 231 MB.

Since settings reach polars' allocator, parts of spans are read once, and sets of time are computed
in C: capture files of 6 M reads (60,000 per second for 100 s, two workers, stacks sampled), made
into a run folder in a fresh process, before and after, alone on 2 cores, once each: 18.7 s and 14.3
s (of it stored 2.7 s and 2.4 s), CPU time 25.3 s and 19.1 s, 299 MB and 276 MB. 10 M events of 8
ranks: 23.2 s and 21.2 s (stored 4.8 s and 4.3 s), CPU time 29.4 s and 29.9 s, 380 MB and 342 MB.
100 M events have not been measured again. Since the heap is trimmed once spans are stored, beside
other programs: 271 MB for the 6 M. The job of 300 s after all of this, alone, once: recorded after
7.2 s, folder after 22.2 s, 343 MB, report 4.4 s and 243 MB: what the stored files gained does not
show there. Since samples of stacks are not kept as text and blocks are decoded on two threads,
alone, once: exited after 1.2 s, recorded after 7.3 s, folder after 24.6 s, 329 MB, report 5.5 s and
236 MB. Since a process of its own stores, which is started while the job runs, and costs of calls
are measured once it has stored, the same job, alone, once: exited after 1.0 s, recorded after 4.0
s, folder after 20.8 s, 297 MB, report 5.1 s and 242 MB. Once more, followed by a thread that logged
memory: exited after 1.2 s, recorded after 4.5 s, folder after 25.6 s, 265 MB; while two processes
lived they had 60 and 194 MB.

Since runs of more than 8 M events are analysed in larger pieces and the page's bins are filled in
C, 10 M events, alone on 2 cores, once: 14.5 s (stored 3.1 s, pieces 3.6 s, rest of the summary 3.7
s, page 4.1 s), CPU time 21.1 s, 873 MB.

Since all spans are read once for the summary and once for the page, reads are summed in C, and
spans of a piece lie in the order of kinds: 10 M events, alone on a slower machine of 2 cores,
before and after, in turn, once each: 23.0 s and 16.7 s (store 5.7 and 5.9, pieces 6.4 and 4.2, rest
of the summary 5.0 and 3.3, page 5.9 and 3.3), CPU time 38.2 s and 27.3 s, 831 MB and 761 MB. The
speed of that machine changes: before, it was also 19.0 s and CPU time 31.6 s. 6 M events in pieces
of 100,000 spans, beside other programs, once each: CPU time 39.3 s and 27.5 s, 339 MB and 324 MB.
By this program, on that machine, alone, once: 10 M 14.0 s, 793 MB, report 4.9 s; 100 M 137 s, 1,825
MB, report 33 s. The live job has not been measured since.

Since valid spans of capture files are found in C, each kind where it is wanted: 10 M events, alone
on that machine, in turn, twice: 18.1 and 17.5 s before, 15.5 and 15.8 s after (store 8.1 and 6.1,
4.9 and 4.8), CPU time 26.2 and 27.9 s, 24.9 and 25.9 s, 765 MB. By this program the next day,
alone, once: 10 M 17.5 s, 823 MB, report 7.6 s; 100 M 173 s, 1,702 MB, report 51 s. The machine was
slower then: the report, whose code is nearly the same, took 1.5 times as long as the time before.

10 M events beside the code of 2026-11-22, whose 28.6 s and 2.06 GB were measured when these targets
were set, alone on 2 cores, in turn, twice, with the present libraries (measured apart, since this
program cannot run that code): 25.1 and 25.5 s, 2.6 GB; now 16.4 and 16.9 s, 0.77 GB. That code
stored the same spans, had no ceilings, ledger, gains or findings, and a page of three fixed
windows. So the run folder is made in 1/1.5 of the time, where 1/2.9 was asked for, and in 1/3.4 of
the memory, where 1/1.4 was.

10 M and 100 M events on 2026-11-27, alone, once, on a machine whose speed changes by 15 % from
second to second: 17.2 s, 829 MB, report 6.7 s; 211 s, 2,779 MB, report 57 s.

What did not help: to read the spans of a whole rank part by part (4.0 s of CPU time instead of 2.5
s), to store spans in the order of kinds (a piece is ordered in 0.4 s less, spans.parquet grew by 15
%), lz4 instead of zstd (0.4 s to write, 0.1 s to read, spans.parquet 40 % larger).

CPU time, of 10 M events before that (2 cores, which other programs used too, each measured once): 5
s to decode and compress the spans, 13 s for the analysis, 2 s for the page; it was 31 s in all. 100
M events: 54 s, 205 s and 8 s, at a peak of 1.6 GB, so the target of 60 s is out of reach without an
analysis that is several times as fast. 1,000 ranks with 2 M events are gathered in 55 s, at 531 MB:
0.05 s per rank, whatever it recorded.

What helped: all analyses look at the same pieces, which are loaded once instead of five times (12
s); times of accesses are counted by class (3 s); what is known of spans while they are written is
kept (1.5 s); memory for blocks is reused (0.7 s). What did not help: to select the columns that an
analysis needs before each filter (0.4 s), smaller row groups, and smaller pieces, which take less
memory and more time (6 M reads by a DataLoader with 2 workers: 250,000 spans 456 MB and 13 s,
125,000 spans 330 MB and 15 s, 80,000 spans 317 MB and 19 s).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from ioprof.format.layout import CHUNK_HEADER_DTYPE, FILE_HEADER_DTYPE, RECORD_DTYPE
from ioprof.format.run_files import SPANS
from ioprof.format.run_record import RunRecord
from ioprof.format.schema import KINDS, WRITERS
from ioprof.format.wire_format import CHUNK_BYTES, FORMAT_VERSION, HEADER_BYTES, MAGIC
from ioprof.ingest import store_spool
from ioprof.recording.storing_process import PROGRAM as STORING

PROGRAM: Final = Path(__file__).parents[1] / "tests" / "programs" / "read_at_rate.py"
RANKS: Final = 8
WORKERS: Final = 4
SAMPLES: Final = 32
STEP_NS: Final = 40_000_000
START_NS: Final = 10**12
RANK_KINDS: Final = ("step", "wait", "deliver", "h2d", "compute") + ("comm",) * 5
SPANS_PER_STEP: Final = RANKS * (4 * SAMPLES + 2 + len(RANK_KINDS))
_SLOTS: Final = (CHUNK_BYTES - CHUNK_HEADER_DTYPE.itemsize) // RECORD_DTYPE.itemsize
_FOLDER: Final = """
import sys, time
from pathlib import Path
from ioprof.recording.run_writer import make_run_folder
from ioprof.format.run_record import RunRecord
out, begin = Path(sys.argv[2]), time.monotonic()
out.mkdir()
config = {"ranks": 8, "workers": 4, "batch_size": 32, "device": "emulated:a100", "loader": "files"}
capture = {"reads": True, "native": True, "ns_per_span": 100.0, "ns_per_call": 200.0}
facts = {"status": "complete", "config": config, "capture": capture}
make_run_folder(Path(sys.argv[1]), out, RunRecord.of(facts))
print(time.monotonic() - begin)
"""


@dataclass
class Peak:
    """What a command took."""

    seconds: float
    bytes: int
    """VmHWM of the process itself; while a process stores for it, the sum of both, though they may
    not have had it at one time."""
    output: str
    end_s: float
    """CLOCK_MONOTONIC when it ended."""
    there_s: float | None
    """CLOCK_MONOTONIC when the file that was waited for was there."""


def run(command: list[str], awaited: Path | None = None) -> Peak:
    """Run a command and follow the peak memory of its process, which only grows, and when a file
    appears.
    """
    begin, peak, there_s = time.monotonic(), 0, None
    storing: int | None = None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        looked_s = begin
        while process.poll() is None:
            if storing is None and time.monotonic() > looked_s + 1:
                storing, looked_s = storing_process_of(process.pid), time.monotonic()
            peak = max(
                peak,
                high_water_bytes(process.pid)
                + (0 if storing is None else high_water_bytes(storing)),
            )
            if there_s is None and awaited and awaited.exists():
                there_s = time.monotonic()
            time.sleep(0.02)
        end_s = time.monotonic()
        output, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{command}: {errors}")
    return Peak(end_s - begin, peak, output, end_s, there_s)


def storing_process_of(pid: int) -> int | None:
    """The process that stores for a recorder."""
    try:
        for child in psutil.Process(pid).children():
            if STORING in child.cmdline():
                return child.pid
    except psutil.Error:  # one of them has ended
        pass
    return None


def high_water_bytes(pid: int) -> int:
    """VmHWM of a process (man proc_pid_status); 0: it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def live(folder: Path, rate: int, seconds: float, workers: int) -> dict[str, Any]:
    """Record the program that reads at that rate."""
    (folder / "data").write_bytes(bytes(1 << 20))
    end = folder / "end"
    job = [
        sys.executable,
        str(PROGRAM),
        str(folder / "data"),
        str(rate),
        str(seconds),
        str(end),
        "--workers",
        str(workers),
    ]
    found = run(
        [sys.executable, "-m", "ioprof", "record", "--out", str(folder / "run"), "--", *job],
        folder / "run" / "run.json",
    )
    end_ns, reads = map(int, end.read_text().split())
    name = f"live, {seconds:g} s" + (f", {workers} workers" if workers else "")
    recorded_s = (found.there_s or found.end_s) - end_ns / 1e9
    recorded = RunRecord.from_json((folder / "run" / "run.json").read_bytes())
    zero_ns, ended = recorded.clocks.zero_monotonic_ns or 0, recorded.times
    exited_s = (zero_ns + (ended.end_ns or 0) - end_ns) / 1e9 if ended else 0.0
    times = {"exited_s": exited_s, "recorded_s": recorded_s, "folder_s": found.end_s - end_ns / 1e9}
    return {"name": name, "events": reads, **times, "folder_bytes": found.bytes, **report(folder)}


def events(folder: Path, number: int) -> dict[str, Any]:
    """Make the run folder of that many events."""
    (folder / "spool").mkdir()
    written = write_spool(folder / "spool", number)
    found = run([sys.executable, "-c", _FOLDER, str(folder / "spool"), str(folder / "run")])
    return {
        "name": "events",
        "events": written,
        "folder_s": float(found.output),
        "folder_bytes": found.bytes,
        **report(folder),
    }


def hosts(folder: Path, number: int, num_hosts: int) -> dict[str, Any]:
    """Gather the parts of a job on so many hosts of 8 ranks each, about that many events in all."""
    parts, written = folder / "run.parts", 0
    for host in range(num_hosts):
        spool, name = folder / "spool", f"node{host}"
        spool.mkdir()
        written += write_spool(spool, number // num_hosts, name, host * RANKS)
        facts = {
            "status": "complete",
            "name": "run",
            "command": "train.py",
            "hosts": [{"name": name, "cpus": 32}],
            "part": {"number": host, "of": num_hosts, "job": "one"},
            "clocks": {"uncertainty_ns": 0, "kernel": name},
            "config": {
                "ranks": RANKS * num_hosts,
                "workers": WORKERS,
                "batch_size": SAMPLES,
                "device": "emulated:a100",
            },
            "capture": {"reads": True, "native": True, "ns_per_span": 100.0, "ns_per_call": 200.0},
        }
        part = parts / f"{host}-{name}"
        part.mkdir(parents=True)
        store_spool(spool, RunRecord.of(facts), part / SPANS).save(part)
        shutil.rmtree(spool)
    found = run([sys.executable, "-m", "ioprof", "gather", str(parts)])
    name = f"{num_hosts} hosts, {num_hosts * RANKS} ranks"
    return {
        "name": name,
        "events": written,
        "folder_s": found.seconds,
        "folder_bytes": found.bytes,
        **report(folder),
    }


def report(folder: Path) -> dict[str, Any]:
    """Report the run, as text and as HTML."""
    found = run(
        [
            sys.executable,
            "-m",
            "ioprof",
            "report",
            str(folder / "run"),
            "--html",
            str(folder / "report.html"),
        ]
    )
    return {"report_s": found.seconds, "report_bytes": found.bytes}


# ------------------------------------------------------------------------------------ capture files


def write_spool(spool: Path, number: int, host: str = "node1", first_rank: int = 0) -> int:
    """Write the capture files of a host's part of a job, about so many events; return how many
    there are.
    """
    steps, written = max(WORKERS, number // SPANS_PER_STEP), 0
    for rank in range(first_rank, first_rank + RANKS):
        random = np.random.default_rng(rank)
        main = 100 * (rank + 1)
        names = [f"gradients {bucket}".encode() for bucket in range(5)]
        written += write_capture(spool, host, main, rank, 0, None, names, rank_spans(steps, random))
        for worker in range(WORKERS):
            paths = [f"/data/{rank}/{place}.jpeg".encode() for place in range(1000)]
            for writer in range(len(WRITERS)):
                spans = worker_spans(
                    worker, steps, np.random.default_rng(100 * rank + worker), writer
                )
                written += write_capture(
                    spool, host, main + 1 + worker, rank, writer, worker, paths, spans
                )
    return written


def write_capture(
    spool: Path,
    host: str,
    pid: int,
    rank: int,
    writer: int,
    worker: int | None,
    strings: list[bytes],
    blocks: Iterator[Any],
) -> int:
    """One capture file: its first chunk is active and was flushed to the ones that follow. Returns
    how many spans it has.
    """
    header = np.zeros(1, FILE_HEADER_DTYPE)
    facts = {
        "magic": MAGIC,
        "version": FORMAT_VERSION,
        "record_bytes": RECORD_DTYPE.itemsize,
        "chunk_bytes": CHUNK_BYTES,
        "header_bytes": HEADER_BYTES,
        "pid": pid,
        "rank": rank,
        "worker": -1 if worker is None else worker,
        "closed": 1,
        "role": 0 if worker is None else 1,
        "writer": writer,
        "host": host.encode(),
        "rank_source": 1,
        "anchor_before_ns": 1,
        "anchor_wall_ns": 10**18,
        "anchor_after_ns": 1,
    }
    for name, value in facts.items():
        header[name] = value
    with open(spool / f"{host}-{pid}-{writer}.ring", "wb") as file:
        file.write(header.tobytes().ljust(HEADER_BYTES, b"\0"))
        active, written, num_chunks = string_slots(strings), 0, 0
        file.write(bytes(CHUNK_BYTES))
        for block in blocks:
            written += len(block)
            slots = np.concatenate([active, block])
            whole = len(slots) // _SLOTS
            file.write(chunks(slots[: whole * _SLOTS].reshape(whole, _SLOTS), pid, num_chunks))
            active, num_chunks = slots[whole * _SLOTS :], num_chunks + whole
        file.seek(HEADER_BYTES)
        file.write(chunks(active[None, :], pid, num_chunks))
        header["chunks"] = num_chunks + 1
        file.seek(0)
        file.write(header.tobytes())
    return written


def chunks(slots: Any, tid: int, first: int) -> bytes:
    """Chunks of these slots, a row for each, of the active chunk at place 0; the first of them is
    flush number `first`.
    """
    found = np.zeros((len(slots), CHUNK_BYTES), np.uint8)
    headers = np.zeros(len(slots), CHUNK_HEADER_DTYPE)
    headers["tid"], headers["origin"] = tid, 1
    headers["state"] = slots.shape[1] | (
        np.arange(first, first + len(slots), dtype=np.uint64) << np.uint64(32)
    )
    found[:, : CHUNK_HEADER_DTYPE.itemsize] = headers.view(np.uint8).reshape(
        len(slots), CHUNK_HEADER_DTYPE.itemsize
    )
    data = (
        np.ascontiguousarray(slots)
        .view(np.uint8)
        .reshape(len(slots), slots.shape[1] * RECORD_DTYPE.itemsize)
    )
    found[:, CHUNK_HEADER_DTYPE.itemsize : CHUNK_HEADER_DTYPE.itemsize + data.shape[1]] = data
    return found.tobytes()


def empty_slots(number: int) -> Any:
    """Slots with no field set."""
    slots = np.zeros(number, RECORD_DTYPE)
    for name in ("bytes", "offset", "batch", "step", "file", "name", "stream"):
        slots[name] = -1
    return slots


def string_slots(strings: list[bytes]) -> Any:
    """The slots of these strings, which are short. They fill whole chunks, so that none is
    divided.
    """
    slots = empty_slots(-(-2 * len(strings) // (_SLOTS - 1)) * _SLOTS)
    place = 0
    for number, text in enumerate(strings):
        if place % _SLOTS == _SLOTS - 1:
            slots[place] = span_slot("open")
            place += 1
        slots["file"][place], slots["bytes"][place] = number, len(text)
        slots[place + 1] = np.frombuffer(text.ljust(RECORD_DTYPE.itemsize, b"\0"), RECORD_DTYPE)[0]
        place += 2
    return slots[:place]


def span_slot(kind: str) -> Any:
    """A span without any facts, at the start of the job."""
    slot = empty_slots(1)
    slot["kind"], slot["start_ns"], slot["end_ns"] = KINDS.index(kind) + 1, START_NS, START_NS
    return slot[0]


def worker_spans(
    worker: int, steps: int, random: np.random.Generator, writer: int
) -> Iterator[Any]:
    """What one worker did in every fourth batch: by its hooks (decode, transform, collate, fetch)
    or as reads (open, read).
    """
    kinds = np.array(
        [
            KINDS.index(kind) + 1
            for kind in ("open", "read", "decode", "transform") * SAMPLES + ("collate", "fetch")
        ]
    )
    is_read = kinds == KINDS.index("read") + 1
    is_own = np.isin(kinds, [KINDS.index("open") + 1, KINDS.index("read") + 1]) == bool(writer)
    for first in range(worker, steps, WORKERS * 2000):
        batch = np.arange(first, min(steps, first + WORKERS * 2000), WORKERS)
        share = random.exponential(1.0, (len(batch), len(kinds) - 1))
        length = WORKERS * STEP_NS * random.choice([0.8, 0.95, 1.2], (len(batch), 1))
        took = (share / share.sum(axis=1, keepdims=True) * length).astype(np.int64)
        ends = np.cumsum(took, axis=1) + START_NS + batch[:, None] * STEP_NS
        starts = ends - took
        slots = empty_slots(len(batch) * len(kinds))
        slots["start_ns"] = np.column_stack((starts, starts[:, 0])).ravel()
        slots["end_ns"] = np.column_stack((ends, ends[:, -1])).ravel()
        slots["kind"], of_read = np.tile(kinds, len(batch)), np.tile(is_read, len(batch))
        slots["bytes"] = np.where(of_read, random.integers(1000, 200_000, len(of_read)), -1)
        slots["source"] = np.where(of_read, random.integers(1, 4, len(of_read)), 0)
        slots["file"] = np.where(of_read, random.integers(0, 1000, len(of_read)), -1)
        slots["offset"] = np.where(of_read, 0, -1)
        slots["batch"] = np.repeat(batch, len(kinds)) if not writer else -1
        yield slots[np.tile(is_own, len(batch))]


def rank_spans(steps: int, random: np.random.Generator) -> Iterator[Any]:
    """A step waits on every third batch, then copies, computes and exchanges."""
    for first in range(0, steps, 10_000):
        number = np.arange(first, min(steps, first + 10_000))
        begin = START_NS + (number + WORKERS) * STEP_NS
        waited = np.where(random.integers(0, 3, len(number)) == 0, STEP_NS // 4, 20_000)
        late, tenth = random.integers(0, STEP_NS // 20, len(number)), STEP_NS // 20
        times = [
            (0 * waited, STEP_NS + 0 * waited),
            (0 * waited, waited),
            (waited - 20_000, waited),
            (waited, waited + tenth),
        ]
        times.append((waited + tenth, waited + STEP_NS // 2))
        times += [
            (
                waited + STEP_NS // 4 + late + tenth * place,
                waited + STEP_NS // 4 + tenth * (place + 2),
            )
            for place in range(5)
        ]
        slots = empty_slots(len(number) * len(RANK_KINDS))
        for place, (start, end) in enumerate(times):
            (
                slots["start_ns"][place :: len(RANK_KINDS)],
                slots["end_ns"][place :: len(RANK_KINDS)],
            ) = (
                begin + start,
                begin + end,
            )
        slots["kind"] = np.tile([KINDS.index(kind) + 1 for kind in RANK_KINDS], len(number))
        slots["stream"] = np.tile([-1, -1, -1, 1, 0] + [2] * 5, len(number))
        slots["name"] = np.tile([-1] * 5 + list(range(5)), len(number))
        slots["batch"] = slots["step"] = np.repeat(number, len(RANK_KINDS))
        yield slots


# ---------------------------------------------------------------------------------------- the table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, default=20_000, help="reads per second")
    parser.add_argument("--seconds", type=float, default=60, help="0: no job")
    parser.add_argument("--workers", type=int, default=0, help="workers of a DataLoader that read")
    parser.add_argument("--events", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument(
        "--hosts",
        type=int,
        nargs="*",
        default=[],
        help="hosts of 8 ranks, whose parts of 2 M events are gathered",
    )
    parser.add_argument("--folder", help="for capture files and run folders")
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    rows = []
    if options.seconds:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            rows.append(live(Path(folder), options.rate, options.seconds, options.workers))
    for number in options.events:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            rows.append(events(Path(folder), number))
    for number in options.hosts:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            rows.append(hosts(Path(folder), 2_000_000, number))
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"from the end of a job to its run folder ({os.cpu_count()} cores)")
    print(
        f"{'':24}{'events':>13}{'exited':>10}{'recorded':>10}{'folder':>10}{'peak':>10}{'report':>10}{'peak':>10}"
    )
    for row in rows:
        recorded = "".join(
            f"{row[name]:>8.2f} s" if name in row else f"{'':10}"
            for name in ("exited_s", "recorded_s")
        )
        found = (
            f"{row['name']:24}{row['events']:>13,}{recorded}{row['folder_s']:>8.2f}"
            f" s{row['folder_bytes'] / 1e6:>7,.0f} MB"
        )
        print(f"{found}{row['report_s']:>8.2f} s{row['report_bytes'] / 1e6:>7,.0f} MB", flush=True)


if __name__ == "__main__":
    main()
