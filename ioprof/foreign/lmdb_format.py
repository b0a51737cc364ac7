"""The pages of an LMDB environment, checked: of LMDB 0.9 (`mdb.c`), data version 1, as 64-bit
little-endian machines write it.

page   number u64 | - u16 | flags u16 | lower u16 | upper u16 | places of nodes u16 ...      nodes are sorted by their keys
node   low u16 | high u16 | flags u16 | key's length u16 | key | data
in a branch, low, high and flags are the child's page number, and the first key stands for all that are smaller
in a leaf, low and high are the length of the value, which is the data, or with the flag BIGDATA lies on page number u64
meta   (pages 0 and 1) after the page's 16 bytes: magic u32 | version u32 | address u64 | map size u64 | free-page tree 48 |
main tree 48 | last page u64 | transaction u64; a tree is page size u32 | flags u16 | depth u16 | three counts u64 |
entries u64 | root u64
"""  # noqa: E501

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

BRANCH, LEAF = 1, 2
"""Flags of a page."""
BIGDATA: Final = 1
"""Flag of a node whose value lies on pages of its own, after a header."""
HEADER_BYTES: Final = 16
"""Of a page, and of a value on pages of its own."""
NO_PAGE: Final = (1 << 64) - 1
"""The root of a tree without entries."""

_MAGIC: Final = 0xBEEFC0DE
_META: Final = struct.Struct("<IIQQ48s48sQQ")
_TREE: Final = struct.Struct("<IHHQQQQQ")
_HEADER: Final = struct.Struct("<QHHHH")
_NODE: Final = struct.Struct("<HHHH")
_NUMBER: Final = struct.Struct("<Q")
_META_PAGE: Final = 8
_SMALLEST_PAGE, _LARGEST_PAGE = 512, 1 << 16
_DEEPEST: Final = 32  # CURSOR_STACK in mdb.c
META_BYTES: Final = HEADER_BYTES + _META.size
"""Of a meta page that say what it is."""


class Meta(NamedTuple):
    """What a meta page says; the larger one of two is the newer one."""

    transaction: int
    page_bytes: int
    last_page: int
    flags: int
    """Of the main tree; a plain one has none."""
    depth: int
    root: int
    entries: int

    @property
    def is_plain(self) -> bool:
        """Whether the main tree has one value for each key, in the order of bytes, and a possible
        depth.
        """
        return not self.flags and 0 <= self.depth <= _DEEPEST


class Node(NamedTuple):
    """One key of a page. Places are those in the page."""

    low: int
    high: int
    flags: int
    key: bytes
    data: int
    """Where the data begins."""

    @property
    def child(self) -> int:
        """The page below, of a branch."""
        return self.low | self.high << 16 | self.flags << 32

    @property
    def size(self) -> int:
        """Bytes of the value, of a leaf."""
        return self.low | self.high << 16


def is_lmdb(head: bytes) -> bool:
    """Whether a file that begins with these bytes is an LMDB environment."""
    return len(head) >= META_BYTES and _META.unpack_from(head, HEADER_BYTES)[0] == _MAGIC


def meta(page: bytes | bytearray | memoryview) -> Meta | None:
    """What the first `META_BYTES` of a meta page say; None: they are those of no such page."""
    if len(page) < META_BYTES or not _HEADER.unpack_from(page)[2] & _META_PAGE:
        return None
    magic, version, _, _, free, main, last_page, transaction = _META.unpack_from(page, HEADER_BYTES)
    page_bytes = _TREE.unpack(free)[0]
    if (
        magic != _MAGIC
        or version != 1
        or not _SMALLEST_PAGE <= page_bytes <= _LARGEST_PAGE
        or page_bytes & page_bytes - 1
    ):
        return None
    _, flags, depth, _, _, _, entries, root = _TREE.unpack(main)
    return Meta(transaction, page_bytes, last_page, flags, depth, root, entries)


def is_page(content: bytes | bytearray | memoryview, number: int, kind: int) -> bool:
    """Whether the bytes of a whole page are those of page `number`, and of the kind `BRANCH` or
    `LEAF`.
    """
    found, _, flags, lower, _ = _HEADER.unpack_from(content)
    return bool(found == number and flags & kind and HEADER_BYTES <= lower <= len(content))


def nodes(content: bytes | bytearray | memoryview) -> Iterator[Node]:
    """The nodes of a whole page for which `is_page` holds; raises `ValueError` that says which one
    is damaged.
    """
    lower = _HEADER.unpack_from(content)[3]
    for (place,) in struct.iter_unpack("<H", content[HEADER_BYTES : lower - lower % 2]):
        if place + _NODE.size > len(content):
            raise ValueError(f"a node at byte {place}")
        low, high, flags, length = _NODE.unpack_from(content, place)
        key = place + _NODE.size
        if key + length > len(content):
            raise ValueError(f"a key of {length} bytes")
        yield Node(low, high, flags, bytes(content[key : key + length]), key + length)


def value_page(content: bytes | bytearray | memoryview, data: int) -> int | None:
    """The page on which the value of a `BIGDATA` node lies, whose data begins at `data`; None: it
    is cut short.
    """
    return (
        int(_NUMBER.unpack_from(content, data)[0]) if data + _NUMBER.size <= len(content) else None
    )
