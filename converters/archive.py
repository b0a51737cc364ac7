"""Where the members of a tar lie, found by its headers alone: nothing is unpacked, and nothing is believed.

Stricter than `tarfile`, which takes a damaged header or a cut for the end of the archive and says nothing.
"""

import os
import tarfile
from collections.abc import Iterator
from typing import Final, NamedTuple

from ioprof.errors import DatasetError

BLOCK: Final = tarfile.BLOCKSIZE
_ZEROS: Final = bytes(BLOCK)
_MAX_EXTENSION_BYTES: Final = 1 << 20
_FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_EXTENSIONS: Final = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_REFUSED: Final = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


class Member(NamedTuple):
    """A regular file within a tar."""

    name: str
    offset: int
    """Of its first byte, from the start of the outermost file."""
    size: int


def members(descriptor: int, where: str, start: int, end: int) -> Iterator[Member]:
    """The regular files of the tar that lies from byte `start` to `end` of an open file; folders are passed over.

    Raises `DatasetError`, which names `where`, when a header is damaged, the tar ends early, or a member is anything but a file or
    folder.
    """
    place = start
    while True:
        header = _header(descriptor, where, place, end)
        if header is None:
            return
        data = place + BLOCK
        longer: dict[str, str] = {}
        while header.type in _EXTENSIONS:
            longer |= _extension(descriptor, where, header, data, end)
            place = data + _padded(header.size)
            header = _header(descriptor, where, place, end)
            if header is None:
                raise DatasetError(f"{where}: damaged at byte {place - start} (an extended header without its member)")
            data = place + BLOCK
        member = _member(where, header, longer, data)
        place = data + _padded(member.size if member else 0)
        if place > end:
            raise DatasetError(f"{where}: cut short within {_shown(header.name)}; get the file again")
        if member:
            yield member


def is_tar(descriptor: int) -> bool:
    """Whether the file starts with a tar header."""
    try:
        tarfile.TarInfo.frombuf(os.pread(descriptor, BLOCK, 0), "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def _header(descriptor: int, where: str, place: int, end: int) -> tarfile.TarInfo | None:
    block = os.pread(descriptor, BLOCK, place) if place + BLOCK <= end else b""
    if len(block) < BLOCK:
        raise DatasetError(f"{where}: cut short (no end-of-archive mark); get the file again")
    if block == _ZEROS:
        return None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        raise DatasetError(f"{where}: damaged at byte {place} ({error}); get the file again") from None
    if header.size < 0:
        raise DatasetError(f"{where}: damaged at byte {place} (a member of {header.size} bytes); get the file again")
    return header


def _member(where: str, header: tarfile.TarInfo, longer: dict[str, str], data: int) -> Member | None:
    name = longer.get("path", header.name)
    shown = _shown(name)
    if header.type in _REFUSED or any(key.startswith("GNU.sparse.") for key in longer):
        raise DatasetError(f"{where}: {shown} is {_REFUSED.get(header.type, 'a sparse file')}; only files belong into this tar")
    if header.type == tarfile.DIRTYPE:
        return None
    if header.type not in _FILES:
        raise DatasetError(f"{where}: {shown} is of the unknown type {header.type!r}; only files belong into this tar")
    size = longer.get("size", str(header.size))
    if not (size.isascii() and size.isdigit() and len(size) < 19):
        raise DatasetError(f"{where}: {shown} has the size {size[:20]!r}; get the file again")
    return Member(name.removeprefix("./"), data, int(size))


def _extension(descriptor: int, where: str, header: tarfile.TarInfo, data: int, end: int) -> dict[str, str]:
    if header.size > _MAX_EXTENSION_BYTES or data + header.size > end:
        raise DatasetError(f"{where}: damaged (an extended header of {header.size} bytes); get the file again")
    content = os.pread(descriptor, header.size, data)
    if header.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
        return _pax_records(where, content)
    return {}


def _pax_records(where: str, content: bytes) -> dict[str, str]:
    # Each record is "LENGTH KEY=VALUE\n", LENGTH counting the whole record (POSIX pax, "Extended Header").
    records, place = {}, 0
    while place < len(content) and content[place] != 0:
        digits, space, _ = content[place : place + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = content[place + len(digits) + 1 : place + length]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise DatasetError(f"{where}: damaged (a pax record); get the file again")
        records[key.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
        place += length
    return records


def _shown(name: str) -> str:
    return name if name.isprintable() else repr(name)  # a name could hold what commands a terminal


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
