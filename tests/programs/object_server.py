"""An object store of HTTP/1.1 for tests, a companion: LOG CERTIFICATE SHAPE, where SHAPE is JSON.

`latency_s` before the first byte, `bytes_per_s` of one connection after it, `size` of an object, of
every `fails`-th request a 503, and a stall of `stall_s` in every `stalls`-th. The log has a line
of JSON for each request: method, path with query, range, status, bytes of the body, and
CLOCK_MONOTONIC when the request was there and when the first byte was sent."""

import json
import re
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final

PIECE_BYTES: Final = 1 << 16


class Store(BaseHTTPRequestHandler):
    """Answers GET, HEAD and PUT of any path."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    shape: ClassVar[dict[str, Any]]
    log: ClassVar[Any]
    lock: ClassVar[Any] = threading.Lock()
    count: ClassVar[int] = 0

    def do_GET(self) -> None:
        """Send the object, or the part of it that was asked for."""
        there_ns = time.monotonic_ns()
        with self.lock:
            Store.count += 1
            number = self.count
        shape = self.shape
        size, first, last = int(shape.get("size", 1000)), 0, 0
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(found[1]), min(int(found[2] or size - 1), size - 1)
            size = last - first + 1
        fails = shape.get("fails") and number % shape["fails"] == 0
        status = 503 if fails else 206 if found else 200
        size = 0 if fails else size
        stalls = shape.get("stalls") and number % shape["stalls"] == 0
        time.sleep(shape.get("latency_s", 0.0) + (shape["stall_s"] if stalls else 0.0))
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{shape['size']}")
        chunked = bool(shape.get("chunked")) and size > 0
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(size))
        self.send_header("ETag", '"0"')
        sent_ns = time.monotonic_ns()
        body = b"" if self.command == "HEAD" else bytes(size)
        if not chunked and len(body) <= PIECE_BYTES:  # in one segment with the head
            self._headers_buffer.append(b"\r\n" + body)  # type: ignore[attr-defined]
            self.flush_headers()
        else:
            self.end_headers()
            self.send_body(body, chunked)
        self.note(status, len(body), there_ns, sent_ns)

    do_HEAD = do_GET  # noqa: N815  the name is http.server's

    def do_PUT(self) -> None:
        """Take an object."""
        there_ns = time.monotonic_ns()
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, PIECE_BYTES)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        sent_ns = time.monotonic_ns()
        self.end_headers()
        self.note(200, int(self.headers["Content-Length"]), there_ns, sent_ns)

    def send_body(self, body: bytes, chunked: bool) -> None:
        """At the rate of the shape."""
        rate, start, sent = self.shape.get("bytes_per_s"), time.monotonic(), 0
        for place in range(0, len(body), PIECE_BYTES):
            piece = body[place : place + PIECE_BYTES]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
            sent += len(piece)
            if rate:
                time.sleep(max(0.0, start + sent / rate - time.monotonic()))
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def note(self, status: int, size: int, there_ns: int, sent_ns: int) -> None:
        """One line of the log."""
        entry = {
            "method": self.command,
            "path": self.path,
            "range": self.headers.get("Range"),
            "status": status,
            "bytes": size,
            "there_ns": there_ns,
            "sent_ns": sent_ns,
        }
        with self.lock:
            self.log.write(json.dumps(entry) + "\n")
            self.log.flush()

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""


class Server(ThreadingHTTPServer):
    """One that waits for many connections at a time."""

    request_queue_size = 128
    daemon_threads = True


if __name__ == "__main__":
    log, certificate, shape = sys.argv[1:4]
    Store.shape = json.loads(shape)
    Store.log = Path(log).open("w")  # noqa: SIM115  open as long as the process
    server = Server(("127.0.0.1", 0), Store)
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    sys.stdin.read()
