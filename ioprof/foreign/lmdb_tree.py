"""Keys and places of all values of an LMDB environment, by walking the pages of its file: a damaged
one cannot crash the process.

The format is that of `ioprof.foreign.lmdb_format`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ioprof.errors import DatasetError
from ioprof.foreign import lmdb_format
from ioprof.foreign.lmdb_format import (
    BIGDATA,
    BRANCH,
    HEADER_BYTES,
    LEAF,
    META_BYTES,
    NO_PAGE,
    Meta,
)


class Entry(NamedTuple):
    """One key, and the place of its value in the file."""

    key: bytes
    start: int
    end: int


def entries(file: memoryview, where: str) -> Iterator[Entry]:
    """All entries of the main database, in the order of their keys; raises `DatasetError` that
    names `where`.
    """
    metas = [lmdb_format.meta(file[:META_BYTES])]
    metas += [lmdb_format.meta(file[metas[0].page_bytes :][:META_BYTES])] if metas[0] else []
    newest = max((meta for meta in metas if meta), default=None)
    if newest is None or not newest.is_plain:
        raise DatasetError(
            f"{where}: no LMDB environment of data version 1, or one with a special main database"
        )
    if newest.root == NO_PAGE:
        return
    count, previous = 0, b""
    for entry in _walk(file, where, newest, newest.root, newest.depth):
        # Pages that refer to each other in a circle, or twice to the same page, repeat keys.
        if (count and entry.key <= previous) or count >= newest.entries:
            raise DatasetError(f"{where}: damaged (its keys are not in order); get the file again")
        count, previous = count + 1, entry.key
        yield entry
    if count != newest.entries:
        raise DatasetError(
            f"{where}: holds {count} entries, and announces {newest.entries}; get the file again"
        )


def _walk(file: memoryview, where: str, meta: Meta, page: int, depth: int) -> Iterator[Entry]:
    start = page * meta.page_bytes
    content = file[start : start + meta.page_bytes]
    if not 1 < page <= meta.last_page or len(content) < meta.page_bytes or depth < 1:
        raise DatasetError(
            f"{where}: cut short, or damaged (page {page} is not in the file); get the file again"
        )
    if not lmdb_format.is_page(content, page, LEAF if depth == 1 else BRANCH):
        raise DatasetError(
            f"{where}: damaged (page {page} is none of the tree's); get the file again"
        )
    try:
        nodes = list(lmdb_format.nodes(content))
    except ValueError as error:
        raise DatasetError(
            f"{where}: damaged ({error} of page {page}); get the file again"
        ) from None
    for node in nodes:
        if depth > 1:
            yield from _walk(file, where, meta, node.child, depth - 1)
            continue
        value = start + node.data
        outside = lmdb_format.value_page(content, node.data) if node.flags == BIGDATA else None
        if outside is not None:
            value = outside * meta.page_bytes + HEADER_BYTES
        elif node.flags or node.data + node.size > len(content):
            raise DatasetError(
                f"{where}: damaged, or not plain (a value in page {page} with the flags"
                f" {node.flags})"
            )
        if value + node.size > len(file):
            raise DatasetError(
                f"{where}: cut short (a value of {node.size} bytes at byte {value}); get the file"
                " again"
            )
        yield Entry(node.key, value, value + node.size)
