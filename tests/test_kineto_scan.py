"""The scanner in C finds in a Kineto file what the parser in Python finds, also in one that is damaged."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_files import MONO_NS, document, event, launch

from ioprof.ingest.kineto import events as kineto_events
from ioprof.ingest.kineto.events import Events

RANGES = ("ProfilerStep#", "enumerate(DataLoader)")
COLLECTIVE = {"Collective_name": "allreduce", "In_msg_nelems": 77, "dtype": "Float", "Process_Group_Name": "0"}
WHOLE = document(
    launch(MONO_NS, 1),
    event("kernel", "void k\\ é<4>(int)", MONO_NS, 1_000_000, correlation=1, External_id=3, bytes=2),
    event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", MONO_NS, 9, bytes=5, correlation=0),
    event("kernel", "ncclKernel", MONO_NS, 9, **COLLECTIVE),
    event("user_annotation", "ProfilerStep#3", MONO_NS, 5),
    event("cpu_op", "aten::mm", MONO_NS, 5, Name="ProfilerStep#"),
    '\n{"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 4, "cat": "ac2g"}',
    '{"ph":"X","name":"other order","cat":"kernel","pid":0,"tid":"7","ts":"5.5","dur":1}',
    event("kernel", "last", MONO_NS + 5, 9),
).encode()
PARTS = (
    *(b'"ph"', b'"X"', b"{", b"}", b'": "', b'"', b"\\", b'\\"', b"\\n", b"\n", b" ", b"\v", b",", b":", b"-", b".", b"000", b"\0"),
    *(b"-9e99", b"99999999999999999999", b"1.23456", b"\xc2\xa0", b"\xff", b"\xd9\xa3", b'"cat"', b"kernel", b'"kernel"'),
    *(
        b',"bytes": 7',
        b'"correlation": 5a, "correlation" : "6"',
        b'"name" : "enumerate(DataLoader)x"',
        b'"name"\xc2\xa0: "ProfilerStep#',
    ),
)


def read(data: bytes, cuts: list[int], scans: bool) -> tuple[Events, Counter[str]]:
    """The events of a file in pieces, each of which but the first begins with an event."""
    damage: Counter[str] = Counter()
    events = Events(RANGES, scans)
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events.add(data[start:end], damage)
    events.finish(damage)
    return events, +damage


def check(data: bytes, chance: random.Random) -> None:
    marks = [place for place in range(1, len(data)) if data.startswith(b'"ph"', place)]
    cuts = sorted(chance.sample(marks, min(len(marks), chance.randrange(3))))
    scanned, damage = read(data, cuts, scans=True)
    parsed, expected_damage = read(data, cuts, scans=False)
    assert (expected_damage, parsed.heading) == (damage, scanned.heading)
    for name in ("of_device", "launches", "ranges"):
        expected, found = getattr(parsed, name), getattr(scanned, name)
        assert expected.schema == found.schema
        assert expected.rows() == found.rows()


def damaged(chance: random.Random) -> bytes:
    data = bytearray(WHOLE)
    for _ in range(chance.randint(0, 12)):
        place = chance.randrange(len(data)) if data else 0
        what = chance.randrange(8)
        if what < 4:
            data[place : place + chance.randrange(3)] = chance.choice(PARTS)
        elif what == 4:
            data[place : place + 1] = chance.randbytes(1)
        elif what == 5:
            del data[place : place + chance.randrange(30)]
        elif what == 6:
            start = chance.randrange(len(data)) if data else 0
            data[place:place] = data[start : start + chance.randrange(300)]
        elif chance.random() < 0.1:
            del data[place:]
    return bytes(data)


@pytest.fixture(autouse=True)
def _scanner() -> None:
    if kineto_events._native is None:
        pytest.skip("ioprof._scan is not built: no C compiler")


def test_the_scanner_reads_the_usual_form() -> None:
    """It leaves the range and the event in another order to the parser, and nothing else."""
    events, damage = read(WHOLE, [], scans=True)
    assert (Counter(), 5, 1, 1) == (damage, len(events.of_device), len(events.launches), len(events.ranges))
    assert events.of_device["collective"].to_list() == [None, None, "allreduce", None, None]
    assert events.of_device["correlation"].to_list() == [1, None, None, None, None]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_files_give_the_same_tables_and_counts(seed: int) -> None:
    """Of events that were changed, cut, doubled, wrongly escaped, with white space of Unicode, or numbers that no column holds."""
    chance = random.Random(seed)
    check(damaged(chance), chance)


digits = st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,9})?", fullmatch=True)


@settings(max_examples=100, deadline=None)
@given(ts=digits, dur=digits, device=st.from_regex(r"-?[0-9]{1,22}", fullmatch=True), size=digits, name=st.text(max_size=9))
def test_any_numbers_and_names_are_read_alike(ts: str, dur: str, device: str, size: str, name: str) -> None:
    """Leading zeros, too many digits, negative times and names with escapes included."""
    text = event("kernel", name, MONO_NS, 5, bytes="@", correlation=3).replace('"@"', size)
    head, _, rest = text.partition('"pid"')
    changed = f'{head}"pid": {device}, "tid": "{device}", "ts": {ts}, "dur": "{dur}", {rest[rest.index(chr(34) + "args") :]}'
    check(document(changed, changed).encode("utf-8", "surrogatepass"), random.Random(0))


def main(cases: int, seed: int) -> None:
    """More cases, as of a scanner that was compiled with sanitizers."""
    for number in range(cases):
        chance = random.Random(f"{seed} {number}")
        check(damaged(chance), chance)
    print(f"{cases} damaged files: the same tables and counts")
