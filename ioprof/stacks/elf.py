"""Addresses of symbols in a program or shared library (man elf), from its dynamic symbols, which no
`strip` removes.
"""

import mmap
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS: Final = 11
_LOADED: Final = 1
_ELF_64_LITTLE: Final = b"\x7fELF\x02\x01"
_PAGE_BYTES: Final = mmap.PAGESIZE


def symbol_addresses(path: Path | str, names: Iterable[str]) -> dict[str, int]:
    """Where the symbols are, relative to the first mapped page of the file; those that it does not
    define are left out.

    Empty for a file that is no 64-bit little-endian ELF. Raises `OSError` if it cannot be read.
    """
    wanted = {name.encode(): name for name in names}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        try:
            return _find(data, wanted)
        except (struct.error, IndexError):  # truncated, or no ELF
            return {}


def _find(data: mmap.mmap, wanted: dict[bytes, str]) -> dict[str, int]:
    header = _HEADER.unpack_from(data)
    if not header[0].startswith(_ELF_64_LITTLE):
        return {}
    segments_at, sections_at, num_segments, num_sections = (
        header[5],
        header[6],
        header[10],
        header[12],
    )
    segments = [
        _SEGMENT.unpack_from(data, segments_at + number * _SEGMENT.size)
        for number in range(num_segments)
    ]
    first = (
        min((segment[3] for segment in segments if segment[0] == _LOADED), default=0)
        // _PAGE_BYTES
        * _PAGE_BYTES
    )
    sections = [
        _SECTION.unpack_from(data, sections_at + number * _SECTION.size)
        for number in range(num_sections)
    ]
    found = {}
    for section in sections:
        if section[1] != _DYNAMIC_SYMBOLS:
            continue
        names_at = sections[section[6]][4]
        for name_at, _, _, place, value, _ in _SYMBOL.iter_unpack(
            data[section[4] : section[4] + section[5]]
        ):
            if not place:  # defined elsewhere
                continue
            start = names_at + name_at
            name = wanted.get(data[start : data.find(b"\0", start)])
            if name:
                found[name] = value - first
    return found
