"""Scanners of Kineto, DFTracer and Darshan files in C (native/scan/). Rows and columns are of
int64; the least one is no value.
"""

from collections.abc import Sequence

class KinetoScanner:
    """Scans events of Kineto files; what is not in the usual form is left to a parser."""

    def __init__(
        self,
        seed: int,
        activities: Sequence[str],
        launches: Sequence[str],
        host: Sequence[str],
        ranges: Sequence[str],
        /,
    ) -> None:
        """Categories of activities, those of them that are launches, and those of the host with the
        beginnings of their names.
        """
    def scan(self, text: bytes, begin: int, is_whole: bool, /) -> tuple[bytes, int]:
        """Scan a text from a `"ph"` on, its last event only where it is whole. Returns rows of the
        number, start and end of events for the parser, and where the last event begins.
        """
    def tables(self) -> tuple[bytes, bytes, list[bytes]]:
        """Rows of activities, rows of launches, and the strings that they number."""

class DFTracerScanner:
    """Scans lines of DFTracer files, of which each is an event; what is not in the usual form is
    left to a decoder.
    """

    def __init__(self, seed: int, system_calls: Sequence[str], kept: Sequence[str], /) -> None:
        """Categories of which only some names become rows, and those names."""
    def scan(self, text: bytes, begin: int, end: int, /) -> tuple[bytes, int]:
        """Scan the whole lines between two places. Returns rows of the number, start (from `begin`)
        and end of lines for the decoder, and the number of events so far.
        """
    def tables(
        self,
    ) -> tuple[tuple[Cells, int], list[bytes], list[bytes], list[bytes], list[bytes], list[bytes]]:
        """Columns of events and how many there are, which are then gone from here; columns of uses
        of calls, and of what hashes stand for; the calls (category, zero byte, name), names and
        hashes that they number.
        """

class Cells:
    """The memory of columns, of which each has the same number of cells; those that are not in use
    are undefined.
    """

    def __buffer__(self, flags: int, /) -> memoryview: ...

class DarshanScanner:
    """Scans the data of Darshan's module DXT_POSIX, of which each record has the calls of one file
    and rank.
    """

    def __init__(self, seed: int, start_ns: int, has_threads: bool, is_swapped: bool, /) -> None:
        """What is added to times; whether calls have threads; whether the data has the other byte
        order.
        """
    def scan(self, data: bytes, /) -> None:
        """Scan the next bytes, which may end anywhere."""
    def tables(self) -> tuple[tuple[Cells, int], bytes, list[bytes], int, int, bool]:
        """After the last bytes: the columns start, end, bytes and offset of reads, and how many
        reads there are; rows of files (id, rank, number of the host, number of reads); the hosts;
        how many writes there are, how many impossible reads, and whether a record was not complete.
        """
