"""A volume of a real cluster file system on this machine, behind a network that can be throttled.

    with cluster_volume(rate_mbit=100, delay_ms=1) as volume:
        shutil.copytree(dataset, volume.path / "dataset")

    python tests/cluster_volume.py MOUNTPOINT --rate-mbit 100 --delay-ms 1

MooseFS: one server for metadata and one for data, as Lustre has them, in one network namespace; its
FUSE client in another. All users can access the mount, and its data is deleted at the end. Needs
root and Debian's moosefs-master, moosefs-chunkserver and moosefs-client.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import network_line
from companions import Companion, answer_until_told_to_end, companion
from fuse_server import unmount, unmount_orphan
from network_line import Line, Shape, end_of_line, enter_new_network

from ioprof.process import die_with_parent

_SERVER, _CLIENT = "10.77.0.1", "10.77.0.2"
_PACKAGES: Final = {
    "mfsmaster": "moosefs-master",
    "mfschunkserver": "moosefs-chunkserver",
    "mfsmount": "moosefs-client",
    "ip": "iproute2",
}
_EMPTY: Final = Path("/var/lib/mfs/metadata.mfs.empty")
_START_S: Final = 50.0
_ENDING: Final = {signal.SIGINT, signal.SIGTERM}
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(frozen=True)
class Volume:
    """A mounted volume."""

    path: Path
    _servers: Companion

    def counters(self) -> dict[str, int]:
        """Network traffic so far: `bytes_from_servers`, `bytes_from_client`, `frames`, headers
        included."""
        books = self._servers.ask()
        return {
            "bytes_from_servers": books["bytes_from_first"],
            "bytes_from_client": books["bytes_from_second"],
            "frames": books["frames"],
        }

    def shape(self, **changes: float) -> None:
        """Change the network's `rate_mbit` and `delay_ms`, from now on."""
        self._servers.ask(**changes)


def missing() -> str | None:
    """What this machine lacks; None if nothing."""
    if os.geteuid() != 0:
        return "a cluster volume needs root"
    absent = {tool: package for tool, package in _PACKAGES.items() if not shutil.which(tool)}
    if absent:
        return (
            f"a cluster volume needs {', '.join(absent)}: apt-get install"
            f" {' '.join(absent.values())}"
        )
    for device in (network_line.DEVICE, "/dev/fuse"):
        try:
            os.close(os.open(device, os.O_RDWR))
        except OSError as error:
            return f"a cluster volume needs {device}: {error.strerror}"
    return None


@contextmanager
def cluster_volume(
    mount_point: Path | None = None, *, rate_mbit: float = 0, delay_ms: float = 0
) -> Iterator[Volume]:
    """An empty volume, until the block ends; skips the test if this is not permitted or not
    installed.

    `rate_mbit` is for each direction, 0 is no limit; a round trip takes twice `delay_ms`.
    """
    with tempfile.TemporaryDirectory(prefix="ioprof-test-") as own:
        place = mount_point or Path(own, "volume")
        place.mkdir(exist_ok=True)
        words = (
            f"--rate-mbit={rate_mbit}",
            f"--delay-ms={delay_ms}",
            f"--keep-in={own}",
            "--until-stdin-ends",
        )
        try:
            with companion(__file__, place, *words) as servers:
                yield Volume(place, servers)
        finally:
            unmount_orphan(place)


# -------------------------------------------------------------------------------------- the program


def _start_servers(folder: Path, running: ExitStack) -> None:
    for name in ("metadata", "data", "chunks"):
        (folder / name).mkdir()
    shutil.copy(_EMPTY, folder / "metadata/metadata.mfs")
    common = "WORKING_USER = root\nWORKING_GROUP = root\nNICE_LEVEL = 0\nDISABLE_OOM_KILLER = 0\n"
    exports, disks = folder / "exports", folder / "disks"
    exports.write_text("* / rw,alldirs,admin,maproot=0:0\n")
    disks.write_text(f"{folder}/chunks\n")
    (folder / "master").write_text(
        f"{common}DATA_PATH = {folder}/metadata\nEXPORTS_FILENAME = {exports}\n"
    )
    own = (
        f"DATA_PATH = {folder}/data\nHDD_CONF_FILENAME = {disks}\nHDD_LEAVE_SPACE_DEFAULT ="
        f" 64MiB\nMASTER_HOST = {_SERVER}\n"
    )
    (folder / "chunkserver").write_text(common + own)
    for program, config in (("mfsmaster", "master"), ("mfschunkserver", "chunkserver")):
        _start(
            running, folder / f"{program}.log", program, "-f", "-c", str(folder / config), "start"
        )


def _start(running: ExitStack, log: Path, *command: str) -> "subprocess.Popen[bytes]":
    """Start a daemon that ends when this program ends for any reason."""
    with open(log, "wb") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    running.callback(_kill, process)
    return process


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # their data is not needed
    process.wait()


def _mount(place: Path, folder: Path, running: ExitStack) -> None:
    """Mount with the client, retry until the servers answer, and wait until there is space to
    write."""
    deadline = time.monotonic() + _START_S
    log = folder / "mfsmount.log"
    client = None
    while not (os.path.ismount(place) and os.statvfs(place).f_blocks):
        if time.monotonic() > deadline:
            raise TimeoutError(
                "".join(path.read_text(errors="replace") for path in sorted(folder.glob("*.log")))
            )
        if client is None or client.poll() is not None:
            modest = "mfsnice=0,mfsallowoomkiller"  # by default it would come before all others
            client = _start(running, log, "mfsmount", "-f", "-H", _SERVER, "-o", modest, str(place))
        time.sleep(0.1)


@contextmanager
def _children_of_children() -> Iterator[None]:
    """Adopt processes that outlive their parent, since process 1 may not reap zombies."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _answer(line: Line, changes: dict[str, float]) -> dict[str, int]:
    for name, value in changes.items():
        assert hasattr(line.shape, name), name
        setattr(line.shape, name, value)
    return line.books()


def _serve(arguments: argparse.Namespace) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    with _children_of_children(), ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(dir=arguments.keep_in)))
        enter_new_network()
        first = end_of_line(f"{_SERVER}/24")
        _start_servers(folder, running)
        enter_new_network()
        second = end_of_line(f"{_CLIENT}/24")
        line = Line(first, second, Shape())
        _mount(arguments.mount_point, folder, running)
        running.callback(unmount, arguments.mount_point)
        line.shape.rate_mbit, line.shape.delay_ms = arguments.rate_mbit, arguments.delay_ms
        if arguments.until_stdin_ends:
            ready: dict[str, Any] = {"mount_point": str(arguments.mount_point)}
            answer_until_told_to_end(lambda changes: _answer(line, changes), ready)
        else:
            print(f"{arguments.mount_point}: a MooseFS volume, until it is interrupted", flush=True)
            signal.sigwait(_ENDING)
        line.shape.rate_mbit = line.shape.delay_ms = 0.0  # do not wait for unwritten data


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Serve and mount a volume of a cluster file system, over a slow network."
    )
    parser.add_argument("mount_point", type=Path)
    parser.add_argument(
        "--rate-mbit",
        type=float,
        default=0.0,
        help="million bits per second, each way; 0: no limit",
    )
    parser.add_argument("--delay-ms", type=float, default=0.0, help="each way")
    parser.add_argument(
        "--keep-in",
        type=Path,
        help="a folder for what the servers store; default: where temporary files go",
    )
    parser.add_argument(
        "--until-stdin-ends",
        action="store_true",
        help="answer questions on stdin, as tests want it",
    )
    return parser.parse_args()


if __name__ == "__main__":
    chosen = _arguments()
    if reason := missing():
        print(json.dumps({"missing": reason}))
        sys.exit(0 if chosen.until_stdin_ends else 1)
    _serve(chosen)
