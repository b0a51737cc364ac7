"""The layout `webdataset`: tars of bounded size, and for each record its image, its label and what else is known of it."""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ioprof.converters.archive import BLOCK, Member, members
from ioprof.converters.target import Record, Target, write_all
from ioprof.dataset import is_plain_name, tar_name
from ioprof.errors import DatasetError

DEFAULT_SHARD_BYTES: Final = 1 << 30

_END: Final = bytes(2 * BLOCK)
_SUFFIXES: Final = {"jpeg": "jpg", "png": "png", "raw": "rgb"}
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_MEMBERS: Final = 3  # of a record
_LAST: Final = ".json"  # of them
_MAX_SMALL_BYTES: Final = 1 << 16
_AGAIN: Final = "convert the dataset again"


class Sample(NamedTuple):
    """One record of a shard, and where its image lies."""

    number: int
    wnid: str
    name: str
    label: int
    offset: int
    """Of the image's first byte in the tar."""
    size: int


def samples(path: Path) -> Iterator[Sample]:
    """The records of a shard, in order; raises `DatasetError` for whatever is not what `WebdatasetLayout` writes."""
    try:
        with path.open("rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise DatasetError(f"{path}: not a regular file; {_AGAIN}")
            yield from _samples(stream.fileno(), str(path), os.fstat(stream.fileno()).st_size)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None


class WebdatasetLayout:
    """A shard ends before it gets larger than its bound, so where each record lies follows from the records alone."""

    def __init__(self, target: Target, start: int = 0) -> None:
        self._folder, self._split = target.folder / target.split, target.split
        self._bound = target.shard_bytes or DEFAULT_SHARD_BYTES
        self._suffix = _SUFFIXES.get(target.image.encoding)
        self._folder.mkdir(exist_ok=True)
        self._shard, self._bytes, self._records = self._found(start)
        self._descriptor = self._opened()
        for number in range(self._shard + 1, self._shard + 1 + len(os.listdir(self._folder))):
            self._path(number).unlink(missing_ok=True)

    @property
    def shards(self) -> int:
        """For the manifest, when all is written."""
        return self._shard + 1

    def durable(self) -> int:
        """How many records are there for certain."""
        return self._records

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError when it cannot."""
        data = self._sample(record)
        if self._bytes and self._bytes + len(data) + len(_END) > self._bound:
            self._end_shard()
            self._shard, self._bytes = self._shard + 1, 0
            self._descriptor = self._opened()
        write_all(self._descriptor, data)
        self._bytes += len(data)
        self._records += 1

    def finish(self) -> None:
        """All records have been added: bring them to the file system."""
        self._end_shard()

    def _end_shard(self) -> None:
        write_all(self._descriptor, _END)
        self._close()

    def _opened(self) -> int:
        descriptor = os.open(self._path(self._shard), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(descriptor, self._bytes)
        os.lseek(descriptor, 0, os.SEEK_END)
        return descriptor

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _path(self, number: int) -> Path:
        return self._folder / tar_name(self._split, number)

    def _sample(self, record: Record) -> bytes:
        suffix = self._suffix or ("png" if record.data[: len(_PNG)] == _PNG else "jpg")
        about = {"wnid": record.wnid, "name": record.name, "label": record.label}
        parts: dict[str, bytes | memoryview] = {
            suffix: record.data,
            "cls": str(record.label).encode(),
            "json": json.dumps(about, ensure_ascii=False).encode(),
        }
        return b"".join(_member(f"{record.number:08d}.{ending}", data) for ending, data in parts.items())

    def _found(self, start: int) -> tuple[int, int, int]:
        # The last shard that is there, the end of its last whole record, and how many records that makes.
        if not start:
            return 0, 0, 0
        shard = 0
        while self._first_number(shard + 1) is not None:
            shard += 1
        first = self._first_number(shard) or 0
        there = last_but_one = last = 0
        for number, end in _whole_records(self._path(shard)):
            if number != first + there or number >= start:
                break
            there, last_but_one, last = there + 1, last, end
        # The last one is written again: what fills up its last block is read by nobody, and may be torn.
        return shard, last_but_one, first + max(0, there - 1)

    def _first_number(self, shard: int) -> int | None:
        return next((number for number, _ in _whole_records(self._path(shard))), None)

    def __enter__(self) -> "WebdatasetLayout":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def _samples(descriptor: int, where: str, size: int) -> Iterator[Sample]:
    found = members(descriptor, where, 0, size)
    for image in found:
        key = image.name.partition(".")[0]
        others = [next(found, None), next(found, None)]
        if [other and other.name for other in others] != [f"{key}.cls", f"{key}.json"] or not _is_number(key):
            raise DatasetError(f"{where}: {image.name[:80]!r} is not followed by its label and its description; {_AGAIN}")
        label, about = (_small(descriptor, where, other) for other in others if other)
        yield _sample(where, image, int(key), label, about)


def _small(descriptor: int, where: str, member: Member) -> bytes:
    if member.size > _MAX_SMALL_BYTES:
        raise DatasetError(f"{where}: {member.name[:80]!r} has {member.size} bytes; {_AGAIN}")
    return os.pread(descriptor, member.size, member.offset)


def _sample(where: str, image: Member, number: int, label: bytes, about: bytes) -> Sample:
    try:
        keys = json.loads(about)
        wnid, name = keys["wnid"], keys["name"]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError):
        raise DatasetError(f"{where}: the description of {image.name[:80]!r} is damaged; {_AGAIN}") from None
    if not (isinstance(wnid, str) and isinstance(name, str) and is_plain_name(wnid) and is_plain_name(name)):
        raise DatasetError(f"{where}: the description of {image.name[:80]!r} has no names; {_AGAIN}")
    if not (len(label) < 10 and label.isdigit()):
        raise DatasetError(f"{where}: the label of {image.name[:80]!r} is {label[:20]!r}; {_AGAIN}")
    return Sample(number, wnid, name, int(label), image.offset, image.size)


def _whole_records(path: Path) -> Iterator[tuple[int, int]]:
    # Number and end of each record, up to the first thing that is none.
    with contextlib.suppress(OSError, DatasetError), path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        seen: list[Member] = []
        for member in members(stream.fileno(), str(path), 0, size):
            seen.append(member)
            if len(seen) == _MEMBERS:
                key = member.name.removesuffix(_LAST)
                if key == member.name or not _is_number(key):
                    return
                yield int(key), member.offset + _padded(member.size)
                seen = []


def _member(name: str, data: bytes | memoryview) -> bytes:
    return b"".join((_header(name, len(data)), data, bytes(_padded(len(data)) - len(data))))


def _header(name: str, size: int) -> bytes:
    # POSIX ustar, field by field; the same for every run: no time, no owner.
    octal = b"%011o\0" % size
    header = b"".join((name.encode().ljust(100, b"\0"), b"0000644\0", b"0000000\0" * 2, octal, b"00000000000\0"))
    rest = b"0".ljust(101, b"\0") + b"ustar\x0000"
    checksum = sum(header) + 8 * 0x20 + sum(rest)
    return (header + b"%06o\0 " % checksum + rest).ljust(BLOCK, b"\0")


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _is_number(key: str) -> bool:
    return len(key) < 20 and key.isascii() and key.isdigit()
