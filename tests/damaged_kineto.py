"""Damaged Kineto files, and what the scanner in C and the parser in Python find in them, which must
be the same."""

import gzip
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from kineto_files import MONO_NS, document, event, launch

from ioprof.ingest.kineto import events as kineto_events
from ioprof.ingest.kineto.events import Events

RANGES: Final = ("ProfilerStep#", "enumerate(DataLoader)")
COLLECTIVE: Final = {
    "Collective_name": "allreduce",
    "In_msg_nelems": 77,
    "dtype": "Float",
    "Process_Group_Name": "0",
}
WHOLE: Final = document(
    launch(MONO_NS, 1),
    event(
        "kernel", "void k\\ é<4>(int)", MONO_NS, 1_000_000, correlation=1, External_id=3, bytes=2
    ),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", MONO_NS, 9, bytes=5, correlation=0),
    event("kernel", "ncclKernel", MONO_NS, 9, **COLLECTIVE),
    event("user_annotation", "ProfilerStep#3", MONO_NS, 5),
    event("cpu_op", "aten::mm", MONO_NS, 5, Name="ProfilerStep#"),
    '\n{"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 4, "cat": "ac2g"}',
    '{"ph":"X","name":"other order","cat":"kernel","pid":0,"tid":"7","ts":"5.5","dur":1}',
    event("kernel", "last", MONO_NS + 5, 9),
).encode()
"""One of each form of an event."""
PARTS: Final = (
    *(
        b'"ph"',
        b'"X"',
        b"{",
        b"}",
        b'": "',
        b'"',
        b"\\",
        b'\\"',
        b"\\n",
        b"\n",
        b" ",
        b"\v",
        b",",
        b":",
        b"-",
        b".",
        b"000",
        b"\0",
    ),
    *(
        b"-9e99",
        b"99999999999999999999",
        b"1.23456",
        b"\xc2\xa0",
        b"\xff",
        b"\xd9\xa3",
        b'"cat"',
        b"kernel",
        b'"kernel"',
    ),
    *(
        b',"bytes": 7',
        b'"correlation": 5a, "correlation" : "6"',
        b'"name" : "enumerate(DataLoader)x"',
        b'"name"\xc2\xa0: "ProfilerStep#',
    ),
)
LARGE_PARTS: Final = (
    *(
        b"[" * 3000,
        b'{"a":' * 2000,
        b"]" * 500,
        b"}" * 500,
        b"9" * 5000,
        b"1e400",
        b"\0" * 4096,
        b" " * 3000,
        b'"ph"' * 300,
    ),
    *(
        b"\\ud800",
        b"\\udfff\\ud800",
        b"\\u12",
        b"\\x",
        b"\\",
        b"\\\n",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc0\xaf",
    ),
    *(
        b"\xe2\x80",
        b"\xef\xbb\xbf",
        b"\xe2\x80\xa8",
        b"18446744073709551616",
        b"-9223372036854775808",
        b"999999999999999999",
    ),
    *(b"NaN", b"-", b"-0"),
)


class Splitter:
    """In place of the scanner: leaves all events to the parser in Python."""

    def __init__(self, *_: Any) -> None:
        self._num_events = 0

    def scan(self, text: bytes, begin: int, is_whole: bool) -> tuple[bytes, int]:
        starts = [found.start() for found in re.finditer(b'"ph"', text[begin:])]
        ends = [*starts[1:], len(text) - begin][: len(starts) - (not is_whole)]
        rows = [
            (self._num_events + at, begin + starts[at] + 4, begin + end)
            for at, end in enumerate(ends)
        ]
        self._num_events += len(rows)
        return np.array(rows, np.int64).tobytes(), begin + starts[-1]

    def tables(self) -> tuple[bytes, bytes, list[bytes]]:
        return b"", b"", []


def read(pieces: Iterable[bytes], scans: bool) -> tuple[Events, Counter[str]]:
    """The events of a file in pieces, each of which but the first begins with an event; found by
    the scanner or in Python."""
    damage: Counter[str] = Counter()
    scanner = kineto_events._scan
    kineto_events._scan = scanner if scans else SimpleNamespace(KinetoScanner=Splitter)
    try:
        events = Events(RANGES)
    finally:
        kineto_events._scan = scanner
    for piece in pieces:
        events.add(piece, damage)
    events.finish(damage)
    return events, +damage


def check(pieces: Callable[[], Iterable[bytes]]) -> None:
    """Compare the tables, the text between events and the counts of damage."""
    scanned, damage = read(pieces(), scans=True)
    parsed, expected_damage = read(pieces(), scans=False)
    assert (expected_damage, parsed.heading) == (damage, scanned.heading)
    for name in ("of_device", "launches", "ranges"):
        expected, found = getattr(parsed.tables, name), getattr(scanned.tables, name)
        assert expected.schema == found.schema
        assert expected.rows() == found.rows()


def check_data(data: bytes, chance: random.Random) -> None:
    """Compare in up to three pieces."""
    marks = [place for place in range(1, len(data)) if data.startswith(b'"ph"', place)]
    cuts = sorted(chance.sample(marks, min(len(marks), chance.randrange(3))))
    check(
        lambda: [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    )


def check_file(data: bytes, path: Path, chance: random.Random) -> None:
    """Compare a file that is read in small blocks, some of them compressed and then truncated or
    changed; `path` is written to."""
    if chance.random() < 0.3:
        packed = bytearray(gzip.compress(data, 1))
        if chance.random() < 0.5:
            packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            del packed[chance.randrange(len(packed)) :]
        data = bytes(packed)
    path.write_bytes(data)
    was = kineto_events._BLOCK_BYTES
    kineto_events._BLOCK_BYTES = (
        chance.choice((1, 2, 3, 7, 64, 300, 1000, 4096))
        if len(data) < 6000
        else chance.randint(200, 5000)
    )
    try:
        check(lambda: kineto_events.pieces(path, Counter()))
    finally:
        kineto_events._BLOCK_BYTES = was


def generated(chance: random.Random) -> bytes:
    """A file of up to 60 events, most of them in the usual form, indented or not."""
    categories = (
        "kernel",
        "gpu_memcpy",
        "gpu_memset",
        "cuda_runtime",
        "Kernel",
        "cpu_op",
        "user_annotation",
        "ac2g",
        "overhead",
    )
    events = []
    for number in range(chance.randrange(60)):
        names = (
            "ProfilerStep#1",
            "enumerate(DataLoader)#x",
            "k" * chance.randrange(300),
            'a\\b"c\t',
            "é\u2028",
            "\ud83d",
        )
        name = chance.choice(names)
        args = {"correlation": number, "bytes": 10 ** chance.randrange(20), "External_id": 5}
        args |= COLLECTIVE if chance.random() < 0.3 else {}
        kept = {key: value for key, value in args.items() if chance.random() < 0.7}
        text = event(
            chance.choice(categories),
            name,
            MONO_NS + number * 1000,
            chance.randrange(10**6),
            **kept,
        )
        events.append(" ".join(text.split()) if chance.random() < 0.5 else text)
    return document(*events).encode()


def damaged(chance: random.Random, whole: bytes = WHOLE, parts: tuple[bytes, ...] = PARTS) -> bytes:
    """The file with up to 12 changes: other bytes and `parts` in their place, slices that are gone
    or doubled, an early end."""
    data = bytearray(whole)
    for _ in range(chance.randint(0, 12)):
        place = chance.randrange(len(data)) if data else 0
        what = chance.randrange(9)
        if what < 4:
            data[place : place + chance.randrange(3)] = chance.choice(parts)
        elif what == 4:
            data[place : place + 1] = chance.randbytes(1)
        elif what == 5:
            del data[place : place + chance.randrange(30)]
        elif what == 6:
            start = chance.randrange(len(data)) if data else 0
            data[place:place] = data[start : start + chance.randrange(300)]
        elif what == 7 and data:
            data[place] ^= 1 << chance.randrange(8)
        elif chance.random() < 0.1:
            del data[place:]
    return bytes(data)


def check_case(chance: random.Random, path: Path) -> None:
    """One damaged file of any kind."""
    whole = chance.choice((lambda: WHOLE, lambda: generated(chance)))()
    data = damaged(chance, whole, chance.choice((PARTS, PARTS + LARGE_PARTS)))
    if chance.random() < 0.5:
        check_data(data, chance)
    else:
        check_file(data, path, chance)


def check_places(data: bytes, scanner: type, chance: random.Random) -> None:
    """A scan from each place: an error where no event begins, and else rows of which each lies
    within the text."""
    for begin in (
        *(chance.randint(-9, len(data) + 9) for _ in range(20)),
        data.find(b'"ph"'),
        len(data),
    ):
        scan = scanner(chance.getrandbits(64), ("kernel",), ("cuda_runtime",), ("cpu_op",), RANGES)
        try:
            rows, last = scan.scan(data, begin, chance.random() < 0.5)
        except ValueError:
            assert begin < 0 or not data.startswith(b'"ph"', begin)
            continue
        left = np.frombuffer(rows, np.int64).reshape(-1, 3)
        assert begin <= last < len(data)
        assert ((begin < left[:, 1]) & (left[:, 1] <= left[:, 2]) & (left[:, 2] <= len(data))).all()
