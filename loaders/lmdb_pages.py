"""Where the values of an LMDB environment lie in its file, found by reading its pages: nothing is mapped, everything is checked.

A value of more than half a page lies by itself on consecutive overflow pages, so it is one read of exactly its bytes, and it
is known whether they came from storage; through the memory map it is a fault per page or per readahead window, and is not known.

The format is that of LMDB 0.9 (`mdb.c`: MDB_page, MDB_node, MDB_meta), data version 1, as 64-bit little-endian machines write it:

    page   number u64 | - u16 | flags u16 | lower u16 | upper u16 | places of nodes u16 ...      nodes are sorted by their keys
    node   low u16 | high u16 | flags u16 | key's length u16 | key | data
           in a branch, low, high and flags are the child's page number, and the first key stands for all that are smaller
           in a leaf, low and high are the length of the value, which is the data, or with the flag BIGDATA lies on page number u64
    meta   (pages 0 and 1) after the page's 16 bytes: magic u32 | version u32 | address u64 | map size u64 | free-page tree 48 |
           main tree 48 | last page u64 | transaction u64; a tree is page size u32 | flags u16 | depth u16 | three counts u64 |
           entries u64 | root u64
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

import numpy as np

from ioprof.errors import DatasetError
from ioprof.loaders.file_reading import LARGEST_FILE, FileRanges

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
_DIGITS: Final = 8
_AGAIN: Final = "convert the dataset again"


class LmdbPages:
    """The values of records `first` to `first + entries`, whose keys are `%08d_...`, each read from its place in the file.

    For the process that made it. Raises `DatasetError` for whatever is no such environment, and for what is missing or damaged.
    """

    def __init__(self, path: str, first: int, entries: int) -> None:
        self._path, self._first = path, first
        try:
            self._file = FileRanges(path)
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None
        self._page_bytes, self._last_page, self._depth, self._root = self._newest_meta()
        self._branches: dict[int, list[tuple[bytes, int]]] = {}
        # Offset and length of each value, filled a leaf at a time: the records of a leaf share one read of it. 0: not known yet.
        self._places = np.zeros((entries, 2), np.int64)

    def value(self, number: int) -> memoryview:
        """The value of record `number`: one read, once its leaf is known."""
        offset, length = self._place_of(number)
        data = self._read(offset, length)
        if len(data) < length:
            raise self._damaged(f"cut short within record {number}")
        return memoryview(data)

    def announce(self, number: int) -> None:
        """Have the kernel read the value of record `number`, in one piece, for whoever touches it next."""
        self._file.announce(*self._place_of(number))

    def _place_of(self, number: int) -> tuple[int, int]:
        row = number - self._first
        if not self._places[row, 0]:
            self._take_leaf(self._find_leaf(number))
        offset, length = self._places[row].tolist()
        if not offset:
            raise DatasetError(f"{self._path}: record {number} is missing or damaged; {_AGAIN}")
        return offset, length

    def _find_leaf(self, number: int) -> bytes:
        # The last key below this one is that of the record, if it is there: '`' follows '_'.
        above = b"%08d`" % number
        page = self._root
        for _ in range(self._depth - 1):
            children = self._branch(page)
            page = children[max(0, bisect_left(children, (above, 0)) - 1)][1]
        return self._page(page, _LEAF)

    def _branch(self, page: int) -> list[tuple[bytes, int]]:
        # Few, and needed for every leaf: a hundred for each million records.
        if page not in self._branches:
            content = self._page(page, _BRANCH)
            nodes = [(key, low | high << 16 | flags << 32) for low, high, flags, key, _ in self._nodes(content)]
            if not nodes:
                raise self._damaged(f"page {page} has no children")
            self._branches[page] = [(b"", nodes[0][1]), *nodes[1:]]
        return self._branches[page]

    def _take_leaf(self, content: bytes) -> None:
        for low, high, flags, key, data in self._nodes(content):
            digits = key[:_DIGITS]
            row = int(digits) - self._first if len(digits) == _DIGITS and digits.isdigit() else -1
            length = low | high << 16
            if 0 <= row < len(self._places) and flags in (0, _BIGDATA) and length <= LARGEST_FILE:
                self._places[row] = self._place(content, data, flags, length)

    def _place(self, content: bytes, data: int, flags: int, length: int) -> tuple[int, int]:
        if not flags:
            return _NUMBER.unpack_from(content)[0] * self._page_bytes + data, length
        page = _NUMBER.unpack_from(content, data)[0] if data + _NUMBER.size <= len(content) else 0
        return (page * self._page_bytes + _HEADER.size, length) if 0 < page <= self._last_page else (0, 0)

    def _nodes(self, content: bytes) -> Iterator[tuple[int, int, int, bytes, int]]:
        """low, high, flags, key, and where in the page the data begins."""
        lower = min(_HEADER.unpack_from(content)[3], len(content))
        for (place,) in struct.iter_unpack("<H", content[_HEADER.size : lower - lower % 2]):
            if place + _NODE.size > len(content):
                raise self._damaged(f"a node lies at byte {place} of its page")
            low, high, flags, length = _NODE.unpack_from(content, place)
            key = place + _NODE.size
            yield low, high, flags, content[key : key + length], key + length

    def _page(self, page: int, kind: int) -> bytes:
        content = self._read(page * self._page_bytes, self._page_bytes) if 1 < page <= self._last_page else b""
        if len(content) < self._page_bytes or _HEADER.unpack_from(content)[0] != page or not _HEADER.unpack_from(content)[2] & kind:
            raise self._damaged(f"page {page} is none of the tree's")
        return bytes(content)

    def _newest_meta(self) -> tuple[int, int, int, int]:
        # Both are written in turn; the second lies a page after the first, whose free-page tree holds the length of a page.
        found = [self._meta(0)]
        found += [self._meta(found[0][1])] if found[0] else []
        metas = sorted(meta for meta in found if meta)
        if not metas:
            raise self._damaged("no LMDB environment of data version 1")
        _, page_bytes, last_page, main = metas[-1]
        _, flags, depth, _, _, _, _, root = _TREE.unpack(main)
        if flags or not 0 < depth <= _DEEPEST:
            raise self._damaged(f"its records are not a plain tree (flags {flags}, depth {depth})")
        return page_bytes, last_page, depth, root

    def _meta(self, offset: int) -> tuple[int, int, int, bytes] | None:
        content = self._read(offset, _HEADER.size + _META.size)
        if len(content) < _HEADER.size + _META.size or not _HEADER.unpack_from(content)[2] & _META_PAGE:
            return None
        magic, version, _, _, free, main, last_page, transaction = _META.unpack_from(content, _HEADER.size)
        page_bytes = _TREE.unpack(free)[0]
        is_page = _SMALLEST_PAGE <= page_bytes <= _LARGEST_PAGE and not page_bytes & page_bytes - 1
        return (transaction, page_bytes, last_page, main) if magic == _MAGIC and version == 1 and is_page else None

    def _read(self, offset: int, length: int) -> bytearray:
        try:
            return self._file.read(offset, length)
        except OSError as error:
            raise DatasetError(f"{self._path}: cannot be read ({error.strerror})") from None

    def _damaged(self, what: str) -> DatasetError:
        return DatasetError(f"{self._path}: {what}; {_AGAIN}")
