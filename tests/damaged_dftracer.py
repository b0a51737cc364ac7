"""Damaged lines of DFTracer, and what the scanner in C and the decoder in Python find in them,
which must be the same."""

import gzip
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from ioprof.errors import CommandError
from ioprof.format.inflate import BLOCK_BYTES
from ioprof.interchange import dftracer, dftracer_events
from ioprof.interchange.dftracer_events import Events, Found

CALLS: Final = ("POSIX", "STDIO")
KEPT: Final = ("read", "open64")
WHOLE: Final = b"\n".join(
    [
        b"[",
        b'{"id":1,"name":"FH","cat":"dftracer","pid":1,"tid":1,"ph":"M","args":{"name":"/data/a","value":"0a1b"}},',
        b'{"id":2,"name":"HH","cat":"dftracer","pid":1,"tid":1,"ph":"M","args":{"name":"n1","value":22}}',
        b'{"id":3,"name":"read","cat":"POSIX","type":0,"pid":9,"tid":10,"ts":1000000000000001,"dur":9,"ph":"X","args":{"hhash":22,"fhash":"0a1b","ret":4096,"offset":0}}',
        b'{"id":4,"name":"lseek64","cat":"POSIX","pid":9,"tid":10,"ts":1000000000000002,"dur":1,"ph":"X","args":{"hhash":22,"ret":5}}',
        b'{"id":"5","name":"open64","cat":"POSIX","pid":"9","tid":"10","ts":"1000000000000003.4565","dur":"1.0005","ph":"X","args":{"hostname":"n2","fname":"/data/b"}}',
        b'  { "id" : 6 , "name" : "compute" ,\t"cat":"compute","pid":9,"tid":10,"ts":1000000000000004.25,"dur":2,"ph":"X" } ,\r',  # noqa: E501
        b'{"name":"my_\\u00e9_range","cat":"app","pid":9,"tid":10,"ts":1000000000000005,"dur":3,"ph":"X","args":{"epoch":1.5e3,"more":{"a":[1,true,null,{}]}}}',
        b'{"ph":"X","cat":"data","ts":7,"name":"item","dur":1,"args":null,"image_idx":[[],[-1.5,"x"]],"step":-3}',
        b'{"name":"write","cat":"STDIO","ph":"X","ts":8,"dur":1}',
        b'{"name":"start","cat":"dftracer","ph":"X","ts":8,"dur":1}',
        b'{"name":"read","cat":"POSIX","ph":"X","ts":9,"dur":1,"args":{"ret":-1,"fhash":77,"hhash":"22"}}',
        b'{"id":7,"name":"FH","cat":"dftracer","ph":"M","args":{"name":"/data/c","value":77}}',
        b"]",
    ]
)
"""Each form of a line."""
PARTS: Final = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\",
        b'\\"',
        b"\\u00e9",
        b"\\ud800",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b",",
        b":",
        b"-",
        b".",
    ),
    *(
        b"\0",
        b"\x7f",
        b"\xff",
        b"\xc3\xa9",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
        b"0",
        b"-0",
        b"00",
        b"1e5",
        b"1E-400",
        b"-9e99",
        b"0.5",
    ),
    *(
        b"null",
        b"true",
        b"false",
        b"NaN",
        b'"x"',
        b'""',
        b'"-5"',
        b'"+5"',
        b'" 7 "',
        b'"1_0"',
        b'"\xd9\xa3"',
        b'"5."',
        b'".5"',
    ),
    *(
        b"9" * 17,
        b"9" * 18,
        b"9" * 19,
        b"9" * 40,
        b"2305843009213693",
        b"2305843009213693.951",
        b"2305843009213693.9515",
    ),
    *(
        b"4611686018427387903",
        b"4611686018427387904",
        b"-9223372036854775808",
        b"18446744073709551616",
        b"1.0005",
        b"1.0015",
    ),
    *(
        b'"ph":"X",',
        b'"name":"read",',
        b'"ts":5,',
        b'"args":{},',
        b'"args":{"ret":1},',
        b'"cat":"POSIX",',
        b'"ph":"M",',
    ),
    *(
        b'"n\\u0061me":"x",',
        b'"value":null',
        b'"name":null',
        b"hash",
        b"/*",
        b'"value":1.5',
        b"dftracer",
        b"STDIO",
    ),
)
LARGE_PARTS: Final = (
    *(
        b"[" * 3000,
        b'{"a":' * 2000,
        b"]" * 500,
        b"}" * 500,
        b"9" * 5000,
        b"0." + b"1" * 3000,
        b"n" * 4000,
        b'"' + b"k" * 4000,
    ),
    *(
        b"\\n" * 2000,
        b"\0" * 4096,
        b" " * 3000,
        b"\n" * 300,
        b"[[[[",
        b"[[[[[[1]]]]]]",
        b'{"a":{"a":{"a":{"a":{"a":1}}}}}',
    ),
)


class Splitter:
    """In place of the scanner: leaves all lines to the decoder in Python."""

    def __init__(self, *_: Any) -> None:
        self._num_lines = 0

    def scan(self, text: bytes, start: int, end: int) -> tuple[bytes, int]:
        rows, first = [], 0
        for at, line in enumerate(text[start:end].split(b"\n"), self._num_lines):
            rows.append((at, first, first + len(line)))
            first += len(line) + 1
        self._num_lines += len(rows)
        return np.array(rows, np.int64).tobytes(), 0

    def tables(self) -> tuple[Any, ...]:
        return (b"", 0), [b"", b""], [b"", b"", b""], [], [], []


@contextmanager
def scanning(scans: bool) -> Iterator[None]:
    """Lines are read by the scanner, or all of them by the decoder in Python."""
    scanner = dftracer_events._scan
    dftracer_events._scan = scanner if scans else SimpleNamespace(DFTracerScanner=Splitter)
    try:
        yield
    finally:
        dftracer_events._scan = scanner


def found_in(data: bytes, cuts: list[int], scans: bool) -> tuple[Found, int, Counter[str]]:
    """The events of whole lines, which are cut at places after line ends."""
    damage: Counter[str] = Counter()
    with scanning(scans):
        events = Events(CALLS, KEPT)
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events.add(data, start, end, damage)
    return events.finish(), len(events), +damage


def shown(found: Found) -> list[tuple[object, ...]]:
    """Events with what their numbers stand for; those of their lines only in their order."""
    columns = {name: column.tolist() for name, column in found.columns.items()}
    columns["call"] = [found.calls[place] for place in columns["call"]]
    for name in ("host", "path"):
        columns[name] = [
            None if place == dftracer_events.NONE else found.names[place] for place in columns[name]
        ]
    return list(zip(*(columns[name] for name in dftracer_events.COLUMNS[1:]), strict=True))


def check_data(data: bytes, chance: random.Random) -> None:
    """Compare the events, what hashes stand for, what was left out, and the counts."""
    ends = [place + 1 for place in range(len(data)) if data[place] == 10]
    cuts = sorted(chance.sample(ends, min(len(ends), chance.randrange(3))))
    found, num_found, damage = found_in(data, cuts, scans=True)
    expected, num_expected, expected_damage = found_in(data, cuts, scans=False)
    assert (num_expected, expected_damage) == (num_found, damage)
    assert shown(expected) == shown(found)
    assert [each[1:] for each in expected.explained] == [each[1:] for each in found.explained]
    assert expected.left_out == found.left_out


def read(path: Path, scans: bool) -> tuple[object, ...]:
    """A file as the importer returns it, or its error."""
    try:
        with scanning(scans):
            (imported,) = dftracer.read_dftracer([path])
    except CommandError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        return (str(error),)
    return imported.spans.rows(), imported.spans.schema, +imported.damage


def check_file(data: bytes, path: Path, chance: random.Random) -> None:
    """Compare a file, plain or of one or two members, some of them cut short or changed; `path` is
    written to."""
    if chance.random() < 0.6:
        middle = chance.randrange(len(data) + 1)
        packed = bytearray(gzip.compress(data[:middle], 1) + gzip.compress(data[middle:], 6))
        if chance.random() < 0.4:
            packed[chance.randrange(2, len(packed))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.4:
            del packed[chance.randrange(2, len(packed)) :]
        data = bytes(packed)
    path.write_bytes(data)
    assert read(path, scans=False) == read(path, scans=True)


def number(chance: random.Random) -> Any:
    """A number, as one or as a text."""
    value = chance.choice(
        (
            chance.randrange(10),
            chance.randrange(10**16),
            -1,
            10 ** chance.randrange(20),
            round(chance.random(), 7),
        )
    )
    return str(value) if chance.random() < 0.3 else value


def generated(chance: random.Random) -> bytes:
    """Up to 60 lines with any of the fields in any order; most of them in the usual form."""
    texts = (
        "read",
        "open64",
        "write",
        "FH",
        "HH",
        "compute",
        "n" * 4000,
        'a\\b"c\t',
        "é\u2028",
        "",
        "x" * 15,
        "y" * 16,
        "z" * 600,
    )
    lines = []
    for at in range(chance.randrange(60)):
        args = {
            key: number(chance)
            for key in ("ret", "offset", "fhash", "hhash", "value", "epoch")
            if chance.random() < 0.6
        }
        args |= {
            key: chance.choice(texts)
            for key in ("fname", "hostname", "name")
            if chance.random() < 0.3
        }
        line: dict[str, Any] = {
            "id": at,
            "name": chance.choice(texts),
            "cat": chance.choice(("POSIX", "STDIO", "app", "dftracer")),
        }
        line |= {
            "pid": chance.choice((9, "9")),
            "tid": 8,
            "ph": chance.choice("XXXXMC"),
            "ts": 10**15 + at,
            "dur": number(chance),
        }
        line |= {"args": args} if chance.random() < 0.9 else {}
        if chance.random() < 0.2:
            line = dict(chance.sample(list(line.items()), chance.randint(0, len(line))))
        separators = (",", ":") if chance.random() < 0.7 else (", ", ": ")
        lines.append(json.dumps(line, separators=separators, ensure_ascii=chance.random() < 0.8))
    return "\n".join(lines).encode()


def damaged(chance: random.Random, whole: bytes, parts: tuple[bytes, ...]) -> bytes:
    """The lines with up to 12 changes: other bytes and `parts` in their place, slices that are gone
    or doubled, an early end."""
    data = bytearray(whole)
    for _ in range(chance.randint(0, 12)):
        place = chance.randrange(len(data)) if data else 0
        what = chance.randrange(10)
        if what < 4:
            data[place : place + chance.randrange(3)] = chance.choice(parts)
        elif what == 4:  # in place of a value
            start = data.find(b":", place) + 1
            data[start : data.find(b",", start)] = chance.choice(parts)
        elif what == 5:
            del data[place : place + chance.randrange(30)]
        elif what == 6:
            start = chance.randrange(len(data)) if data else 0
            data[place:place] = data[start : start + chance.randrange(300)]
        elif what == 7 and data:
            data[place] ^= 1 << chance.randrange(8)
        elif what == 8:
            data[place : place + 1] = chance.randbytes(1)
        elif chance.random() < 0.2:
            del data[place:]
    return bytes(data)


def check_case(chance: random.Random, path: Path) -> None:
    """One damaged file of any kind."""
    whole = chance.choice((lambda: WHOLE, lambda: generated(chance)))()
    data = damaged(chance, whole, chance.choice((PARTS, PARTS + LARGE_PARTS)))
    if chance.random() < 0.05:
        data = data * (BLOCK_BYTES // max(1, len(data)) + 2)
    if chance.random() < 0.6:
        check_data(data, chance)
    else:
        check_file(data, path, chance)


def check_places(data: bytes, scanner: type, chance: random.Random) -> None:
    """A scan of any part: an error where it is not within the text, and else rows of which each
    lies within the part."""
    for _ in range(20):
        begin, end = chance.randint(-3, len(data) + 3), chance.randint(-3, len(data) + 3)
        scan = scanner(chance.getrandbits(64), CALLS, KEPT)
        try:
            rows, _ = scan.scan(bytes(data), begin, end)
        except ValueError:
            assert not 0 <= begin <= end <= len(data)
            continue
        left = np.frombuffer(rows, np.int64).reshape(-1, 3)
        assert ((left[:, 1] >= 0) & (left[:, 1] <= left[:, 2]) & (left[:, 2] <= end - begin)).all()
