"""Imports: what the files of other profilers say is what the run says, and no file does more than
fail with one line."""

import gzip
import json
import sqlite3
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from jobs import ioprof as run_ioprof
from torch.utils.data import DataLoader, TensorDataset

from ioprof.errors import CommandError
from ioprof.interchange import darshan, dftracer, kineto, nsys
from ioprof.interchange.imported import Imported, to_trace
from ioprof.report.run import Run

US, MS = 1000, 1_000_000
HOSTILE = '<script>\x1b[31m\u202e\n"' + "y" * 4000


def imported(read: Callable[..., list[Imported]], *paths: Path) -> Run:
    return Run.of(to_trace(read(paths), "run", "ioprof import", "a clock"))


def kinds(run: Run) -> dict[str, int]:
    return {str(kind): count for kind, count in run.trace.spans.group_by("kind").len().rows()}


# ----------------------------------------------------------------------------------- torch.profiler


def event(
    cat: str,
    name: str,
    start_ms: float,
    end_ms: float,
    pid: int = 7,
    tid: int = 7,
    **arguments: Any,
) -> dict[str, Any]:
    times = {"ts": 1.7e15 + start_ms * 1e3, "dur": round((end_ms - start_ms) * 1e3, 3)}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": arguments}


def kineto_events(shift: float = 0) -> list[dict[str, Any]]:
    """Two steps of 10 ms on a GPU: 4 ms of kernels each, a collective half hidden, a pageable copy,
    a wait of 3 ms."""
    found = []
    for step in (5, 6):
        at = 10 * (step - 5) + shift
        found += [
            event("user_annotation", f"ProfilerStep#{step}", at, at + 10),
            event(
                "user_annotation",
                "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
                at,
                at + 3,
            ),
            event(
                "gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", at + 3, at + 4, 0, 7, bytes=1000
            ),
            event("kernel", f"gemm {HOSTILE if step == 5 else ''}", at + 4, at + 8, 0, 7),
            event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", at + 7, at + 9, 0, 20),
        ]
    return found


def write_kineto(path: Path, events: list[dict[str, Any]], **more: Any) -> Path:
    data = json.dumps({"schemaVersion": 1, **more, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_a_kineto_trace_has_steps_waits_kernels_and_overlap(tmp_path: Path) -> None:
    path = write_kineto(
        tmp_path / "trace.json.gz", kineto_events(), distributedInfo={"rank": 3, "world_size": 8}
    )
    run = imported(kineto.read_kineto, path)
    assert kinds(run) == {"step": 2, "wait": 2, "h2d": 2, "kernel": 2, "comm": 2}
    assert run.steps.select(
        "rank", "step", "start_ns", "end_ns", "compute_ns", "exchange_ns", "h2d_ns"
    ).rows() == [
        (3, 5, 0, 10 * MS, 4 * MS, 1 * MS, 1 * MS),
        (3, 6, 10 * MS, 20 * MS, 4 * MS, 1 * MS, 1 * MS),
    ]
    shares = {entry.cause: entry.share for entry in run.summary.steps.causes}
    assert shares["loader"] == pytest.approx(0.3)
    assert {cause for cause, share in shares.items() if share is None} >= {
        "storage",
        "decode",
        "straggler",
        "gc",
        "validation",
    }
    communication = run.summary.overlap["communication"]
    assert (communication.total_s, communication.hidden_ratio) == (
        pytest.approx(4e-3),
        pytest.approx(0.5),
    )
    assert "1 of the 8 ranks of the job were imported" in " ".join(run.summary.capture.not_seen)
    assert run.summary.capture.overhead_ratio is None


def test_files_of_several_ranks_are_one_run(tmp_path: Path) -> None:
    """Ranks are those in the files, or the order of the files where they do not say; times are on
    one clock."""
    paths = [
        write_kineto(
            tmp_path / f"{rank}.json", kineto_events(2 * rank), distributedInfo={"rank": rank}
        )
        for rank in (1, 0)
    ]
    run = imported(kineto.read_kineto, *paths)
    assert run.steps.filter(step=5)["start_ns"].to_list() == [0, 2 * MS]
    assert run.steps["rank"].to_list() == [0, 0, 1, 1]
    unnamed = [write_kineto(tmp_path / f"x{place}.json", kineto_events()) for place in range(2)]
    assert imported(kineto.read_kineto, *unnamed).trace.ranks == [0, 1]
    with pytest.raises(CommandError, match="another file is of the same rank"):
        imported(
            kineto.read_kineto,
            paths[0],
            write_kineto(tmp_path / "2.json", kineto_events(), distributedInfo={"rank": 1}),
        )


def test_a_real_trace_of_torch_profiler_agrees_with_a_stopwatch(tmp_path: Path) -> None:
    taken, waited = [], []
    loader = DataLoader(TensorDataset(torch.zeros(40, 8)), batch_size=4)
    plan = torch.profiler.schedule(wait=0, warmup=1, active=20)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], schedule=plan
    ) as profiler:
        batches = iter(loader)
        for _ in range(8):
            started = time.perf_counter()
            next(batches)
            waited.append(time.perf_counter() - started)
            while time.perf_counter() < started + 0.02:
                pass
            profiler.step()
            taken.append(time.perf_counter() - started)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    run = imported(kineto.read_kineto, tmp_path / "trace.json")
    found = (run.steps["end_ns"] - run.steps["start_ns"]).to_numpy() / 1e9
    assert np.median(found) == pytest.approx(np.median(taken), rel=0.2)
    waits = run.trace.spans.filter(pl.col("kind") == "wait")
    assert len(waits) == 7  # the first step is the profiler's warm-up
    assert (waits["end_ns"] - waits["start_ns"]).median() / 1e9 <= np.median(waited) * 1.5


# ----------------------------------------------------------------------------------------- DFTracer


def dftracer_lines(as_text: bool = False) -> list[bytes]:
    """Of version 1.0.8, and with `as_text` of versions before 1.0, which wrote numbers as texts and
    names in full."""
    path: dict[str, Any] = (
        {"fname": "/data/a", "hostname": "n1"} if as_text else {"fhash": 11, "hhash": 22}
    )
    explained = [
        {
            "id": 1,
            "name": "HH",
            "cat": "dftracer",
            "pid": 1,
            "tid": 1,
            "ph": "M",
            "args": {"name": "n1", "value": 22},
        },
        {
            "id": 2,
            "name": "FH",
            "cat": "dftracer",
            "pid": 1,
            "tid": 1,
            "ph": "M",
            "args": {"name": "/data/a", "value": 11},
        },
    ]
    events = [
        ("open64", "POSIX", 0, 5, {"ret": 3, **path}),
        ("read", "POSIX", 10, 20, {"ret": 100, "offset": 0, **path}),
        ("pread64", "POSIX", 40, 5, {"ret": 50, "offset": 100, **path}),
        ("read", "POSIX", 50, 1, {"ret": -1, **path}),
        ("write", "POSIX", 60, 9, {"ret": 9, **path}),
        ("close", "POSIX", 70, 1, path),
        ("compute", "compute", 80, 30, path),
        ("my_range", "app", 120, 7, path),
    ]
    convert = str if as_text else int
    who = {"pid": convert(9), "tid": convert(9), "ph": "X"}
    lines = [
        {
            "id": convert(place),
            "name": name,
            "cat": cat,
            **who,
            "ts": convert(10**15 + at),
            "dur": convert(dur),
            "args": args,
        }
        for place, (name, cat, at, dur, args) in enumerate(events, 3)
    ]
    return [
        b"[",
        *(json.dumps(line).encode() for line in ([] if as_text else explained) + lines),
        b"]",
    ]


@pytest.mark.parametrize("as_text", [True, False])
def test_a_trace_of_dftracer_has_its_reads_and_ranges(tmp_path: Path, as_text: bool) -> None:
    path = tmp_path / ("old.pfw" if as_text else "new.pfw.gz")
    data = b"\n".join(dftracer_lines(as_text))
    path.write_bytes(data if as_text else gzip.compress(data))
    run = imported(dftracer.read_dftracer, path)
    assert kinds(run) == {"open": 1, "read": 3, "compute": 1, "user": 1}
    reads = run.trace.spans.filter(pl.col("kind") == "read").sort("start_ns")
    assert reads["bytes"].to_list() == [100, 50, 0]
    assert reads["offset"].to_list() == [0, 100, None]
    assert (reads["end_ns"] - reads["start_ns"]).to_list() == [20 * US, 5 * US, 1 * US]
    assert reads["host"].cast(pl.String).unique().to_list() == ["n1"]
    assert run.trace.files["path"].to_list() == ["/data/a"]
    assert (run.summary.storage.bytes, run.summary.storage.bytes_unknown) == (150, 150)
    assert "a call of write was left out" in " ".join(run.summary.capture.not_seen)


# ------------------------------------------------------------------------------------------ Darshan


def darshan_log(
    version: bytes = b"3.41",
    reads: int = 3,
    streams: int = 2,
    name: bytes = b"/data/\xff<script>",
    dxt_version: int = 2,
) -> bytes:
    """A log with a DXT trace of two ranks: each wrote once and read `reads` times 1,000 bytes of
    one file."""
    is_new = version == b"3.41"
    modules, place = (64, 10) if is_new else (16, 9)
    posix = b"".join(
        struct.pack("<Qq69q17d", 5, rank, *[0] * 14, 1000 * reads, 1000, *[0] * 53, *[0.0] * 17)
        for rank in range(2)
    )
    dxt = b""
    for rank in range(2):
        dxt += struct.pack("<Qqq64sqq", 5, rank, 0, f"node{rank}".encode(), 1, reads)
        segments = [(0, 1000, 0.5, 0.6)] + [
            (1000 * each, 1000, 1.0 + each + rank / 10, 1.25 + each + rank / 10)
            for each in range(reads)
        ]
        dxt += b"".join(
            struct.pack("<qqdd", *segment) + struct.pack("<Q", 77) * (dxt_version == 2)
            for segment in segments
        )
    job = (
        struct.pack("<7q", 0, 1_700_000_000, 0, 1_700_000_010, 0, 2, 1)
        if is_new
        else struct.pack("<5q", 0, 1_700_000_000, 1_700_000_010, 2, 1)
    )
    names = struct.pack("<Q", 5) + name + b"\0"

    def packed(data: bytes) -> bytes:
        size = -(-len(data) // streams)
        return b"".join(
            zlib.compress(data[start : start + size]) for start in range(0, len(data), size)
        )

    size = 1328 if is_new else 360
    parts = [zlib.compress(job.ljust(4096, b"\0")), packed(names), packed(posix), packed(dxt)]
    offsets = np.cumsum([size, *map(len, parts)]).tolist()
    maps = [(offsets[1], len(parts[1]))] + [(0, 0)] * modules
    maps[1 + 1], maps[1 + place] = (offsets[2], len(parts[2])), (offsets[3], len(parts[3]))
    versions = [
        4 if module == 1 else dxt_version if module == place else 1 for module in range(modules)
    ]
    flat = [number for pair in maps for number in pair]
    partial = struct.pack("<BxxxxxxxQ" if is_new else "<BxxxI", 0, 0)
    header = version.ljust(8, b"\0") + struct.pack("<q", 6567223) + partial
    header += struct.pack(f"<{len(flat)}Q{modules}I", *flat, *versions)
    assert len(header) == size
    return header + b"".join(parts)


@pytest.mark.parametrize("version", [b"3.21", b"3.41"])
def test_a_log_of_darshan_has_every_read_of_its_trace(tmp_path: Path, version: bytes) -> None:
    path = tmp_path / "log.darshan"
    path.write_bytes(darshan_log(version))
    run = imported(darshan.read_darshan, path)
    reads = run.trace.spans.sort("rank", "start_ns")
    assert reads["kind"].cast(pl.String).unique().to_list() == ["read"]
    assert reads.select("rank", "start_ns", "bytes", "offset").rows() == [
        (rank, round(1e9 * each + 1e8 * rank), 1000, 1000 * each)
        for rank in range(2)
        for each in range(3)
    ]
    assert (reads["end_ns"] - reads["start_ns"]).to_list() == [250 * MS] * 6
    assert run.trace.files["path"].to_list() == ["/data/\\xff<script>"]
    assert run.summary.storage.bytes == 6000
    assert "a call of write was left out (2 times)" in " ".join(run.summary.capture.not_seen)
    assert "bytes that Darshan counted" not in " ".join(run.summary.capture.not_seen)


def test_what_darshan_did_not_trace_is_said(tmp_path: Path) -> None:
    """Where the trace has fewer bytes than Darshan's counters, the run says so; a log without a
    trace cannot be imported."""
    whole = bytearray(darshan_log(streams=1))
    offset, length = struct.unpack_from("<2Q", whole, 32 + 2 * 16)
    counters = bytearray(zlib.decompress(bytes(whole[offset : offset + length])))
    struct.pack_into("<q", counters, 16 + 14 * 8, 9000)
    changed = zlib.compress(bytes(counters))
    struct.pack_into("<2Q", whole, 32 + 2 * 16, len(whole), len(changed))
    (tmp_path / "a").write_bytes(bytes(whole) + changed)
    assert "the trace has 6,000 of the 12,000 bytes" in " ".join(
        imported(darshan.read_darshan, tmp_path / "a").summary.capture.not_seen
    )
    struct.pack_into("<2Q", whole, 32 + 11 * 16, 0, 0)
    (tmp_path / "b").write_bytes(bytes(whole))
    with pytest.raises(CommandError, match="DXT_ENABLE_IO_TRACE=1"):
        imported(darshan.read_darshan, tmp_path / "b")


@pytest.mark.parametrize("version", [b"3.21", b"3.41"])
def test_pydarshan_reads_the_same_of_the_log(tmp_path: Path, version: bytes) -> None:
    library = pytest.importorskip("darshan", reason="needs the package darshan")
    path = tmp_path / "log.darshan"
    path.write_bytes(darshan_log(version, name=b"/data/a", dxt_version=1))
    report = library.DarshanReport(str(path), read_all=False)
    report.mod_read_all_dxt_records("DXT_POSIX", dtype="pandas")
    theirs = [record["read_segments"] for record in report.records["DXT_POSIX"]]
    (ours,) = darshan.read_darshan([path])
    assert len(ours.spans) == sum(map(len, theirs))
    assert ours.spans["bytes"].sum() == sum(int(each["length"].sum()) for each in theirs)


# ----------------------------------------------------------------------------------- Nsight Systems


def write_nsys(path: Path, processes: int = 2, name: str = "gemm") -> Path:
    """A database with the tables and columns of `nsys export --type sqlite`: two steps for each
    process."""
    with sqlite3.connect(path) as database:
        database.executescript("""
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
                correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
                correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
                correlationId INTEGER, globalPid INTEGER, bytes INTEGER);
        """)  # noqa: E501
        database.executemany(
            "INSERT INTO StringIds VALUES (?, ?)",
            [(1, name), (2, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"), (3, "iteration 6")],
        )
        for number in range(processes):
            process = (100 + number) << 24
            for step in (5, 6):
                at = (step - 5) * 10 * MS
                text = ("train step 5", None) if step == 5 else (None, 3)
                database.execute(
                    "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, ?)",
                    (at, at + 10 * MS, *text, process | 101 + number),
                )
                kernel = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 7, 1, ?, ?, ?)"
                database.execute(kernel, (at + 4 * MS, at + 8 * MS, process, 1, 1))
                database.execute(
                    kernel.replace("0, 7", "0, 20"), (at + 7 * MS, at + 9 * MS, process, 2, 2)
                )
                database.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, 0, 7, 1, ?, 1000, 1,"
                    " 0, 2)",
                    (at + 3 * MS, at + 4 * MS, process),
                )
    return path


def test_a_database_of_nsight_systems_has_steps_kernels_and_copies(tmp_path: Path) -> None:
    run = imported(nsys.read_nsys, write_nsys(tmp_path / "report.sqlite"))
    assert kinds(run) == {"step": 4, "h2d": 4, "kernel": 4, "comm": 4}
    assert run.steps.select("rank", "step", "compute_ns", "h2d_ns").rows() == [
        (rank, step, 4 * MS, 1 * MS) for rank in (0, 1) for step in (5, 6)
    ]
    assert run.summary.overlap["communication"].hidden_ratio == pytest.approx(0.5)
    assert set(run.trace.spans.filter(pl.col("kind") == "h2d")["name"].cast(pl.String)) == {
        "pageable"
    }


def test_views_of_a_foreign_database_are_not_run(tmp_path: Path) -> None:
    """A view with the name of a table could compute for ever; only tables are read."""
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        forever = (
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT x start FROM r"
        )
        database.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {forever}")
    with pytest.raises(CommandError, match="has no kernels or copies"):
        imported(nsys.read_nsys, tmp_path / "x.sqlite")


# ------------------------------------------------------------------------------------ hostile files


def hostile_input(kind: str, folder: Path) -> bytes:
    if kind == "kineto":
        return json.dumps({"traceEvents": kineto_events(), "distributedInfo": {"rank": 0}}).encode()
    if kind == "dftracer":
        return b"\n".join(dftracer_lines())
    if kind == "darshan":
        return darshan_log()
    return write_nsys(folder / "base.sqlite", 1, HOSTILE).read_bytes()


READERS: dict[str, Callable[..., list[Imported]]] = {
    "kineto": kineto.read_kineto,
    "dftracer": dftracer.read_dftracer,
    "darshan": darshan.read_darshan,
    "nsys": nsys.read_nsys,
}


@pytest.mark.parametrize("kind", READERS)
def test_damaged_files_give_a_run_or_one_line(tmp_path: Path, kind: str) -> None:
    """200 files with changed bytes, numbers out of range, cut ends and doubled parts: each is a
    run, or an error of one line."""
    base, random, path = hostile_input(kind, tmp_path), np.random.default_rng(11), tmp_path / "x"
    runs = 0
    for case in range(200):
        data = bytearray(base)
        for _ in range(int(random.integers(1, 12))):
            place = int(random.integers(len(data)))
            change = case % 4
            if change == 0:
                data[place] = int(random.integers(256))
            elif change == 1:
                data[place : place + 8] = b"\xff" * 8
            elif change == 2:
                data = data[: max(1, place)] if random.random() < 0.3 else data
                data += data[place : place + int(random.integers(200))]
            else:
                numbers = [
                    b"1e999",
                    b"-5",
                    b"99999999999999999999999",
                    b"null",
                    b'"x"',
                    b"[[[[",
                    b"\0\0\0\0\0\0\0\x80",
                ]
                data[place : place + 4] = numbers[int(random.integers(len(numbers)))]
        path.write_bytes(data)
        try:
            to_trace(READERS[kind]([path]), "run", "x", "x")
            runs += 1
        except CommandError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017
    assert runs > 10


@pytest.mark.parametrize("kind", ["kineto", "dftracer", "darshan", "nsys-sqlite"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 5000,
        b"[" * 100_000,
        b"\x1f\x8b" + b"x" * 100,
        b"SQLite format 3\0" + b"y" * 5000,
        b"3.41\0\0\0\0" * 400,
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, kind: str, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(CommandError):
        to_trace(READERS[kind.removesuffix("-sqlite")]([tmp_path / "x"]), "run", "x", "x")


def test_a_region_that_inflates_to_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(darshan, "_MOST_BYTES", 1 << 20)
    log = bytearray(darshan_log(streams=1))
    bomb = zlib.compress(b"\0" * (8 << 20))
    struct.pack_into("<2Q", log, 32 + 11 * 16, len(log), len(bomb))
    (tmp_path / "x").write_bytes(bytes(log) + bomb)
    with pytest.raises(CommandError, match="one of its regions has more than"):
        darshan.read_darshan([tmp_path / "x"])


@pytest.mark.job(every=4)
def test_the_command_makes_a_run_folder_with_its_page(tmp_path: Path) -> None:
    """The run folder has all files of a run; it is reported as any other; a second import needs
    --force."""
    write_kineto(tmp_path / "trace.json", kineto_events(), distributedInfo={"rank": 0})
    made = run_ioprof("import", "kineto", "trace.json", "--out", "run", cwd=tmp_path)
    assert made.code == 0, made.err
    assert "imported 10 spans of 1 file" in made.err
    assert {"run.json", "summary.json", "spans.parquet", "report.html"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    assert "<script>\\x1b" not in (tmp_path / "run/report.html").read_text()
    for arguments, message in (
        (("kineto", "trace.json", "--out", "run"), "exists"),
        (("kineto", "nothing.json", "--out", "other"), "no such file"),
        (("darshan", "trace.json", "--out", "other"), "not a log of Darshan"),
    ):
        ended = run_ioprof("import", *arguments, cwd=tmp_path)
        assert (ended.code, message in ended.err, len(ended.err.splitlines())) == (2, True, 1)
    assert not (tmp_path / "other").exists()
