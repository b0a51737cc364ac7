"""Name, offset and size of the members of a tar, read from its headers alone. Nothing is unpacked,
and every value is validated.

Stricter than `tarfile`, which silently treats a damaged header or a truncated file as the end of
the archive.
"""

import os
import tarfile
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ioprof.errors import DatasetError

BLOCK: Final = tarfile.BLOCKSIZE
_ZEROS: Final = bytes(BLOCK)
_MAX_EXTENSION_BYTES: Final = 1 << 20
_FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_EXTENSIONS: Final = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_WITHOUT_DATA: Final = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a named pipe",
}


class Member(NamedTuple):
    """A regular file within a tar."""

    name: str
    offset: int
    """Offset of its first byte, from the start of the outermost file."""
    size: int


class UnusableMemberError(DatasetError):
    """A member is neither a file nor a folder; the tar can be read on after it."""


Refuse = Callable[[str, DatasetError], None]
"""Called with the name of a member that cannot be used, and why."""


def members(
    descriptor: int, where: str, start: int, end: int, refuse: Refuse | None = None
) -> Iterator[Member]:
    """The regular files of the tar at bytes `start` to `end` of an open file; folders are skipped.

    Raises `DatasetError`, which names `where`, when a header is damaged, the tar is truncated, or a
    member is neither a file nor a folder; with `refuse` the last is passed to it instead.
    """
    place = start
    while True:
        header = _header(descriptor, where, place, end)
        if header is None:
            return
        data = place + BLOCK
        extended: dict[str, str] = {}
        while header.type in _EXTENSIONS:
            extended |= _read_extension(descriptor, where, header, data, end)
            place = data + padded_size(header.size)
            header = _header(descriptor, where, place, end)
            if header is None:
                raise DatasetError(
                    f"{where}: damaged at byte {place - start} (an extended header without its"
                    " member)"
                )
            data = place + BLOCK
        member, size = None, 0
        try:
            member = _member(where, header, extended, data)
            size = member.size if member else 0
        except UnusableMemberError as error:
            if refuse is None:
                raise
            refuse(extended.get("path", header.name), error)
            size = 0 if header.type in _WITHOUT_DATA else header.size
        place = data + padded_size(size)
        if place > end:
            raise DatasetError(
                f"{where}: cut short within {_printable(header.name)}; get the file again"
            )
        if member:
            yield member


def is_tar(descriptor: int) -> bool:
    """Whether the file starts with a tar header."""
    try:
        tarfile.TarInfo.frombuf(os.pread(descriptor, BLOCK, 0), "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


def padded_size(size: int) -> int:
    """`size` rounded up to whole blocks, as members are stored."""
    return -(-size // BLOCK) * BLOCK


def _header(descriptor: int, where: str, place: int, end: int) -> tarfile.TarInfo | None:
    block = os.pread(descriptor, BLOCK, place) if place + BLOCK <= end else b""
    if len(block) < BLOCK:
        raise DatasetError(f"{where}: cut short (no end-of-archive mark); get the file again")
    if block == _ZEROS:
        return None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError) as error:
        raise DatasetError(
            f"{where}: damaged at byte {place} ({error}); get the file again"
        ) from None
    if header.size < 0:
        raise DatasetError(
            f"{where}: damaged at byte {place} (a member of {header.size} bytes); get the file"
            " again"
        )
    return header


def _member(
    where: str, header: tarfile.TarInfo, extended: dict[str, str], data: int
) -> Member | None:
    name = extended.get("path", header.name)
    shown = _printable(name)
    if header.type == tarfile.GNUTYPE_SPARSE:  # its map may go on in further headers
        raise DatasetError(f"{where}: {shown} is a sparse file; only files belong into this tar")
    if header.type in _WITHOUT_DATA or any(key.startswith("GNU.sparse.") for key in extended):
        kind = _WITHOUT_DATA.get(header.type, "a sparse file")
        raise UnusableMemberError(f"{where}: {shown} is {kind}; only files belong into this tar")
    if header.type == tarfile.DIRTYPE:
        return None
    if header.type not in _FILES:
        raise UnusableMemberError(
            f"{where}: {shown} is of the unknown type {header.type!r}; only files belong into"
            " this tar"
        )
    size = extended.get("size", str(header.size))
    if not (size.isascii() and size.isdigit() and len(size) < 19):
        raise DatasetError(f"{where}: {shown} has the size {size[:20]!r}; get the file again")
    return Member(name.removeprefix("./"), data, int(size))


def _read_extension(
    descriptor: int, where: str, header: tarfile.TarInfo, data: int, end: int
) -> dict[str, str]:
    if header.size > _MAX_EXTENSION_BYTES or data + header.size > end:
        raise DatasetError(
            f"{where}: damaged (an extended header of {header.size} bytes); get the file again"
        )
    content = os.pread(descriptor, header.size, data)
    if header.type == tarfile.GNUTYPE_LONGNAME:
        return {"path": content.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
        return _parse_pax_records(where, content)
    return {}


def _parse_pax_records(where: str, content: bytes) -> dict[str, str]:
    # Each record is "LENGTH KEY=VALUE\n", LENGTH counting the whole record (POSIX pax, "Extended
    # Header").
    records, place = {}, 0
    while place < len(content) and content[place] != 0:
        digits, space, _ = content[place : place + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = content[place + len(digits) + 1 : place + length]
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise DatasetError(f"{where}: damaged (a pax record); get the file again")
        records[key.decode("utf-8", "surrogateescape")] = value[:-1].decode(
            "utf-8", "surrogateescape"
        )
        place += length
    return records


def _printable(name: str) -> str:
    return name if name.isprintable() else repr(name)  # a name can hold terminal escape sequences
