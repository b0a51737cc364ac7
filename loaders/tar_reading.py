"""Reads the records of one tar as ioprof writes them: `KEY.jpg`, `KEY.cls`, `KEY.json`, where KEY
is the number of the record.

What is not exactly that raises `DatasetError`. The numbers are consecutive, so a record in the
middle of a shard is found by a few reads: a guess where it lies, the next header from there on, and
another guess between what is known.
"""

import re
from typing import Final, NamedTuple

from ioprof.errors import DatasetError
from ioprof.loaders.file_reading import LARGEST_FILE, FileRanges

BLOCK: Final = 512
CHUNK_BYTES: Final = 1 << 20
"""Of one read: some ten images, a stripe of most parallel file systems, and less than what they
read ahead."""
_SEARCH_BYTES: Final = 1 << 16
_SEARCHES: Final = 1 << 10
_GUESSES: Final = 64
_NEAR: Final = 4
"""So many records are skipped one by one."""
_IMAGE: Final = re.compile(rb"(\d{8,19})\.(?:jpg|png|rgb)")
_SIZE: Final = re.compile(rb"[0-7]{11}[\0 ]")
_CHECKSUM: Final = slice(148, 156)
_AGAIN: Final = "convert the dataset again"


class _Header(NamedTuple):
    name: bytes
    size: int

    @property
    def number(self) -> int:
        """Of the record whose image this is; -1: it is no image."""
        found = _IMAGE.fullmatch(self.name)
        return int(found[1]) if found else -1


class TarReader:
    """Hands out records `numbers` of the tar at `path`, which holds records `shard`, in order; for
    the process that made it.
    """

    def __init__(self, path: str, shard: range, numbers: range) -> None:
        self._path = path
        self._left = numbers
        try:
            self._file = FileRanges(path)
        except OSError as error:
            raise DatasetError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None
        # What was read last lies in the first `filled` bytes of a buffer that is kept: a new one
        # costs a fault for every page.
        self._buffer = bytearray(2 * CHUNK_BYTES)
        self._filled = 0
        self._start = self._place = self._locate(shard, numbers.start)

    @property
    def is_done(self) -> bool:
        """Whether there are no more records; the file is then closed."""
        return not self._left

    def next(self) -> tuple[int, bytes, bytes]:
        """Number, image and label of the next record."""
        number, self._left = self._left[0], self._left[1:]
        found = number, *self._content(number)
        if self.is_done:
            self._file.close()
        return found

    def _content(self, number: int) -> tuple[bytes, bytes]:
        image = self._header(self._place)
        if image.number != number:
            raise self._damaged(f"{image.name[:40]!r} lies where record {number} should be")
        data = self._place + BLOCK
        label = data + padded(image.size)
        key = image.name.partition(b".")[0]
        about = label + 2 * BLOCK
        self._take(data, about + BLOCK - data)  # at once, since all of it is needed
        labels, last = self._header(label), self._header(about)
        if (labels.name, last.name) != (key + b".cls", key + b".json") or labels.size > BLOCK:
            raise self._damaged(f"record {number} is not followed by its label and its description")
        self._place = about + BLOCK + padded(last.size)
        return bytes(self._take(data, image.size)), bytes(self._take(label + BLOCK, labels.size))

    # ----------------------------------------------------------------------- a window that moves on

    def _header(self, place: int) -> _Header:
        found = _parsed(self._take(place, BLOCK))
        if found is None:
            raise self._damaged(f"no header of a file at byte {place}")
        return found

    def _take(self, place: int, size: int) -> memoryview:
        begin = place - self._start
        if begin + size > self._filled:
            self._move_on(place, size)
            begin = 0
        if begin + size > self._filled:
            raise self._damaged("cut short")
        return memoryview(self._buffer)[begin : begin + size]

    def _move_on(self, place: int, size: int) -> None:
        kept = self._buffer[min(place - self._start, self._filled) : self._filled]
        wanted = max(CHUNK_BYTES, size - len(kept))
        if len(kept) + wanted > len(self._buffer):
            self._buffer = bytearray(len(kept) + wanted)
        self._buffer[: len(kept)] = kept
        self._start, self._filled = place, len(kept)
        self._filled += self._read_into(len(kept), wanted, place + len(kept))

    def _read_into(self, begin: int, size: int, place: int) -> int:
        try:
            return self._file.read_into(memoryview(self._buffer)[begin : begin + size], place)
        except OSError as error:
            raise DatasetError(f"{self._path}: cannot be read ({error.strerror})") from None

    def _damaged(self, what: str) -> DatasetError:
        return DatasetError(f"{self._path}: {what}; {_AGAIN}")

    # ----------------------------------------------------------------------- a record in the middle

    def _locate(self, shard: range, number: int) -> int:
        """Where the record begins."""
        low, low_number, high, high_number = 0, shard.start, self._file.size, shard.stop
        for _ in range(_GUESSES):
            if number - low_number <= _NEAR:
                break
            # One record too early is better than one too late.
            guess = low + (high - low) * (number - 1 - low_number) // (high_number - low_number)
            found = self._next_image(max(guess - guess % BLOCK, low + BLOCK), high)
            if found is None or found[1] > number:
                high, high_number = guess, found[1] if found else high_number
            elif low_number < found[1]:
                low, low_number = found
            else:
                break
        for _ in range(number - low_number):
            low = self._end(low)
        return low

    def _next_image(self, place: int, end: int) -> tuple[int, int] | None:
        """Place and number of the first record that begins at `place` or after it, and before
        `end`.
        """
        for _ in range(_SEARCHES):
            data = self._read(place, _SEARCH_BYTES)
            for begin in range(0, min(len(data), end - place) - BLOCK + 1, BLOCK):
                header = _parsed(memoryview(data)[begin : begin + BLOCK])
                if header and header.number >= 0:
                    return place + begin, header.number
            place += len(data)
            if not data or place >= end:
                break
        return None

    def _end(self, place: int) -> int:
        """Where the record that begins at `place` ends."""
        image = _parsed(memoryview(self._read(place, BLOCK)))
        label = place + BLOCK + padded(image.size if image else 0)
        about = _parsed(memoryview(self._read(label + 2 * BLOCK, BLOCK)))
        if not image or not about:
            raise self._damaged(f"no whole record at byte {place}")
        return label + 3 * BLOCK + padded(about.size)

    def _read(self, place: int, size: int) -> bytearray:
        try:
            return self._file.read(place, size)
        except OSError as error:
            raise DatasetError(f"{self._path}: cannot be read ({error.strerror})") from None


def first_number(path: str) -> int:
    """The number of the first record of a tar."""
    try:
        file = FileRanges(path)
        try:
            header = _parsed(memoryview(file.read(0, BLOCK)))
        finally:
            file.close()
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from None
    if header is None or header.number < 0:
        raise DatasetError(f"{path}: does not begin with an image; {_AGAIN}")
    return header.number


def padded(size: int) -> int:
    """What a member of `size` bytes takes in a tar, without its header."""
    return -(-size // BLOCK) * BLOCK


def _parsed(block: memoryview) -> _Header | None:
    """The header of a regular file (POSIX ustar, as ioprof writes it); None: it is none."""
    if (
        len(block) < BLOCK
        or bytes(block[257:262]) != b"ustar"
        or block[156] not in b"0\0"
        or block[345]
    ):
        return None
    size, checksum = bytes(block[124:136]), bytes(block[_CHECKSUM]).strip(b" \0")
    if not _SIZE.fullmatch(size) or not checksum.isdigit() or b"8" in checksum or b"9" in checksum:
        return None
    if (
        sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ") != int(checksum, 8)
        or int(size[:11], 8) > LARGEST_FILE
    ):
        return None
    return _Header(bytes(block[:100]).partition(b"\0")[0], int(size[:11], 8))
