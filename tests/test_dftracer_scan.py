"""The scanner in C finds in the lines of DFTracer what the decoder in Python finds, also in those
that are damaged."""

import gzip
import json
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from damaged_dftracer import (
    CALLS,
    KEPT,
    PARTS,
    WHOLE,
    check_data,
    check_file,
    damaged,
    found_in,
    generated,
    read,
    shown,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import examples

from ioprof import _scan
from ioprof.interchange import dftracer, dftracer_events


def line(
    ts: str = "5", dur: str = "1", name: str = '"read"', args: str = "{}", **more: str
) -> bytes:
    """An event in JSON; of the values too."""
    fields = {
        "name": name,
        "cat": '"POSIX"',
        "pid": "9",
        "ph": '"X"',
        "ts": ts,
        "dur": dur,
        "args": args,
        **more,
    }
    return ("{" + ",".join(f'"{key}":{value}' for key, value in fields.items()) + "}").encode()


def test_the_scanner_reads_the_usual_form() -> None:
    """It leaves the line with an escape to the decoder, and no other."""
    scanner = _scan.DFTracerScanner(1, CALLS, KEPT)
    rows, num_events = scanner.scan(WHOLE, 0, len(WHOLE))
    assert (24, 11) == (len(rows), num_events)
    found, num_events, damage = found_in(WHOLE, [], scans=True)
    assert (12, Counter()) == (num_events, damage)
    assert [(call, start, length) for start, length, call, *_ in shown(found)] == [
        (("POSIX", "read"), 10**18 + 1000, 9000),
        (("POSIX", "open64"), 10**18 + 3456, 1000),  # halves to even
        (("compute", "compute"), 10**18 + 4250, 2000),
        (("app", "my_é_range"), 10**18 + 5000, 3000),
        (("data", "item"), 7000, 1000),
        (("POSIX", "read"), 9000, 1000),
    ]
    assert found.left_out == {("POSIX", "lseek64"): 1, ("STDIO", "write"): 1}


@settings(max_examples=examples(250), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_lines_give_the_same_events_and_counts(seed: int) -> None:
    """Lines that were changed, cut, doubled, with escapes, other bytes than UTF-8, or fields that
    are there twice."""
    chance = random.Random(seed)
    check_data(damaged(chance, chance.choice((WHOLE, generated(chance))), PARTS), chance)


@settings(max_examples=examples(50), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_damaged_files_give_the_same_tables(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Also where a member of a gzip file is cut short or corrupt: a table with what was before it,
    or one line."""
    chance = random.Random(seed)
    check_file(
        damaged(chance, generated(chance) + b"\n" + WHOLE, PARTS),
        tmp_path_factory.mktemp("x") / "x.pfw",
        chance,
    )


numbers = st.from_regex(r"-?[0-9]{1,40}(\.[0-9]{0,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@settings(max_examples=examples(300), deadline=None)
@given(
    ts=numbers,
    dur=numbers,
    ret=numbers,
    pid=numbers,
    name=st.text(max_size=20),
    is_text=st.booleans(),
)
def test_any_numbers_and_names_are_read_alike(
    ts: str, dur: str, ret: str, pid: str, name: str, is_text: bool
) -> None:
    """As numbers and as texts; with leading zeros, too many digits, fractions and exponents."""
    ts, dur, ret, pid = (f'"{each}"' if is_text else each for each in (ts, dur, ret, pid))
    event = line(
        ts,
        dur,
        json.dumps(name),
        f'{{"ret":{ret},"fname":{json.dumps(name, ensure_ascii=False)}}}',
        pid=pid,
        cat='"app"',
    )
    check_data(event + b"\n" + line(ts), random.Random(0))


@settings(max_examples=examples(300), deadline=None)
@given(
    whole=st.integers(0, 2**61 // 1000),
    decimals=st.from_regex(r"[0-9]{1,18}", fullmatch=True),
    is_text=st.booleans(),
)
def test_times_are_exact(whole: int, decimals: str, is_text: bool) -> None:
    """To the nearest nanosecond, halves to even, where a double of microseconds since 1970 loses up
    to 128."""
    value = f"{whole}.{decimals}"
    exact = round(Decimal(whole) * 1000 + Decimal("0." + decimals).scaleb(3))
    found, _, _ = found_in(line(f'"{value}"' if is_text else value), [], scans=True)
    assert [exact if exact < 2**61 else dftracer_events.NONE] == found.columns["start_ns"].tolist()


@pytest.mark.parametrize("packs", [False, True])
@pytest.mark.parametrize("scans", [False, True])
def test_lines_of_all_lengths_cross_blocks(tmp_path: Path, packs: bool, scans: bool) -> None:
    """Names of 4,000 characters, a line that is longer than a block, and one that is too long; a
    truncated last line is said."""
    names = ["n" * length for length in (1, 15, 16, 17, 511, 512, 4000, 300_000)] * 40
    lines = [
        line(name=json.dumps(name), cat='"app"', args=json.dumps({"fname": f"/{at}"}))
        for at, name in enumerate(names)
    ]
    data = b"\n".join([*lines, b'{"x":"' + b"y" * (2 << 20) + b'"}', line()[:-1]])
    (tmp_path / "x").write_bytes(gzip.compress(data, 1) if packs else data)
    spans, schema, damage = read(tmp_path / "x", scans)
    assert {"a line that is not an event": 3} == damage  # the one that is too long is cut into two
    assert [f"/{at}" for at in range(len(names))] == [
        row[list(schema).index("path")] for row in spans
    ]
    assert [name[:200] for name in names] == [row[list(schema).index("name")] for row in spans]


def test_a_member_that_is_cut_short_is_said(tmp_path: Path) -> None:
    """What was before it is imported."""
    lines = b"\n".join(line(args=f'{{"ret":{at}}}') for at in range(20_000))
    (tmp_path / "x").write_bytes(gzip.compress(lines) + gzip.compress(b"\n" + lines)[:-2000])
    (imported,) = dftracer.read_dftracer([tmp_path / "x"])
    assert imported.damage["truncated or corrupt gzip data"] == 1
    assert 20_000 < len(imported.spans) < 40_000
    assert imported.spans["bytes"].head(20_000).to_list() == list(range(20_000))
    assert imported.spans["kind"].cast(pl.String).unique().to_list() == ["read"]


def test_other_data_after_a_gzip_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(WHOLE) + b"other data after the end")
    (imported,) = dftracer.read_dftracer([tmp_path / "x"])
    assert (6, 1) == (len(imported.spans), imported.damage["truncated or corrupt gzip data"])


def test_a_scan_is_within_its_text() -> None:
    scanner = _scan.DFTracerScanner(1, (), ())
    for begin, end in ((-1, 1), (2, 1), (0, len(WHOLE) + 1), (len(WHOLE) + 1, len(WHOLE) + 1)):
        with pytest.raises(ValueError, match="no lines from"):
            scanner.scan(WHOLE, begin, end)
