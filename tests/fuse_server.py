"""A simulated slow file system: a program serves a folder read-only and delays each request. Needs
Linux, FUSE and root.

    with fuse_server(folder, read_ms=5) as mounted:
        (mounted.path / "name").read_bytes()
        mounted.counters()["requests"]["READ"]

    python tests/fuse_server.py FOLDER MOUNTPOINT --read-ms 5

The page cache is the kernel's own and works as on any FUSE file system: evict a file by
posix_fadvise, or give `direct_io`. The program serves from its own process, and needs neither
libfuse nor fusermount.
"""

import argparse
import ctypes
import errno
import json
import os
import resource
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from companions import Companion, answer_until_told_to_end, companion
from fuse_files import Caching, Server, Slowness

_DEVICE: Final = "/dev/fuse"
_MS_RDONLY, _MS_NOSUID, _MS_NODEV = 1, 2, 4
_MNT_DETACH: Final = 2
_ENDING: Final = {signal.SIGINT, signal.SIGTERM}


@dataclass(frozen=True)
class Mounted:
    """A folder that is being served."""

    path: Path
    _server: Companion

    def counters(self) -> dict[str, Any]:
        """The counters of the server.

        `requests` by opcode, `bytes` in replies to READ, `read_sizes` {requested bytes: number of
        READs}, and `most_at_once`: the maximum number of concurrent requests. RELEASE comes some
        time after the last close.
        """
        return self._server.ask()

    def slow_down(self, **changes: float) -> None:
        """Change the fields of `Slowness`, from now on."""
        self._server.ask(**changes)


def missing() -> str | None:
    """What this machine lacks; None if nothing."""
    if os.geteuid() != 0:
        return "a FUSE server of our own needs root"
    try:
        os.close(os.open(_DEVICE, os.O_RDWR))
    except OSError as error:
        return f"a FUSE server of our own needs {_DEVICE}: {error.strerror}"
    return None


@contextmanager
def fuse_server(
    folder: Path, mount_point: Path | None = None, **options: object
) -> Iterator[Mounted]:
    """The folder mounted at `mount_point`, or at a temporary folder, until the block ends.

    `options` are the fields of `Slowness` and `Caching`, and `threads`, `source`, `subtype` like
    the options of the program. Skips the test if this is not permitted.
    """
    words = [
        f"--{name.replace('_', '-')}={value:d}"
        if isinstance(value, bool)
        else f"--{name.replace('_', '-')}={value}"
        for name, value in options.items()
    ]
    place = mount_point or Path(tempfile.mkdtemp(prefix="ioprof-test-"))
    own = [] if mount_point else ["--remove-mount-point"]
    try:
        with companion(__file__, folder, place, "--until-stdin-ends", *own, *words) as server:
            yield Mounted(place, server)
    finally:
        unmount_orphan(place)
        if own:
            with suppress(FileNotFoundError):
                place.rmdir()


def unmount_orphan(place: Path) -> None:
    """Unmount the mount of a killed server; no effect if it still answers or there was none."""
    try:
        os.statvfs(place)  # stat() may return cached attributes
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
            unmount(place)


def unmount(place: Path) -> None:
    """Unmount it, lazily if it is in use; no effect if nothing is mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    for flags in (0, _MNT_DETACH):
        if libc.umount2(os.fsencode(place), flags) == 0 or ctypes.get_errno() != errno.EBUSY:
            return


def mount(device: int, place: Path, source: str, subtype: str, max_read_bytes: int) -> None:
    """Mount at `place`, with requests sent to `device`; raises OSError if the kernel refuses."""
    mode = stat.S_IFMT(os.stat(place).st_mode)
    options = f"fd={device},rootmode={mode:o},user_id=0,group_id=0,allow_other,default_permissions,max_read={max_read_bytes}"  # noqa: E501
    kind = f"fuse.{subtype}" if subtype else "fuse"
    libc = ctypes.CDLL(None, use_errno=True)
    words = (os.fsencode(source), os.fsencode(place), os.fsencode(kind))
    if libc.mount(
        *words, ctypes.c_ulong(_MS_RDONLY | _MS_NOSUID | _MS_NODEV), os.fsencode(options)
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(place))


def _switch(text: str) -> bool:
    return bool(int(text))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a folder read-only through FUSE, slowly.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("mount_point", type=Path)
    for owner in (Slowness, Caching):
        for field in fields(owner):
            kind = _switch if isinstance(field.default, bool) else type(field.default)
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", type=kind, default=field.default
            )
    parser.add_argument("--threads", type=int, default=16, help="requests that can wait at a time")
    parser.add_argument(
        "--source", default="ioprof-slow", help="the source that /proc/mounts names"
    )
    parser.add_argument("--subtype", default="", help="/proc/mounts says fuse.SUBTYPE")
    parser.add_argument("--remove-mount-point", action="store_true")
    parser.add_argument(
        "--until-stdin-ends",
        action="store_true",
        help="answer questions on stdin, as tests want it",
    )
    return parser.parse_args()


def _chosen(owner: type, arguments: argparse.Namespace) -> Any:
    return owner(**{field.name: getattr(arguments, field.name) for field in fields(owner)})


def _answer(server: Server, changes: dict[str, float]) -> dict[str, Any]:
    for name, value in changes.items():
        assert hasattr(server.slowness, name), name
        setattr(server.slowness, name, value)
    return server.books.so_far()


def _serve(arguments: argparse.Namespace) -> None:
    # also in the threads, so that `sigwait` gets them
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    _raise_limit_of_open_files()
    caching = _chosen(Caching, arguments)
    server = Server(os.fsencode(arguments.folder.resolve()), _chosen(Slowness, arguments), caching)
    device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    mount(
        device, arguments.mount_point, arguments.source, arguments.subtype, caching.max_read_bytes
    )
    for _ in range(arguments.threads):
        threading.Thread(target=_serve_until_unmounted, args=(server, device), daemon=True).start()
    try:
        _let_read_ahead(arguments.mount_point, caching.max_readahead_bytes)
        if arguments.until_stdin_ends:
            answer_until_told_to_end(
                lambda changes: _answer(server, changes),
                {"mount_point": str(arguments.mount_point)},
            )
        else:
            print(
                f"{arguments.mount_point}: serves {arguments.folder} until it is unmounted or"
                " interrupted",
                flush=True,
            )
            signal.sigwait(_ENDING)
    finally:
        unmount(arguments.mount_point)
        if arguments.remove_mount_point:  # also if the test that created it was killed
            arguments.mount_point.rmdir()
    if server.failures:
        sys.exit("\n".join(server.failures))
    if not arguments.until_stdin_ends:
        print(json.dumps(server.books.so_far()))


def _serve_until_unmounted(server: Server, device: int) -> None:
    server.serve(device)
    os.kill(os.getpid(), signal.SIGTERM)  # wait for it if there are no requests on stdin


def _raise_limit_of_open_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _let_read_ahead(place: Path, max_readahead_bytes: int) -> None:
    """The protocol can only lower the readahead of the kernel; the device of the mount can raise
    it."""
    number = place.stat().st_dev  # also waits until the server answers
    setting = Path(f"/sys/class/bdi/{os.major(number)}:{os.minor(number)}/read_ahead_kb")
    if max_readahead_bytes > int(setting.read_text()) << 10:
        setting.write_text(str(max_readahead_bytes >> 10))


if __name__ == "__main__":
    chosen = _arguments()
    if reason := missing():
        print(json.dumps({"missing": reason}))
        sys.exit(0 if chosen.until_stdin_ends else 1)
    _serve(chosen)
