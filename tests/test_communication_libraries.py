"""Sockets of libraries that connect the parts of a job are no data; those of libraries with similar
names are."""

import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from compiling import compiler
from preload import captured, environment, needs_library

pytestmark = [pytest.mark.job, needs_library]

BYTES: Final = 1_000_000
COMMUNICATE: Final = (
    "libtorch_cpu.so",
    "libtorch.so",
    "libc10.so",
    "libgloo.so",
    "libnccl.so.2",
    "librccl.so",
    "libmpi.so.40",
    "libopen-rte.so",
    "libpmi2.so",
    "libprrte.so",
    "libucp.so.0",
    "libuct.so.0",
    "libucs.so.0",
    "libfabric.so.1",
    "libpsm2.so",
    "libzmq.so.5",
    "libsharp.so",
    "libmscclpp.so",
    "libtensorpipe.so",
    "mpi_lib.so",
)
OTHERS: Final = (
    "libtorchcodec.so",
    "libtorc.so",
    "libucx.so",
    "torch_.so",
    "libx_torch_.so",
    "mpi_li.so",
    "lib.so",
    "li",
)
SOURCE: Final = """
#include <sys/socket.h>
long receive(int descriptor)
{
    static char bytes[65536];
    long got, sum = 0;
    while ((got = recv(descriptor, bytes, sizeof bytes, 0)) > 0)
        sum += got;
    return sum;
}
"""
PROGRAM: Final = """
import ctypes, socket, sys
for path, port in zip(sys.argv[1::2], sys.argv[2::2]):
    receive = ctypes.CDLL(path).receive
    receive.restype = ctypes.c_long
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        print(receive(connection.fileno()))
"""


def send(listening: socket.socket) -> None:
    """Send `BYTES` to the first that connects."""
    connection, _ = listening.accept()
    with connection:
        connection.sendall(bytes(BYTES))


def test_names_of_libraries_that_communicate(tmp_path: Path) -> None:
    """A socket is no data where the library that receives has a name of the list, and is data
    otherwise."""
    (tmp_path / "receive.c").write_text(SOURCE)
    subprocess.run(
        [compiler(), "-shared", "-fPIC", "-o", tmp_path / "built", tmp_path / "receive.c"],
        check=True,
    )
    listening = {name: socket.create_server(("127.0.0.1", 0)) for name in (*COMMUNICATE, *OTHERS)}
    command = [sys.executable, "-c", PROGRAM]
    for name, server in listening.items():
        (tmp_path / name).write_bytes((tmp_path / "built").read_bytes())
        threading.Thread(target=send, args=(server,), daemon=True).start()
        command += [str(tmp_path / name), str(server.getsockname()[1])]
    variables = environment(tmp_path / "spool")
    printed = subprocess.run(
        command, env=variables, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    ports = {server.getsockname()[1]: name for name, server in listening.items()}
    for server in listening.values():
        server.close()
    assert [BYTES] * len(ports) == [*map(int, printed.split())]
    trace = captured(tmp_path / "spool")
    of_sockets = trace.spans.filter(pl.col("source").cast(pl.String) == "socket").join(
        trace.files, on="file", how="left"
    )
    peers = of_sockets["path"].cast(pl.String).unique().to_list()
    assert {*OTHERS} == {ports[int(peer.rpartition(":")[2])] for peer in peers}
