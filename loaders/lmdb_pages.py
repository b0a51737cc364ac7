"""Where the values of an LMDB environment lie in its file, found by reading its pages: nothing is
mapped, everything is checked.

A value of more than half a page lies by itself on consecutive overflow pages, so it is one read of
exactly its bytes, and it is known whether they came from storage; through the memory map it is a
fault per page or per readahead window, and is not known.

The format is that of `ioprof.foreign.lmdb_format`.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Final

import numpy as np

from ioprof.errors import DatasetError
from ioprof.foreign import lmdb_format
from ioprof.foreign.lmdb_format import BIGDATA, BRANCH, HEADER_BYTES, LEAF, META_BYTES, Node
from ioprof.loaders.file_reading import LARGEST_FILE, FileRanges

_DIGITS: Final = 8
_AGAIN: Final = "convert the dataset again"


class LmdbPages:
    """The values of records `first` to `first + entries`, whose keys are `%08d_...`, each read from
    its place in the file.

    For the process that made it. Raises `DatasetError` for whatever is no such environment, and for
    what is missing or damaged.
    """

    def __init__(self, path: str, first: int, entries: int) -> None:
        self._path, self._first = path, first
        try:
            self._file = FileRanges(path, at_random=True)
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None
        self._page_bytes, self._last_page, self._depth, self._root = self._newest_meta()
        self._branches: dict[int, list[tuple[bytes, int]]] = {}
        # Offset and length of each value, filled a leaf at a time: the records of a leaf share one
        # read of it. 0: not known yet.
        self._places = np.zeros((entries, 2), np.int64)

    def value(self, number: int) -> memoryview:
        """The value of record `number`: one read, once its leaf is known.

        Whole pages are read, as the kernel fetches no less.
        """
        offset, length = self._place_of(number)
        before = offset % self._page_bytes
        whole = -(-(before + length) // self._page_bytes) * self._page_bytes
        data = memoryview(self._read(offset - before, whole))[before : before + length]
        if len(data) < length:
            raise self._damaged(f"cut short within record {number}")
        return data

    def announcing(self, number: int) -> Callable[[], None]:
        """What has the kernel read the value of record `number`, in one piece, for whoever touches
        it next. The pages that say where it lies are read now.
        """
        place = self._place_of(number)
        return lambda: self._file.announce(*place)

    def _place_of(self, number: int) -> tuple[int, int]:
        row = number - self._first
        if not self._places[row, 0]:
            self._take_leaf(*self._find_leaf(number))
        offset, length = self._places[row].tolist()
        if not offset:
            raise DatasetError(f"{self._path}: record {number} is missing or damaged; {_AGAIN}")
        return offset, length

    def _find_leaf(self, number: int) -> tuple[int, bytes]:
        # The last key below this one is that of the record, if it is there: '`' follows '_'.
        above = b"%08d`" % number
        page = self._root
        for _ in range(self._depth - 1):
            children = self._branch(page)
            page = children[max(0, bisect_left(children, (above, 0)) - 1)][1]
        return page, self._page(page, LEAF)

    def _branch(self, page: int) -> list[tuple[bytes, int]]:
        # Few, and needed for every leaf: a hundred for each million records.
        if page not in self._branches:
            children = [(node.key, node.child) for node in self._nodes(self._page(page, BRANCH))]
            if not children:
                raise self._damaged(f"page {page} has no children")
            self._branches[page] = [(b"", children[0][1]), *children[1:]]
        return self._branches[page]

    def _take_leaf(self, page: int, content: bytes) -> None:
        for node in self._nodes(content):
            digits = node.key[:_DIGITS]
            row = int(digits) - self._first if len(digits) == _DIGITS and digits.isdigit() else -1
            if (
                0 <= row < len(self._places)
                and node.flags in (0, BIGDATA)
                and node.size <= LARGEST_FILE
            ):
                self._places[row] = self._place(page, content, node)

    def _place(self, page: int, content: bytes, node: Node) -> tuple[int, int]:
        if not node.flags:
            return page * self._page_bytes + node.data, node.size
        outside = lmdb_format.value_page(content, node.data) or 0
        return (
            (outside * self._page_bytes + HEADER_BYTES, node.size)
            if 0 < outside <= self._last_page
            else (0, 0)
        )

    def _nodes(self, content: bytes) -> list[Node]:
        try:
            return list(lmdb_format.nodes(content))
        except ValueError as error:
            raise self._damaged(str(error)) from None

    def _page(self, page: int, kind: int) -> bytes:
        content = (
            self._read(page * self._page_bytes, self._page_bytes)
            if 1 < page <= self._last_page
            else b""
        )
        if len(content) < self._page_bytes or not lmdb_format.is_page(content, page, kind):
            raise self._damaged(f"page {page} is none of the tree's")
        return bytes(content)

    def _newest_meta(self) -> tuple[int, int, int, int]:
        # Both are written in turn; the second lies a page after the first, whose free-page tree
        # holds the length of a page.
        found = [lmdb_format.meta(self._read(0, META_BYTES))]
        found += [lmdb_format.meta(self._read(found[0].page_bytes, META_BYTES))] if found[0] else []
        newest = max((meta for meta in found if meta), default=None)
        if newest is None:
            raise self._damaged("no LMDB environment of data version 1")
        if not newest.is_plain or not newest.depth:
            raise self._damaged(
                f"its records are not a plain tree (flags {newest.flags}, depth {newest.depth})"
            )
        return newest.page_bytes, newest.last_page, newest.depth, newest.root

    def _read(self, offset: int, length: int) -> bytearray:
        try:
            return self._file.read(offset, length)
        except OSError as error:
            raise DatasetError(f"{self._path}: cannot be read ({error.strerror})") from None

    def _damaged(self, what: str) -> DatasetError:
        return DatasetError(f"{self._path}: {what}; {_AGAIN}")
