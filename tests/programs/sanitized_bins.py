"""Calls ioprof._bins, built with sanitizers, with spans that have a place in its buffers and with such as have none.

python sanitized_bins.py BINS_SO CASES
"""

import random
import sys
from typing import Any

import numpy as np
from extension import check_cases

CODES = 512
EXTREMES = (-(2**63), 2**63 - 1, 0, 1, -1)


def check_case(native: Any, chance: random.Random) -> None:
    """The library refuses the spans, or counts each that has a pair once, by its duration."""
    pairs, classes, sources, bins, spans = (chance.randrange(1, 5) for _ in range(5))

    def numbers(count: int, low: int, high: int) -> Any:
        odd = chance.random() < 0.1
        return np.array([chance.choice(EXTREMES) if odd else chance.randrange(low, high) for _ in range(count)], np.int64)

    starts, lengths = numbers(spans, 0, 1000), numbers(spans, 0, 500)
    ends = np.where(lengths > 2**62, lengths, starts + lengths)
    of_spans, moved = numbers(spans, -1, pairs), numbers(spans, 0, 100)
    codes = np.array([chance.randrange(256) for _ in range(spans - (chance.random() < 0.1))], np.uint8)
    tables = numbers(pairs, 0, classes), numbers(pairs, -1, sources)
    busy, longest = np.zeros((pairs, bins)), np.zeros((pairs, bins), np.uint8)
    durations, moved_by = np.zeros((classes, CODES)), np.zeros((sources, bins))
    length_ns = chance.choice((1e-300, 0.5, 250.0, 1e300, 0.0, -1.0, float("nan")))
    try:
        native.add_spans(starts, ends, of_spans, codes, moved, *tables, busy, longest, durations, moved_by, length_ns)
    except ValueError:
        assert not busy.any()
        assert not durations.any()
    else:
        assert durations.sum() == (of_spans >= 0).sum()


check_cases(check_case, "_bins", *sys.argv[1:])
