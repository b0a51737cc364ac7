"""Reads of sockets and pipes: bytes, waits and the name of the peer; and messages within the job,
which are no data."""

import importlib.util
import os
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from limited_senders import SMALL_BYTES, fifo, http_server, make_certificate, unix_server
from preload import captured, environment, needs_library, reads_of, run_captured
from quiet_machine import comparing_times, on_a_quiet_machine
from repository import PROGRAMS

from ioprof.analysis.reads.sources import storage
from ioprof.format.trace import Trace
from ioprof.instrument import preload

pytestmark = needs_library

BYTES: Final = 2_000_000
RATE: Final = 5_000_000
LONGEST_HEAD: Final = 300
"""Bytes of an HTTP header."""
SENDER: Final = f'''"{sys.executable}" -S -c "
import sys, time
start = time.monotonic()
for piece in range(40):
    sys.stdout.buffer.write(bytes({BYTES // 40}))
    sys.stdout.flush()
    time.sleep(max(0, start + (piece + 1) * {BYTES // 40 / RATE} - time.monotonic()))
"'''


def received(trace: Trace, pid: int) -> pl.DataFrame:
    """Spans of the bytes that a process received, with the seconds that they took."""
    spans = trace.spans.filter(
        pl.col("pid") == pid, pl.col("source").cast(pl.String).is_in(["socket", "pipe"])
    )
    return spans.join(trace.files, on="file", how="left").with_columns(
        took=(pl.col("end_ns") - pl.col("start_ns")) / 1e9
    )


def receive(
    spool: Path, way: str, source: str, **changes: str
) -> tuple[Trace, pl.DataFrame, float]:
    """A recorded program that receives: the trace, its spans, and how long it received."""
    command = [sys.executable, str(PROGRAMS / "receive_by.py"), way, source]
    job = subprocess.Popen(
        command, env=environment(spool, **changes), stdout=subprocess.PIPE, text=True
    )
    printed, _ = job.communicate(timeout=60)
    assert 0 == job.returncode
    num_bytes, seconds = printed.split()
    trace = captured(spool)
    assert (SMALL_BYTES * 30 if way == "objects" else BYTES) == int(num_bytes)
    return trace, received(trace, job.pid), float(seconds)


def check_wait(spans: pl.DataFrame, seconds: float) -> None:
    """Spans do not overlap, and are what the program did: it waited for its peer nearly all of the
    time."""
    ordered = spans.sort("start_ns")
    assert (ordered["start_ns"][1:] >= ordered["end_ns"][:-1]).all()
    assert spans["took"].sum() <= seconds
    with comparing_times():
        assert 0.6 * seconds < spans["took"].sum()  # 0.95 and more where nothing else runs


@pytest.mark.parametrize("way", ["urllib", "http.client", "asyncio", "requests", "select", "tls"])
@on_a_quiet_machine
def test_a_server_that_sends_slowly(way: str, tmp_path: Path) -> None:
    """Blocking, with a time-out (poll), in an event loop (epoll), through TLS: bytes are exact, the
    wait has the name of the object, or of the server where that is not asked by a host's name."""
    if way == "requests" and importlib.util.find_spec("requests") is None:
        pytest.skip("requests is not installed")
    certificate = tmp_path / "certificate.pem" if way == "tls" else None
    if certificate is not None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl to make a certificate")
        make_certificate(certificate)
    with http_server(BYTES, RATE, certificate) as url:
        _, spans, seconds = receive(tmp_path / "spool", way, url)
    path = "http:///data" if way in ("asyncio", "select") else url  # these send no Host
    assert [path] == spans["path"].unique().to_list()
    assert {"socket"} == set(spans["source"].cast(pl.String))
    assert BYTES == spans["bytes"].sum()
    check_wait(spans, seconds)


@on_a_quiet_machine
def test_small_objects_over_connections_of_their_own(tmp_path: Path) -> None:
    """The waits for the first byte of each object are seen, from the first object on."""
    with http_server(BYTES, RATE) as url:
        _, spans, seconds = receive(tmp_path / "spool", "objects", url)
    assert 30 * SMALL_BYTES == spans["bytes"].sum()
    with comparing_times():
        assert 30 * 0.02 <= spans["took"].sum() <= seconds


@pytest.mark.parametrize("way", ["unix", "fifo", "pipe", "popen", "stdin"])
@on_a_quiet_machine
def test_a_program_that_sends_slowly(way: str, tmp_path: Path) -> None:
    """A Unix socket and a FIFO by their paths, a pipe by the program that writes to it: the last
    one of a pipeline."""
    place = tmp_path / way
    senders: dict[str, AbstractContextManager[None]] = {
        "unix": unix_server(place, BYTES, RATE) if way == "unix" else nullcontext(),
        "fifo": fifo(place, BYTES, RATE) if way == "fifo" else nullcontext(),
    }
    with senders.get(way, nullcontext()):
        if way == "stdin":
            command = f'{SENDER} | "{sys.executable}" "{PROGRAMS / "receive_by.py"}" stdin -'
            num_bytes, seconds = run_captured(tmp_path / "spool", "sh", "-c", command).split()
            trace = captured(tmp_path / "spool")
            (pid,) = {*trace.spans.filter(pl.col("source") == "pipe")["pid"]}
            spans = received(trace, pid)
            assert BYTES == int(num_bytes)
        else:
            trace, spans, seconds = receive(
                tmp_path / "spool",
                way,
                f"{SENDER} | cat" if way in ("pipe", "popen") else str(place),
            )
    (peer,) = spans["path"].unique().to_list()
    if way in ("unix", "fifo"):
        assert f"{'unix' if way == 'unix' else 'pipe'}:{place}" == peer
    else:
        assert peer.startswith("pipe from cat (pid " if way != "stdin" else "pipe from python"), (
            peer
        )
    assert BYTES == spans["bytes"].sum()
    check_wait(spans, float(seconds))
    found = storage(trace)
    assert BYTES <= (found.bytes_socket if way == "unix" else found.bytes_pipe)
    of_files = trace.spans.filter(
        pl.col("kind").is_in(["read", "fault"]), ~pl.col("source").is_in(["socket", "pipe"])
    )
    assert of_files["bytes"].sum() == found.bytes  # what was received is no part of it


@pytest.mark.job(every=4)
def test_messages_within_the_job_are_no_data(tmp_path: Path) -> None:
    """DDP on gloo, its store, and loaders whose batches go through pipes and through shared memory:
    not one span."""
    run_captured(tmp_path / "spool", sys.executable, PROGRAMS / "exchange_within_job.py", "fork")
    trace = captured(tmp_path / "spool")
    assert 6 <= len(trace.run.processes)
    assert has_no_peers(trace)


@pytest.mark.job
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_queues_of_multiprocessing_are_no_data(method: str, tmp_path: Path) -> None:
    """A pool that takes and returns arrays of 400 kB, with every method of starting its
    processes."""
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, sys\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:\n"
        "        assert all(pool.imap(bytes, [bytes(400_000)] * 20))\n"
    )
    run_captured(tmp_path / "spool", sys.executable, program, method)
    trace = captured(tmp_path / "spool")
    assert has_no_peers(trace)


@pytest.mark.job
def test_a_receipt_without_a_peer_costs_nothing_else(tmp_path: Path) -> None:
    """errno of a non-blocking receipt, time-outs of poll, peeking, and sockets of datagrams are as
    without the library."""
    program = """
import errno, select, socket
left, right = socket.socketpair()
left.setblocking(False)
try:
    left.recv(10)
except BlockingIOError as error:
    print(errno.errorcode[error.errno])
print(select.select([left], [], [], 0.01), select.poll().poll(1))
right.sendall(b"abc" * 30000)
print(left.recv(3, socket.MSG_PEEK), left.recv(3), len(left.recvmsg(100)[0]), left.recv_into(bytearray(10)))
first, second = (socket.socket(type=socket.SOCK_DGRAM) for _ in range(2))
first.bind(("127.0.0.1", 0))
second.sendto(b"hello", first.getsockname())
print(first.recvfrom(10)[0])
"""  # noqa: E501
    plain = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert plain == run_captured(tmp_path / "spool", sys.executable, "-c", program)
    assert has_no_peers(captured(tmp_path / "spool"))


def has_no_peers(trace: Trace) -> bool:
    """Whether no bytes were received as data."""
    return trace.spans.filter(pl.col("source").cast(pl.String).is_in(["socket", "pipe"])).is_empty()


@pytest.mark.system
def test_a_file_that_was_downloaded_names_its_peer(tmp_path: Path) -> None:
    """Read by another process, under the name that it was given in the end; a file that was not
    received is not mentioned."""
    (tmp_path / "data").mkdir()
    with http_server(BYTES, 20_000_000) as url:
        program = PROGRAMS / "download_and_read.py"
        printed = run_captured(tmp_path / "spool", sys.executable, program, url, tmp_path / "data")
    num_bytes, pid = map(int, printed.split())
    trace = captured(tmp_path / "spool")
    (found,) = storage(trace).received
    written = trace.spans.filter(pl.col("kind") == "open", pl.col("source") == "socket").join(
        trace.files, on="file"
    )
    names = [f"{tmp_path / 'data'}/{name}" for name in ("0.part", "0.tar", "1.part", "1.tar")]
    assert 2 * BYTES + 100_000 == num_bytes
    assert (url.removesuffix("/data"), pid, 2) == (
        found.peer,
        found.pid,
        found.files,
    )
    # what came with the header is before the file
    assert 2 * (BYTES - 8192) <= found.bytes <= 2 * (BYTES + LONGEST_HEAD)
    assert names == sorted(written["path"])


@pytest.mark.job(every=4)
def test_what_a_program_reads_for_a_pipe_is_counted_once(tmp_path: Path) -> None:
    """`cat FILE |`, as webdataset opens shards: the file's bytes are those of the program, the
    pipe's are counted apart."""
    shard, program = tmp_path / "shard", tmp_path / "program.py"
    shard.write_bytes(bytes(BYTES))
    program.write_text(
        "import subprocess, sys, torch\nfrom torch.utils.data import DataLoader,"
        " IterableDataset\nclass Shard(IterableDataset):\n    def __iter__(self):\n        with"
        " subprocess.Popen(sys.argv[1], shell=True, stdout=subprocess.PIPE) as sender:\n           "
        " while data := sender.stdout.read(100_000):\n                yield"
        " torch.zeros(len(data))\nprint(sum(len(batch[0]) for batch in DataLoader(Shard(), 1,"
        " num_workers=1)))\n"
    )
    variables = preload.environment(tmp_path / "spool", os.environ, hooks=True)
    (tmp_path / "spool").mkdir()
    command = [sys.executable, program, f"cat {shard}; true"]
    printed = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True
    ).stdout
    trace = captured(tmp_path / "spool")
    found = storage(trace)
    assert BYTES == int(printed)
    assert BYTES == found.bytes_pipe == reads_of(trace, shard)["bytes"].sum()
    assert BYTES <= found.bytes < BYTES + 100_000
