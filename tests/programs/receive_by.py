"""Receive what a server or another program sends, in a way that is given: WAY SOURCE. Prints bytes
and seconds that it waited."""

import asyncio
import http.client
import os
import select
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from urllib.parse import urlsplit


def _urllib(url: str) -> int:
    with urllib.request.urlopen(url, timeout=30) as response:
        return sum(map(len, iter(lambda: response.read(1 << 16), b"")))


def _http_client(url: str) -> int:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.request("GET", parts.path)
    received = len(connection.getresponse().read())
    connection.close()
    return received


def _asyncio(url: str) -> int:
    async def receive() -> int:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(f"GET {parts.path} HTTP/1.0\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        received = 0
        while data := await reader.read(1 << 16):
            received += len(data)
        writer.close()
        return received

    return asyncio.run(receive())


def _requests(url: str) -> int:
    with sys.modules["requests"].get(url, stream=True, timeout=30) as response:
        return sum(map(len, response.iter_content(1 << 16)))


def _select(url: str) -> int:
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.sendall(f"GET {parts.path} HTTP/1.0\r\n\r\n".encode())
        connection.setblocking(False)
        received = 0
        while True:
            select.select([connection], [], [])
            data = connection.recv(1 << 16)
            received += len(data.partition(b"\r\n\r\n")[2] if data.startswith(b"HTTP/") else data)
            if not data:
                return received


def _tls(url: str) -> int:
    context = ssl._create_unverified_context()
    with urllib.request.urlopen(url, timeout=30, context=context) as response:
        return sum(map(len, iter(lambda: response.read(1 << 16), b"")))


def _objects(url: str) -> int:
    """Objects of 20 kB, each over a connection of its own."""
    return sum(_urllib(url + "?object") for _ in range(30))


def _unix(path: str) -> int:
    received = 0
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        buffer = bytearray(1 << 16)
        while count := connection.recv_into(buffer):
            received += count
    return received


def _pipe(command: str) -> int:
    with subprocess.Popen(command, shell=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        return sum(map(len, iter(lambda: child.stdout.read(10240), b"")))


def _popen(command: str) -> int:
    with os.popen(command) as stream:
        return sum(map(len, iter(lambda: stream.buffer.read(10240), b"")))


def _fifo(path: str) -> int:
    with open(path, "rb", buffering=0) as file:
        return sum(map(len, iter(lambda: file.read(1 << 16), b"")))


def _standard_input(_: str) -> int:
    return sum(map(len, iter(lambda: sys.stdin.buffer.read(1 << 16), b"")))


WAYS: dict[str, Callable[[str], int]] = {
    "urllib": _urllib,
    "http.client": _http_client,
    "asyncio": _asyncio,
    "requests": _requests,
    "select": _select,
    "tls": _tls,
    "objects": _objects,
    "unix": _unix,
    "pipe": _pipe,
    "popen": _popen,
    "fifo": _fifo,
    "stdin": _standard_input,
}

if __name__ == "__main__":
    if sys.argv[1] == "requests":
        import requests  # noqa: F401  not a part of the time
    start = time.monotonic()
    print(WAYS[sys.argv[1]](sys.argv[2]), time.monotonic() - start)
