"""Senders of a known rate for tests: an HTTP server, a Unix socket, a FIFO, and programs that write
to a pipe."""

import os
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

SMALL_BYTES: Final = 20_000
_PIECES_PER_S: Final = 50


def send_slowly(send: Callable[[bytes], Any], num_bytes: int, bytes_per_s: int) -> None:
    """Send so many bytes at that rate, in fifty pieces a second."""
    start, piece, sent = time.monotonic(), bytes_per_s // _PIECES_PER_S, 0
    while sent < num_bytes:
        send(bytes(min(piece, num_bytes - sent)))
        sent += piece
        time.sleep(max(0.0, start + sent / bytes_per_s - time.monotonic()))


@contextmanager
def http_server(num_bytes: int, bytes_per_s: int, certificate: Path | None = None) -> Iterator[str]:
    """The URL of a server on this host whose answer has so many bytes; with `?object`,
    `SMALL_BYTES` after 20 ms."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            request = b""
            while b"\r\n\r\n" not in request:
                request += self.request.recv(4096)
            is_small = b"?object" in request
            size = SMALL_BYTES if is_small else num_bytes
            head = f"HTTP/1.0 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
            if is_small:
                time.sleep(0.02)
            self.request.sendall(head.encode())
            send_slowly(self.request.sendall, size, 1 << 30 if is_small else bytes_per_s)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"{'http' if certificate is None else 'https'}://localhost:{server.server_address[1]}/data"
        finally:
            server.shutdown()


def make_certificate(path: Path) -> None:
    """A certificate of this host and its key, in one file."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run(
        [*command, "-keyout", str(path), "-out", str(path) + ".crt"],
        check=True,
        capture_output=True,
    )
    path.write_bytes(path.read_bytes() + Path(str(path) + ".crt").read_bytes())


@contextmanager
def unix_server(path: Path, num_bytes: int, bytes_per_s: int) -> Iterator[None]:
    """A Unix socket at `path` that sends to the first who connects."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                send_slowly(connection.sendall, num_bytes, bytes_per_s)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(30)


@contextmanager
def fifo(path: Path, num_bytes: int, bytes_per_s: int) -> Iterator[None]:
    """A FIFO at `path` that a thread writes to."""
    os.mkfifo(path)

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            send_slowly(file.write, num_bytes, bytes_per_s)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield
    thread.join(30)
