"""Requests of HTTP: the parser of messages, each request as one span with the bytes of the server's
log, what bounds a store, and no secret in a run."""

import json
import os
import shutil
import socketserver
import ssl
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import polars as pl
import pytest
from companions import companion
from compiling import compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import ioprof
from limited_senders import make_certificate
from preload import captured, environment, needs_library, run_captured, run_python
from repository import NATIVE, PROGRAMS
from strategies import examples
from told import summarise

from ioprof.analysis.reads.requests import object_stores, requests, slow_reads, slowest_of
from ioprof.format.run_record import RunRecord, StoreBound
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.instrument import preload
from ioprof.report.texts.statements import statements

SECRET_QUERY: Final = "Qs3cr3tOfTheQueryAbCd0123456789"
SECRET_HEADER: Final = "Hs3cr3tOfTheHeaderAbCd0123456789"
DONE, INVALID, FIELDS, UNTIL_CLOSE = 8, 9, 1, 7
"""Phases of a message, see http.h."""

# ------------------------------------------------------------------------------------ the parser


def parsed(program: Path, messages: list[tuple[int, bytes]]) -> list[list[str]]:
    """What the parser finds in each message, in the order of the program's columns."""
    sent = b"".join(
        bytes([kind]) + len(data).to_bytes(4, "little") + data for kind, data in messages
    )
    ended = subprocess.run([program], input=sent, capture_output=True, timeout=60)
    assert (0, b"") == (ended.returncode, ended.stderr)
    return [line.split(" ", 5) for line in ended.stdout.decode("latin1").split("\n")[:-1]]


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parser as a program, with the sanitizers of addresses and undefined behaviour."""
    program = tmp_path_factory.mktemp("parser") / "http_messages"
    sanitizers = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    return compiled("http_messages.c", program, *sanitizers, str(NATIVE / "capture" / "http.c"))


REQUESTS: Final = (
    ("GET /a/b HTTP/1.1\r\nHost: h:9\r\n\r\n", DONE, 0, -1, "http://h:9/a/b"),
    ("GET /a?X-Sig=1 HTTP/1.1\r\nhost: h\r\nRange: bytes=7-9\r\n\r\n", DONE, 0, 7, "http://h/a"),
    ("GET http://u:p@h/a#x HTTP/1.1\r\nHost: x\r\n\r\n", DONE, 0, -1, "http://h/a"),
    ("PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", DONE, 3, -1, "http://h/a"),
    ("CONNECT h:443 HTTP/1.0\r\n\r\n", DONE, 0, -1, "http://h:443"),
    ("CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", DONE, 0, -1, "http://h:443"),
    ("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", DONE, 0, -1, "http://h"),
    ("\r\nGET /a HTTP/1.0\n\n", DONE, 0, -1, "http:///a"),
    ("GET /a FTP/1.1\r\n", INVALID, 0, -1, ""),
    ("PUT /a HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n", INVALID, 0, -1, ""),
    ("PUT /a HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n", INVALID, 0, -1, ""),
)
PARTIAL: Final = "HTTP/1.1 206 Partial Content\r\nContent-Length: 2\r\n"
CHUNKED: Final = "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
RESPONSES: Final = (
    (0, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", DONE, 200, 3, -1),
    (0, f"{PARTIAL}Content-Range: bytes 5-6/9\r\n\r\nab", DONE, 206, 2, 5),
    (0, f"{CHUNKED}2\r\nab\r\nA;x=1\r\n0123456789\r\n0\r\nX: y\r\n\r\n", DONE, 200, 12, -1),
    (0, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", DONE, 204, 0, -1),
    (2, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", DONE, 200, 0, -1),
    (0, "HTTP/1.0 200 OK\r\n\r\nabc", UNTIL_CLOSE, 200, 3, -1),
    (0, "HTTP/1.1 101 Switching\r\n\r\n", INVALID, 101, 0, -1),
    (0, f"{CHUNKED}x\r\n", INVALID, 200, 0, -1),
    (0, "HTTP/2 200 OK\r\n", INVALID, 0, 0, -1),
)  # fmt: skip


@pytest.mark.job
def test_messages_are_understood_in_pieces_of_any_size(parser: Path) -> None:
    """A message ends where RFC 9112 says, its body has so many bytes, and a URL has neither query
    nor credentials."""
    found = parsed(parser, [(1, text.encode()) for text, *_ in REQUESTS])
    assert [[phase, body, first, url] for _, phase, body, first, url in REQUESTS] == [
        [int(phase), int(body), int(first), url] for _, phase, _, body, first, url in found
    ]
    found = parsed(parser, [(kind, text.encode()) for kind, text, *_ in RESPONSES])
    assert [list(expected) for _, _, *expected in RESPONSES] == [
        [int(value) for value in values] for _, *values, _ in found
    ]


_SEEDS: Final = [text.encode() for text, *_ in REQUESTS] + [
    text.encode() for _, text, *_ in RESPONSES
]


@pytest.mark.job
@settings(max_examples=examples(25))
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2]),
            st.sampled_from(_SEEDS),
            st.integers(0, 120),
            st.binary(max_size=12),
            st.integers(1, 3000),
        ),
        min_size=20,
        max_size=60,
    )
)
def test_no_bytes_harm_the_parser(
    parser: Path, damaged: list[tuple[int, bytes, int, bytes, int]]
) -> None:
    """Whatever was sent: no access outside of what there is, the same result in pieces of any size,
    and never more than was there."""
    messages = [
        (kind, text[:place] + more * many + text[place + len(more) :])
        for kind, text, place, more, many in damaged
    ]
    for (_, data), (used, _, _, body, *_) in zip(messages, parsed(parser, messages), strict=True):
        assert 0 <= int(used) <= len(data)
        assert 0 <= int(body) <= len(data)


# ------------------------------------------------------------------------------------ real clients


@contextmanager
def store(folder: Path, *, tls: bool = False, **shape: Any) -> Iterator[tuple[str, Path]]:
    """The URL of an object store of this shape, and its log."""
    certificate = folder / "certificate.pem"
    if tls and not certificate.exists():
        if shutil.which("openssl") is None:
            pytest.skip("no openssl to make a certificate")
        make_certificate(certificate)
    log = folder / "log"
    program = PROGRAMS / "object_server.py"
    with companion(program, log, certificate if tls else "", json.dumps(shape)) as server:
        yield f"http{'s' if tls else ''}://localhost:{server.ready['port']}", log


def logged(log: Path) -> list[dict[str, Any]]:
    """The requests that the server answered."""
    return [json.loads(line) for line in log.read_text().splitlines()]


def get(folder: Path, client: str, url: str, count: int, *more: str) -> tuple[Trace, int]:
    """What was recorded of a client, and the bytes that it got."""
    command = [sys.executable, PROGRAMS / "get_objects.py", client, url, str(count), *more]
    variables = environment(
        folder / "spool", SECRET_QUERY=SECRET_QUERY, SECRET_HEADER=SECRET_HEADER
    )
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120)
    assert (0, "") == (ended.returncode, ended.stderr)
    return captured(folder / "spool"), int(ended.stdout)


def as_logged(found: pl.DataFrame, url: str) -> Counter[tuple[str, str, int, int]]:
    """Requests as the server's log has them: method, path without query, status and bytes."""
    return Counter(
        (row["name"].split(" ")[0], row["path"].removeprefix(url), row["status"], row["bytes"])
        for row in found.iter_rows(named=True)
    )


def of_log(entries: list[dict[str, Any]]) -> Counter[tuple[str, str, int, int]]:
    """The same from the log."""
    return Counter(
        (entry["method"], urlsplit(entry["path"]).path, entry["status"], entry["bytes"])
        for entry in entries
    )


def has_secret(folder: Path) -> list[Path]:
    """The files of a folder in which one of the secrets is."""
    words = (SECRET_QUERY.encode(), SECRET_HEADER.encode(), b"X-Amz-Signature")
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and any(word in path.read_bytes() for word in words)
    ]


@needs_library
@pytest.mark.job(every=4)
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("client", ["urllib", "urllib3", "aiohttp", "boto3", "fsspec"])
def test_each_request_is_one_span(client: str, tls: bool, tmp_path: Path) -> None:
    """The requests of the server's log, with their bytes; what was read of them is what came; the
    first byte is not before the server sent it; nothing of a secret is in the spool."""
    pytest.importorskip({"urllib": "urllib.request"}.get(client, client))
    if client == "fsspec":
        pytest.importorskip("aiohttp")
    more = {"chunked": True} if client == "aiohttp" else {}
    with store(tmp_path, tls=tls, size=200_000, fails=10, **more) as (url, log):
        trace, got = get(  # of 100 objects, some twice, those that failed included
            tmp_path,
            client,
            url,
            130 if client != "fsspec" else 8,
            *["ranged"][: client == "urllib"],
        )
        entries = logged(log)
    found = requests(trace)
    assert of_log(entries) == as_logged(found, url)
    assert got == sum(entry["bytes"] for entry in entries if entry["status"] < 300)
    reads = trace.spans.filter(pl.col("source") == "socket").join(trace.files, on="file")
    of_objects = reads.filter(pl.col("path").str.starts_with(f"{url}/"))
    assert got == of_objects["bytes"].sum()
    assert (of_objects["end_ns"] >= of_objects["start_ns"]).all()
    repeats = client in ("urllib", "urllib3", "boto3")
    retried = Counter(entry["status"] for entry in entries)[503] if repeats else 0
    (found_store,) = object_stores(trace)
    assert (retried, url) == (found_store.retries, found_store.origin)
    if client in ("urllib", "boto3"):  # one at a time, in the order of the log
        least = [(entry["sent_ns"] - entry["there_ns"]) / 1e9 for entry in entries]
        assert all(first >= sent for first, sent in zip(found["first_byte_s"], least, strict=True))
    assert ([], len(entries) if client == "urllib" else 1) == (
        has_secret(tmp_path / "spool"),
        found_store.connections if client != "aiohttp" and client != "fsspec" else 1,
    )


@needs_library
@pytest.mark.job(every=4)
def test_uploads_are_requests_and_no_reads(tmp_path: Path) -> None:
    """A PUT has the bytes that were sent; what is sent in pieces, and what is not HTTP, changes
    nothing of it."""
    program = (
        "import http.client, sys\n"
        "connection = http.client.HTTPConnection(sys.argv[1])\n"
        "for size in (10, 300_000):\n"
        "    connection.request('PUT', '/bucket/checkpoint?partNumber=1', bytes(size))\n"
        "    connection.getresponse().read()\n"
    )
    with store(tmp_path) as (url, log):
        run_captured(tmp_path / "spool", sys.executable, "-c", program, url.removeprefix("http://"))
        entries = logged(log)
    trace = captured(tmp_path / "spool")
    assert of_log(entries) == as_logged(requests(trace), url)
    assert trace.spans.filter(pl.col("source") == "socket").is_empty()
    (found,) = object_stores(trace)
    assert (300_010, 0, 1) == (found.bytes_sent, found.bytes, found.connections)


@contextmanager
def upgrading_server(num_bytes: int, certificate: Path | None) -> Iterator[int]:
    """The port of a server that changes to another protocol, in which it answers one byte with so
    many."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            request = b""
            while b"\r\n\r\n" not in request:
                request += self.request.recv(4096)
            self.request.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\n\r\n")
            self.request.recv(1)
            self.request.sendall(bytes(num_bytes))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()


UPGRADE: Final = """
import socket, ssl, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
if sys.argv[2] == "tls":
    connection = ssl._create_unverified_context().wrap_socket(connection)
connection.sendall(b"GET /a HTTP/1.1\\r\\nHost: h\\r\\nUpgrade: other\\r\\n\\r\\n")
head = b""
while b"\\r\\n\\r\\n" not in head:
    head += connection.recv(4096)
connection.sendall(b"x")
print(sum(map(len, iter(lambda: connection.recv(1 << 16), b""))))
"""
UPGRADE_IN_MEMORY: Final = """
import asyncio, ssl, sys
async def main():
    context = ssl._create_unverified_context()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]), ssl=context)
    writer.write(b"GET /a HTTP/1.1\\r\\nHost: h\\r\\nUpgrade: other\\r\\n\\r\\n")
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"x")
    print(len(await reader.read()))
asyncio.run(main())
"""


@needs_library
@pytest.mark.job(every=4)
@pytest.mark.parametrize("how", ["plain", "tls", "memory"])
def test_what_follows_an_upgrade_is_read_from_the_peer(how: str, tmp_path: Path) -> None:
    """The bytes of a protocol that is not understood are those of the address, encrypted or not."""
    certificate = tmp_path / "certificate.pem"
    if how != "plain":
        if shutil.which("openssl") is None:
            pytest.skip("no openssl to make a certificate")
        make_certificate(certificate)
    num_bytes, program = 2_000_000, UPGRADE_IN_MEMORY if how == "memory" else UPGRADE
    with upgrading_server(num_bytes, None if how == "plain" else certificate) as port:
        said = run_python(tmp_path / "spool", program, port, how)
    trace = captured(tmp_path / "spool")
    reads = trace.spans.filter(pl.col("source") == "socket").join(trace.files, on="file")
    seen = reads.filter(pl.col("path").str.starts_with("tcp://"))["bytes"].sum()
    assert num_bytes == int(said)
    assert num_bytes <= seen <= 1.05 * num_bytes


DISCARD: Final = """
import ctypes, socket, threading
server = socket.create_server(("127.0.0.1", 0))
def answer():
    connection = server.accept()[0]
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 9\\r\\n\\r\\n" + bytes(9))
thread = threading.Thread(target=answer)
thread.start()
client = socket.create_connection(server.getsockname())
client.sendall(b"GET / HTTP/1.1\\r\\nHost: h\\r\\n\\r\\n")
thread.join()
print(ctypes.CDLL(None).recv(client.fileno(), None, 100, socket.MSG_TRUNC))
"""


@needs_library
@pytest.mark.job
def test_what_is_discarded_is_not_looked_at(tmp_path: Path) -> None:
    """With MSG_TRUNC the kernel writes nothing of a stream, and needs no buffer (tcp(7))."""
    assert "47\n" == run_python(tmp_path / "spool", DISCARD)


@needs_library
@pytest.mark.job
@pytest.mark.parametrize("major", [3, 1], ids=["same version", "another version"])
def test_each_call_reaches_the_copy_that_its_caller_is_linked_to(
    major: int, tmp_path: Path
) -> None:
    """Of two copies of OpenSSL in one process: the function is that without ioprof, by whatever
    address it is called."""
    names: dict[int, Path] = {}
    for copy, version in ((10, 3), (20, major)):
        names[copy] = tmp_path / f"lib{copy}.so"
        script = tmp_path / f"versions{copy}"
        script.write_text(f"OPENSSL_{version} {{ global: *; }};")
        compiled(
            "openssl_copies.c", names[copy], f"-DCOPY={copy}", f"-DMAJOR={version}", "-fPIC",
            "-shared", f"-Wl,-soname,{names[copy].name}", f"-Wl,--version-script={script}",
        )  # fmt: skip
    linked = ("-O2", f"-Wl,-rpath,{tmp_path}", "-Wl,--no-as-needed")
    caller = compiled(
        "openssl_copies.c", tmp_path / "caller.so", "-DCALLER", "-fPIC", "-shared", *linked,
        str(names[20]),
    )  # fmt: skip
    program = compiled("openssl_copies.c", tmp_path / "program", *linked, str(names[10]))
    alone = subprocess.run([program, caller], capture_output=True, text=True, check=True).stdout
    assert alone == ("10 10\n11 11\n" if major == 3 else "10 20\n11 21\n")
    assert alone == run_captured(tmp_path / "spool", program, caller)


# ------------------------------------------------------------------------------------ the answer


@pytest.mark.parametrize("thread", [{"pid": 10, "tid": 10}, {"pid": 10, "tid": None}])
@pytest.mark.parametrize("host", ["node", None])
def test_a_request_began_where_its_own_thread_read(
    host: str | None, thread: dict[str, int | None]
) -> None:
    """And not a thread of another host with the same ids, at the same time, in the same object."""
    rows = [
        {"kind": kind, "host": of, "offset": offset, "file": 1, "start_ns": 0, "end_ns": 9} | thread
        for of, first in ((host, 700), ("other", 300))
        for kind, offset in (("request", 5), ("read", first), ("read", first + 50))
    ]
    trace = Trace(RunRecord.of({}), pl.DataFrame(rows, schema=table_schema(SPAN_COLUMNS)))
    slow = slow_reads(trace, slowest_of(requests(trace), 2))
    assert [700, 300] == [each.offset for each in slow]


@needs_library
@pytest.mark.job(every=4)
@pytest.mark.parametrize(
    ("shape", "count", "passes", "bound", "cause"),
    [
        ({"size": 20_000, "latency_s": 0.03}, 80, 0, StoreBound.SMALL, "storage"),
        ({"size": 1_000_000, "bytes_per_s": 10_000_000}, 40, 0, StoreBound.RATE, "storage"),
        ({"size": 2_000_000, "latency_s": 0.3}, 16, 0, StoreBound.LATENCY, "storage"),
        ({"size": 100_000, "stalls": 20, "stall_s": 1.0}, 60, 0, StoreBound.STALLS, "storage"),
        ({"size": 300_000}, 40, 3, StoreBound.CLIENT, "loader"),
    ],
    ids=["small objects", "slow server", "slow first byte", "stalls", "client"],
)
def test_what_bounds_a_store(
    shape: dict[str, Any], count: int, passes: int, bound: StoreBound, cause: str, tmp_path: Path
) -> None:
    """Of a job that a server feeds: what its requests waited for is the verdict's, its requests
    have the batches of the loader, and the slowest are listed."""
    with store(tmp_path, **shape) as (url, log):
        program = PROGRAMS / "train_from_store.py"
        (tmp_path / "spool").mkdir()
        variables = preload.environment(tmp_path / "spool", os.environ, hooks=True)
        command = [sys.executable, program, url, str(count), "1", str(passes)]
        subprocess.run(command, env=variables, capture_output=True, check=True, timeout=120)
        entries = logged(log)
    trace = captured(tmp_path / "spool")
    found, summary = requests(trace), summarise(trace)
    assert of_log(entries) == as_logged(found, url)
    assert count // 4 == found["batch"].n_unique() == found["batch"].drop_nulls().n_unique()
    (seen,) = summary.storage.stores
    assert (bound, cause) == (seen.bound, summary.verdict.bound_by)
    assert url in summary.verdict.text
    assert any(url in each.action for each in summary.verdict.advice[:2])
    assert seen.per_batch == 4
    waits_in_turn = bound in (StoreBound.SMALL, StoreBound.LATENCY, StoreBound.STALLS)
    codes = [each.code for each in summary.verdict.advice]
    assert waits_in_turn == ("requests_together" in codes)
    slowest = summary.storage.slowest[0]
    assert (found["took_s"].max(), "socket") == (slowest.seconds, slowest.source)
    assert slowest.batch is not None
    assert any(url in each.text for each in statements(summary) if each.label == "object store")


@needs_library
@pytest.mark.job(every=4)
def test_no_secret_is_in_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries of signed URLs and headers of credentials, through `ioprof record`, page included."""
    with store(tmp_path, size=1000) as (url, _):
        monkeypatch.setenv("SECRET_QUERY", SECRET_QUERY)
        monkeypatch.setenv("SECRET_HEADER", SECRET_HEADER)
        program = PROGRAMS / "get_objects.py"
        command = ("record", "--out", tmp_path / "run", "--", sys.executable, program)
        finished = ioprof(*command, "urllib", url, 20, cwd=tmp_path)
        assert (0, "20000") == (finished.code, finished.out.split("\n")[0])
    assert [] == has_secret(tmp_path / "run")
    assert f"{url}/bucket/key1" in (tmp_path / "run" / "summary.json").read_text()
