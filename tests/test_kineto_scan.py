"""The scanner in C finds in a Kineto file what the parser in Python finds, also in one that is
damaged."""

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
from compiling import native_sources, sanitized
from damaged_kineto import WHOLE, check_data, damaged, read
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kineto_files import MONO_NS, document, event
from repository import PROGRAMS
from strategies import examples

from ioprof import _scan

CASES: Final = 120
"""Of the sanitizers' run: a damaged file each."""


def test_the_scanner_reads_the_usual_form() -> None:
    """It leaves the range and the event in another order to the parser, and nothing else."""
    events, damage = read([WHOLE], scans=True)
    assert (Counter(), 5, 1, 1) == (
        damage,
        len(events.tables.of_device),
        len(events.tables.launches),
        len(events.tables.ranges),
    )
    assert events.tables.of_device["collective"].to_list() == [None, None, "allreduce", None, None]
    assert events.tables.of_device["correlation"].to_list() == [1, None, None, None, None]
    assert events.tables.launches.select("at", "name", "thread", "dur", "correlation").rows() == [
        (0, "cudaLaunchKernel", 41, 5_000, 1)
    ]


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=1939)  # `"name"name": "enumerate(DataLoader)` in a range of the host
def test_damaged_files_give_the_same_tables_and_counts(seed: int) -> None:
    """Of events that were changed, cut, doubled, wrongly escaped, with white space of Unicode, or
    numbers that no column holds."""
    chance = random.Random(seed)
    check_data(damaged(chance), chance)


digits = st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{0,9})?", fullmatch=True)


@settings(max_examples=examples(100), deadline=None)
@given(
    category=st.sampled_from(["kernel", "cuda_runtime"]),
    ts=digits,
    dur=digits,
    device=st.from_regex(r"-?[0-9]{1,22}", fullmatch=True),
    size=digits,
    name=st.text(max_size=9),
)
def test_any_numbers_and_names_are_read_alike(
    category: str, ts: str, dur: str, device: str, size: str, name: str
) -> None:
    """Leading zeros, too many digits, negative times and names with escapes included."""
    text = event(category, name, MONO_NS, 5, bytes="@", correlation=3).replace('"@"', size)
    head, _, rest = text.partition('"pid"')
    changed = (
        f'{head}"pid": {device}, "tid": "{device}", "ts": {ts}, "dur": "{dur}",'
        f" {rest[rest.index(chr(34) + 'args') :]}"
    )
    check_data(document(changed, changed).encode("utf-8", "surrogatepass"), random.Random(0))


def test_a_scan_begins_at_an_event() -> None:
    """Anything else is an error: a search behind a shorter text would read beyond it."""
    scanner = _scan.KinetoScanner(1, ("kernel",), (), (), ())
    for data, begin in (
        (b'"p', 0),
        (b"", 0),
        (WHOLE, len(WHOLE)),
        (WHOLE, len(WHOLE) + 1),
        (WHOLE, -1),
        (WHOLE, 0),
    ):
        with pytest.raises(ValueError, match="no event begins at"):
            scanner.scan(data, begin, True)


def test_names_that_collide_cost_no_more() -> None:
    """The names of a file cannot be chosen so that all have one place in the table of names,
    whatever its seed is."""
    # the constant of wyhash, which was a factor of the first step
    zero_product = (0xA0761D6478BD642F).to_bytes(8, "little")
    plain = event("kernel", "@", MONO_NS, 5).encode()
    seconds = []
    for start in (b"12345678", zero_product):
        names = (start + b"%08d" % number for number in range(20_000))
        data = (
            document("@")
            .encode()
            .replace(b"@", b",".join(plain.replace(b"@", name) for name in names))
        )
        scanner = _scan.KinetoScanner(7, ("kernel",), (), (), ())
        began = time.process_time()
        scanner.scan(data, data.find(b'"ph"'), True)
        seconds.append(time.process_time() - began)
        assert len(scanner.tables()[2]) == 20_001
    assert seconds[1] < 0.1 + 5 * seconds[0]


@pytest.mark.job(every=4)
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """No access outside of a buffer and no undefined behaviour, of damaged files; and the tables
    and counts of Python's parsers. All scanners, of Kineto, DFTracer and Darshan, are in the
    library.
    """
    built, variables = sanitized("_scan", native_sources("scan"), tmp_path)
    command = [
        sys.executable,
        str(PROGRAMS / "sanitized_scan.py"),
        str(built),
        str(tmp_path),
        str(CASES),
        "1",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    assert (0, "done\n") == (ended.returncode, ended.stdout), ended.stderr[-3000:]
