"""Keys and places of all values of an LMDB environment, by walking the pages of its file: a damaged one cannot crash the process.

The format is that of LMDB 0.9 (`mdb.c`: MDB_page, MDB_node, MDB_meta), data version 1, as 64-bit little-endian machines write it;
`ioprof.loaders.lmdb_pages` has it in words.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from ioprof.errors import DatasetError

_MAGIC: Final = 0xBEEFC0DE
_META: Final = struct.Struct("<IIQQ48s48sQQ")
_TREE: Final = struct.Struct("<IHHQQQQQ")
_HEADER: Final = struct.Struct("<QHHHH")
_NODE: Final = struct.Struct("<HHHH")
_NUMBER: Final = struct.Struct("<Q")
_BRANCH, _LEAF, _META_PAGE = 1, 2, 8
_BIGDATA: Final = 1
_SMALLEST_PAGE, _LARGEST_PAGE = 512, 1 << 16
_DEEPEST: Final = 32  # CURSOR_STACK in mdb.c
_NO_PAGE: Final = (1 << 64) - 1


class Entry(NamedTuple):
    """One key, and the place of its value in the file."""

    key: bytes
    start: int
    end: int


class _Meta(NamedTuple):
    transaction: int
    page_bytes: int
    last_page: int
    depth: int
    root: int
    entries: int


def is_lmdb(head: bytes) -> bool:
    """Whether a file that begins with these bytes is an LMDB environment."""
    return len(head) >= _HEADER.size + _META.size and _META.unpack_from(head, _HEADER.size)[0] == _MAGIC


def entries(file: memoryview, where: str) -> Iterator[Entry]:
    """All entries of the main database, in the order of their keys; raises `DatasetError` that names `where`."""
    metas = [_meta(file, 0)]
    metas += [_meta(file, metas[0].page_bytes)] if metas[0] else []
    newest = max((meta for meta in metas if meta), default=None)
    if newest is None or not 0 <= newest.depth <= _DEEPEST:
        raise DatasetError(f"{where}: no LMDB environment of data version 1, or one with a special main database")
    if newest.root == _NO_PAGE:
        return
    count, previous = 0, b""
    for entry in _walk(file, where, newest, newest.root, newest.depth):
        # Pages that refer to each other in a circle, or twice to the same page, repeat keys.
        if (count and entry.key <= previous) or count >= newest.entries:
            raise DatasetError(f"{where}: damaged (its keys are not in order); get the file again")
        count, previous = count + 1, entry.key
        yield entry
    if count != newest.entries:
        raise DatasetError(f"{where}: holds {count} entries, and announces {newest.entries}; get the file again")


def _meta(file: memoryview, place: int) -> _Meta | None:
    if place + _HEADER.size + _META.size > len(file) or not _HEADER.unpack_from(file, place)[2] & _META_PAGE:
        return None
    magic, version, _, _, free, main, last_page, transaction = _META.unpack_from(file, place + _HEADER.size)
    page_bytes = _TREE.unpack(free)[0]
    _, flags, depth, _, _, _, num_entries, root = _TREE.unpack(main)
    is_page = _SMALLEST_PAGE <= page_bytes <= _LARGEST_PAGE and not page_bytes & page_bytes - 1
    if magic != _MAGIC or version != 1 or not is_page or flags:
        return None
    return _Meta(transaction, page_bytes, last_page, depth, root, num_entries)


def _walk(file: memoryview, where: str, meta: _Meta, page: int, depth: int) -> Iterator[Entry]:
    start = page * meta.page_bytes
    end = start + meta.page_bytes
    wanted = _LEAF if depth == 1 else _BRANCH
    if not 1 < page <= meta.last_page or end > len(file) or depth < 1:
        raise DatasetError(f"{where}: cut short, or damaged (page {page} is not in the file); get the file again")
    number, _, flags, lower, _ = _HEADER.unpack_from(file, start)
    if number != page or not flags & wanted or lower > meta.page_bytes or lower < _HEADER.size:
        raise DatasetError(f"{where}: damaged (page {page} is none of the tree's); get the file again")
    for (place,) in struct.iter_unpack("<H", file[start + _HEADER.size : start + lower - lower % 2]):
        if place + _NODE.size > meta.page_bytes:
            raise DatasetError(f"{where}: damaged (a node at byte {place} of page {page}); get the file again")
        low, high, node_flags, length = _NODE.unpack_from(file, start + place)
        key = start + place + _NODE.size
        if key + length > end:
            raise DatasetError(f"{where}: damaged (a key of {length} bytes in page {page}); get the file again")
        if depth > 1:
            yield from _walk(file, where, meta, low | high << 16 | node_flags << 32, depth - 1)
            continue
        size, value = low | high << 16, key + length
        if node_flags == _BIGDATA and value + _NUMBER.size <= end:
            value = _NUMBER.unpack_from(file, value)[0] * meta.page_bytes + _HEADER.size
        elif node_flags or value + size > end:
            raise DatasetError(f"{where}: damaged, or not plain (a value in page {page} with the flags {node_flags})")
        if value + size > len(file):
            raise DatasetError(f"{where}: cut short (a value of {size} bytes at byte {value}); get the file again")
        yield Entry(bytes(file[key : key + length]), value, value + size)
