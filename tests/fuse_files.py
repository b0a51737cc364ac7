"""Serves a folder read-only over /dev/fuse with configurable delays, and counts the requests."""

import errno
import os
import stat
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import fuse_protocol as fuse
from fuse_protocol import Opcode

SILENT: Final = {Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT}
"""Requests without a reply. An interrupted reader still waits for its bytes, as on a network file
system mounted hard."""

UNWAITED: Final = SILENT | {Opcode.INIT, Opcode.DESTROY, Opcode.RELEASE, Opcode.RELEASEDIR}
"""No process waits for these, so they are not delayed."""

_KNOWN: Final = frozenset(Opcode)
_MOST_REQUEST_BYTES: Final = 1 << 16
_EXTENDED_ATTRIBUTES: Final = b"user."


@dataclass
class Slowness:
    """Delays of each request, independent of concurrent requests; may be changed at any time."""

    read_ms: float = 0.0
    open_ms: float = 0.0
    metadata_ms: float = 0.0
    """Delay of each LOOKUP, GETATTR, FLUSH (a close), READDIR and so on."""
    bytes_per_s: float = 0.0
    """Limit of the total rate of all reads; 0: no limit."""


@dataclass(frozen=True)
class Caching:
    """Caching by the kernel, and the maximum size of a request."""

    direct_io: bool = False
    """Each read(2) is one READ of its own size up to `max_read_bytes`, and nothing is cached."""
    keep_cache: bool = True
    """Pages stay in the page cache when a file is closed."""
    max_read_bytes: int = 1 << 17
    max_readahead_bytes: int = 1 << 17
    """At 0 the kernel requests single pages."""
    remember_s: int = 3600
    """How long names and attributes are cached. At 0 each use sends a request."""


class Books:
    """Ground truth: counters of requests, bytes and concurrency."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[str] = Counter()
        self._read_sizes: Counter[int] = Counter()
        self._bytes = self._busy = self._most_at_once = 0
        self._free_at = 0.0

    def begin(self, opcode: int) -> None:
        """Count a request at its arrival."""
        name = Opcode(opcode).name if opcode in _KNOWN else str(opcode)
        with self._lock:
            self._requests[name] += 1
            self._busy += opcode not in UNWAITED
            self._most_at_once = max(self._most_at_once, self._busy)

    def end(self, opcode: int) -> None:
        """Count its reply before it is sent."""
        with self._lock:
            self._busy -= opcode not in UNWAITED

    def served(self, asked: int, given: int, bytes_per_s: float) -> float:
        """Count a READ. Returns the seconds until its bytes have passed a link of that rate, after
        all bytes before them."""
        with self._lock:
            self._read_sizes[asked] += 1
            self._bytes += given
            if not bytes_per_s:
                return 0.0
            now = time.monotonic()
            self._free_at = max(now, self._free_at) + given / bytes_per_s
            return self._free_at - now

    def so_far(self) -> dict[str, Any]:
        """All of it."""
        with self._lock:
            sizes = {str(size): count for size, count in sorted(self._read_sizes.items())}
            return {
                "requests": dict(sorted(self._requests.items())),
                "bytes": self._bytes,
                "read_sizes": sizes,
                "most_at_once": self._most_at_once,
            }


class Nodes:
    """Node ids of files, as long as the kernel refers to them. A file that was replaced gets
    another id."""

    def __init__(self, folder: bytes) -> None:
        self._lock = threading.Lock()
        self._paths = {fuse.ROOT: folder}
        self._numbers: dict[tuple[bytes, int, int], int] = {}
        self._keys: dict[int, tuple[bytes, int, int]] = {}
        self._lookups: Counter[int] = Counter()
        self._next = fuse.ROOT + 1

    def path(self, node: int) -> bytes:
        """The path of a node; raises OSError if the kernel had released it."""
        try:
            return self._paths[node]
        except KeyError:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None

    def look_up(self, path: bytes, status: os.stat_result) -> int:
        """The node of a file; increments its lookup count."""
        key = (path, status.st_ino, stat.S_IFMT(status.st_mode))
        with self._lock:
            if key not in self._numbers:
                self._numbers[key], self._keys[self._next], self._paths[self._next] = (
                    self._next,
                    key,
                    path,
                )
                self._next += 1
            node = self._numbers[key]
            self._lookups[node] += 1
            return node

    def forget(self, node: int, times: int) -> None:
        """Decrement the lookup count by this number."""
        with self._lock:
            self._lookups[node] -= times
            if self._lookups[node] <= 0 and node in self._keys:
                del self._lookups[node], self._paths[node], self._numbers[self._keys.pop(node)]


class Server:
    """Answers the requests for one mounted folder, in as many threads as call `serve`."""

    def __init__(self, folder: bytes, slowness: Slowness, caching: Caching) -> None:
        self.slowness, self.caching, self.books = slowness, caching, Books()
        self._nodes = Nodes(folder)
        self._folder = folder
        self._listings: dict[int, list[os.DirEntry[bytes]]] = {}
        self._next_listing = 1
        self.failures: list[str] = []
        self._lock = threading.Lock()

    def serve(self, device: int) -> None:
        """Answer until the folder is unmounted."""
        while True:
            try:
                request = os.read(device, _MOST_REQUEST_BYTES)
            except OSError as error:
                # ENOENT: the request was cancelled
                if error.errno in (
                    errno.EINTR,
                    errno.EAGAIN,
                    errno.ENOENT,
                ):
                    continue
                return  # ENODEV: unmounted
            self._answer(device, request)

    def _answer(self, device: int, request: bytes) -> None:
        _, opcode, unique, node, *_ = fuse.IN_HEADER.unpack_from(request)
        body = request[fuse.IN_HEADER.size :]
        self.books.begin(opcode)
        status, reply = self._status_and_reply(opcode, node, body)
        self.books.end(opcode)
        if opcode in SILENT:
            return
        header = fuse.OUT_HEADER.pack(fuse.OUT_HEADER.size + len(reply), status, unique)
        try:
            os.writev(device, [header, reply])
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # the requesting process has ended
                raise

    def _status_and_reply(self, opcode: int, node: int, body: bytes) -> tuple[int, bytes]:
        try:
            return 0, self._reply(opcode, node, body)
        except OSError as error:
            return -(error.errno or errno.EIO), b""
        except (
            Exception
        ):  # an error in this server: reply so that the process does not hang, and fail the test
            self.failures.append(traceback.format_exc())
            return -errno.EIO, b""

    def _reply(self, opcode: int, node: int, body: bytes) -> bytes:
        method = (
            getattr(self, f"_{Opcode(opcode).name.lower()}", None) if opcode in _KNOWN else None
        )
        if method is None:
            raise OSError(errno.ENOSYS, "the kernel then does without")
        if opcode not in UNWAITED and opcode != Opcode.READ:
            _wait_ms(self.slowness.open_ms if opcode == Opcode.OPEN else self.slowness.metadata_ms)
        return bytes(method(node, body))

    # ---------------------------------------------------------------------------------------- names

    def _lookup(self, node: int, body: bytes) -> bytes:
        path = self._nodes.path(node) + b"/" + body.partition(b"\0")[0]
        status = os.lstat(path)
        return fuse.entry(self._nodes.look_up(path, status), status, self.caching.remember_s)

    def _getattr(self, node: int, body: bytes) -> bytes:
        return fuse.attribute_reply(os.lstat(self._nodes.path(node)), self.caching.remember_s)

    def _readlink(self, node: int, body: bytes) -> bytes:
        return os.readlink(self._nodes.path(node))  # noqa: PTH115 - Path would tidy it up

    def _access(self, node: int, body: bytes) -> bytes:
        return b""  # the kernel decides by the mode (default_permissions)

    def _forget(self, node: int, body: bytes) -> bytes:
        self._nodes.forget(*fuse.forgotten(Opcode.FORGET, node, body)[0])
        return b""

    def _batch_forget(self, node: int, body: bytes) -> bytes:
        for forgotten, times in fuse.forgotten(Opcode.BATCH_FORGET, node, body):
            self._nodes.forget(forgotten, times)
        return b""

    def _getxattr(self, node: int, body: bytes) -> bytes:
        name, room = fuse.extended_attribute(Opcode.GETXATTR, body)
        stored = name if name.startswith(_EXTENDED_ATTRIBUTES) else _EXTENDED_ATTRIBUTES + name
        return _fitted(os.getxattr(self._nodes.path(node), stored, follow_symlinks=False), room)

    def _listxattr(self, node: int, body: bytes) -> bytes:
        _, room = fuse.extended_attribute(Opcode.LISTXATTR, body)
        names = os.listxattr(self._nodes.path(node), follow_symlinks=False)
        return _fitted(b"".join(os.fsencode(name) + b"\0" for name in names), room)

    # -------------------------------------------------------------------------------------- folders

    def _opendir(self, node: int, body: bytes) -> bytes:
        with os.scandir(self._nodes.path(node)) as entries:
            listing = list(entries)
        with self._lock:
            handle, self._next_listing = self._next_listing, self._next_listing + 1
            self._listings[handle] = listing
        return fuse.opened(handle, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        handle, offset, room = fuse.read_request(body)
        reply = b""
        for place, name, inode, mode in self._entries(handle, offset):
            packed = fuse.listed(inode, place + 1, mode, name)
            if len(reply) + len(packed) > room:
                break
            reply += packed
        return reply

    def _readdirplus(self, node: int, body: bytes) -> bytes:
        handle, offset, room = fuse.read_request(body)
        reply = b""
        for place, name, inode, mode in self._entries(handle, offset):
            packed = fuse.listed(inode, place + 1, mode, name)
            if len(reply) + len(fuse.no_entry()) + len(packed) > room:
                break
            reply += self._entry_of(node, name) + packed
        return reply

    def _entry_of(self, node: int, name: bytes) -> bytes:
        try:
            return fuse.no_entry() if name in (b".", b"..") else self._lookup(node, name)
        except OSError:  # it has been removed
            return fuse.no_entry()

    def _entries(self, handle: int, offset: int) -> list[tuple[int, bytes, int, int]]:
        here = [(0, b".", 1, stat.S_IFDIR), (1, b"..", 1, stat.S_IFDIR)]
        found = [
            (place, entry.name, entry.inode(), _type_of(entry))
            for place, entry in enumerate(self._listings[handle], 2)
        ]
        return (here + found)[offset:]

    def _releasedir(self, node: int, body: bytes) -> bytes:
        self._listings.pop(fuse.handle_of(body), None)
        return b""

    # ---------------------------------------------------------------------------------------- files

    def _open(self, node: int, body: bytes) -> bytes:
        handle = os.open(self._nodes.path(node), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        direct, keep = self.caching.direct_io, self.caching.keep_cache
        return fuse.opened(handle, fuse.DIRECT_IO * direct | fuse.KEEP_CACHE * keep)

    def _read(self, node: int, body: bytes) -> bytes:
        handle, offset, size = fuse.read_request(body)
        data = os.pread(handle, size, offset)
        _wait_ms(
            self.books.served(size, len(data), self.slowness.bytes_per_s) * 1000
            + self.slowness.read_ms
        )
        return data

    def _flush(self, node: int, body: bytes) -> bytes:
        return b""

    def _release(self, node: int, body: bytes) -> bytes:
        os.close(fuse.handle_of(body))
        return b""

    # ------------------------------------------------------------------------------------ the whole

    def _statfs(self, node: int, body: bytes) -> bytes:
        return fuse.space(os.statvfs(self._folder))

    def _init(self, node: int, body: bytes) -> bytes:
        caching = self.caching
        return fuse.init_reply(
            body, caching.max_readahead_bytes, caching.max_read_bytes, caching.remember_s > 0
        )

    def _interrupt(self, node: int, body: bytes) -> bytes:
        return b""

    def _destroy(self, node: int, body: bytes) -> bytes:
        return b""


def _wait_ms(milliseconds: float) -> None:
    if milliseconds > 0:
        time.sleep(milliseconds / 1000)


def _type_of(entry: "os.DirEntry[bytes]") -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return (
        stat.S_IFDIR
        if entry.is_dir(follow_symlinks=False)
        else stat.S_IFREG
        if entry.is_file(follow_symlinks=False)
        else 0
    )


def _fitted(value: bytes, room: int) -> bytes:
    if room == 0:
        return fuse.size_of_attribute(len(value))
    if len(value) > room:
        raise OSError(errno.ERANGE, "the room is too small")
    return value
