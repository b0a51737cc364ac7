"""The layout `webdataset`: tars of bounded size, with three members per record: image, label, and
metadata as JSON.
"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ioprof.converters.layouts.interface import Record, Target, write_all
from ioprof.converters.sources.tar_members import BLOCK, Member, members, padded_size
from ioprof.errors import DatasetError
from ioprof.format.dataset import is_plain_name, tar_name

DEFAULT_SHARD_BYTES: Final = 1 << 30

INDEX_SUFFIX: Final = ".idx"
"""Of the index of a tar that DALI's webdataset reader takes (NVIDIA's wds2idx, v1.2); without it
DALI reads the whole tar."""

_INDEX_VERSION: Final = "v1.2"
_END: Final = bytes(2 * BLOCK)
_SUFFIXES: Final = {"jpeg": "jpg", "png": "png", "raw": "rgb"}
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_MEMBERS_PER_RECORD: Final = 3
_LAST_SUFFIX: Final = ".json"  # of a record's last member
_MAX_SMALL_BYTES: Final = 1 << 16
_AGAIN: Final = "convert the dataset again"


class Sample(NamedTuple):
    """One record of a shard, and the location of its image."""

    number: int
    wnid: str
    name: str
    label: int
    offset: int
    """Of the image's first byte in the tar."""
    size: int


def read_samples(path: Path) -> Iterator[Sample]:
    """The records of a shard, in order; raises `DatasetError` where the tar differs from what
    `WebdatasetLayout` writes.
    """
    try:
        with path.open("rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise DatasetError(f"{path}: not a regular file; {_AGAIN}")
            yield from _parse_samples(stream.fileno(), str(path), os.fstat(stream.fileno()).st_size)
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None


class WebdatasetLayout:
    """A shard ends before it exceeds its maximum size, so the location of each record depends on
    the records alone.
    """

    def __init__(self, target: Target, start: int = 0) -> None:
        self._folder, self._split = target.folder / target.split, target.split
        self._max_bytes = target.shard_bytes or DEFAULT_SHARD_BYTES
        self._suffix = _SUFFIXES.get(target.image.encoding)
        self._folder.mkdir(exist_ok=True)
        self._shard, self._bytes, self._records = self._find_end(start)
        self._descriptor = self._open_shard()
        for number in range(self._shard):
            self._repair_index(number)
        self._index = _index_lines(self._path(self._shard), self._bytes)
        for number in range(self._shard + 1, self._shard + 1 + len(os.listdir(self._folder))):
            self._path(number).unlink(missing_ok=True)
            self._path(number).with_suffix(INDEX_SUFFIX).unlink(missing_ok=True)

    @property
    def shards(self) -> int:
        """Number of shards, for the manifest; valid once all records have been added."""
        return self._shard + 1

    def num_durable(self) -> int:
        """Number of records that are completely written."""
        return self._records

    def add(self, record: Record) -> None:
        """Write the next record; raises OSError on failure."""
        data, lengths = self._encode_record(record)
        if self._bytes and self._bytes + len(data) + len(_END) > self._max_bytes:
            self._end_shard()
            self._shard, self._bytes = self._shard + 1, 0
            self._descriptor = self._open_shard()
        write_all(self._descriptor, data)
        self._index.append(_index_line(f"{record.number:08d}", self._bytes, lengths))
        self._bytes += len(data)
        self._records += 1

    def finish(self) -> None:
        """Write the end-of-archive mark of the last shard; called once all records have been
        added.
        """
        self._end_shard()

    def _end_shard(self) -> None:
        write_all(self._descriptor, _END)
        self._close()
        _write_index(self._path(self._shard), self._index)
        self._index = []

    def _open_shard(self) -> int:
        descriptor = os.open(
            self._path(self._shard), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666
        )
        os.ftruncate(descriptor, self._bytes)
        os.lseek(descriptor, 0, os.SEEK_END)
        return descriptor

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _path(self, number: int) -> Path:
        return self._folder / tar_name(self._split, number)

    def _repair_index(self, number: int) -> None:
        # After a crash of the machine the index of a complete shard need not have reached the disk.
        path = self._path(number)
        with contextlib.suppress(OSError):
            head, _, rest = (
                path.with_suffix(INDEX_SUFFIX).read_text(errors="replace").partition("\n")
            )
            if head == f"{_INDEX_VERSION} {rest.count(chr(10))}" and rest.endswith("\n"):
                return
        _write_index(path, _index_lines(path, path.stat().st_size))

    def _encode_record(self, record: Record) -> tuple[bytes, dict[str, int]]:
        """The members of a record, and the length of each by its extension."""
        suffix = self._suffix or ("png" if record.data[: len(_PNG)] == _PNG else "jpg")
        metadata = {"wnid": record.wnid, "name": record.name, "label": record.label}
        parts: dict[str, bytes | memoryview] = {
            suffix: record.data,
            "cls": str(record.label).encode(),
            "json": json.dumps(metadata, ensure_ascii=False).encode(),
        }
        pieces: list[bytes | memoryview] = []
        for ending, data in parts.items():
            size = len(data)
            pieces += (
                _header(f"{record.number:08d}.{ending}", size),
                data,
                bytes(padded_size(size) - size),
            )
        return b"".join(pieces), {ending: len(data) for ending, data in parts.items()}

    def _find_end(self, start: int) -> tuple[int, int, int]:
        # The last existing shard, the end of its last complete record but one, and the number of
        # records up to there.
        if not start:
            return 0, 0, 0
        shard = 0
        while self._first_number(shard + 1) is not None:
            shard += 1
        first = self._first_number(shard) or 0
        count = last_but_one = last = 0
        for number, end in _complete_records(self._path(shard)):
            if number != first + count or number >= start:
                break
            count, last_but_one, last = count + 1, last, end
        # The last record is written again: the padding of its last block is not checked, and may be
        # incomplete.
        return shard, last_but_one, first + max(0, count - 1)

    def _first_number(self, shard: int) -> int | None:
        return next((number for number, _ in _complete_records(self._path(shard))), None)

    def __enter__(self) -> "WebdatasetLayout":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def _parse_samples(descriptor: int, where: str, size: int) -> Iterator[Sample]:
    found = members(descriptor, where, 0, size)
    for image in found:
        key = image.name.partition(".")[0]
        others = [next(found, None), next(found, None)]
        if [other and other.name for other in others] != [
            f"{key}.cls",
            f"{key}.json",
        ] or not _is_number(key):
            raise DatasetError(
                f"{where}: {image.name[:80]!r} is not followed by its label and its description;"
                f" {_AGAIN}"
            )
        small = []
        for member in (other for other in others if other):
            if member.size > _MAX_SMALL_BYTES:
                raise DatasetError(
                    f"{where}: {member.name[:80]!r} has {member.size} bytes; {_AGAIN}"
                )
            small.append(os.pread(descriptor, member.size, member.offset))
        yield _parse_sample(where, image, int(key), *small)


def _parse_sample(where: str, image: Member, number: int, label: bytes, metadata: bytes) -> Sample:
    try:
        keys = json.loads(metadata)
        wnid, name = keys["wnid"], keys["name"]
    except (ValueError, RecursionError, TypeError, KeyError, IndexError):
        raise DatasetError(
            f"{where}: the description of {image.name[:80]!r} is damaged; {_AGAIN}"
        ) from None
    if not (
        isinstance(wnid, str)
        and isinstance(name, str)
        and is_plain_name(wnid)
        and is_plain_name(name)
    ):
        raise DatasetError(
            f"{where}: the description of {image.name[:80]!r} has no names; {_AGAIN}"
        )
    if not (len(label) < 10 and label.isdigit()):
        raise DatasetError(f"{where}: the label of {image.name[:80]!r} is {label[:20]!r}; {_AGAIN}")
    return Sample(number, wnid, name, int(label), image.offset, image.size)


def _complete_records(path: Path) -> Iterator[tuple[int, int]]:
    # Number and end of each record, up to the first that is damaged or incomplete.
    with contextlib.suppress(OSError, DatasetError), path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        seen: list[Member] = []
        for member in members(stream.fileno(), str(path), 0, size):
            seen.append(member)
            if len(seen) == _MEMBERS_PER_RECORD:
                key = member.name.removesuffix(_LAST_SUFFIX)
                if key == member.name or not _is_number(key):
                    return
                yield int(key), member.offset + padded_size(member.size)
                seen = []


def _index_line(key: str, start: int, lengths: dict[str, int]) -> str:
    """A record that begins at byte `start` of its tar: extension, offset, length and name of each
    member.
    """
    words = []
    for extension, length in lengths.items():
        words.append(f"{extension} {start + BLOCK} {length} {key}.{extension}")
        start += BLOCK + padded_size(length)
    return " ".join(words)


def _index_lines(path: Path, end: int) -> list[str]:
    """The lines of the complete records that end before byte `end` of a tar."""
    lines: list[str] = []
    with contextlib.suppress(OSError, DatasetError), path.open("rb") as stream:
        seen: list[Member] = []
        for member in members(stream.fileno(), str(path), 0, os.fstat(stream.fileno()).st_size):
            if member.offset + member.size > end:
                break
            seen.append(member)
            if len(seen) == _MEMBERS_PER_RECORD:
                words = (
                    f"{each.name.partition('.')[2]} {each.offset} {each.size} {each.name}"
                    for each in seen
                )
                lines.append(" ".join(words))
                seen = []
    return lines


def _write_index(path: Path, lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in (f"{_INDEX_VERSION} {len(lines)}", *lines))
    path.with_suffix(INDEX_SUFFIX).write_text(text, encoding="ascii", newline="\n")


def _header(name: str, size: int) -> bytes:
    # POSIX ustar, field by field; the same in every run: no modification time, no owner.
    octal = b"%011o\0" % size
    header = b"".join(
        (name.encode().ljust(100, b"\0"), b"0000644\0", b"0000000\0" * 2, octal, b"00000000000\0")
    )
    rest = b"0".ljust(101, b"\0") + b"ustar\x0000"
    checksum = sum(header) + 8 * 0x20 + sum(rest)
    return (header + b"%06o\0 " % checksum + rest).ljust(BLOCK, b"\0")


def _is_number(key: str) -> bool:
    return len(key) < 20 and key.isascii() and key.isdigit()
