"""Calls ioprof._bins, built with sanitizers, with spans that have a place in its buffers and with
such as have none.

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
    pairs, classes, source_rows, bins, spans, kinds, sources, processes = (
        chance.randrange(1, 5) for _ in range(8)
    )

    def numbers(count: int, low: int, high: int, dtype: type = np.int64) -> Any:
        odd = chance.random() < 0.1
        values = [
            chance.choice(EXTREMES) if odd else chance.randrange(low, high) for _ in range(count)
        ]
        return np.array(values, np.int64).astype(dtype)

    starts, ends, moved, of_process = (
        numbers(spans, low, high) for low, high in ((-9, 999), (-9, 999), (0, 99), (-1, processes))
    )
    of_kind, of_source = (
        numbers(spans, 0, kinds, np.uint8),
        numbers(spans - (chance.random() < 0.1), 0, sources, np.uint8),
    )
    known, table = np.arange(processes), numbers((processes + 1) * kinds * sources, -1, pairs)
    limits = np.sort(numbers(chance.choice((0, 3, 253, 300)), 0, 1000))
    classes_of, sources_of = numbers(pairs, 0, classes), numbers(pairs, -1, source_rows)
    busy, longest = np.zeros((pairs, bins)), np.zeros((pairs, bins), np.uint8)
    durations, moved_by = np.zeros((classes, CODES)), np.zeros((source_rows, bins))
    length_ns, end_ns = (
        chance.choice((1e-300, 0.5, 250.0, 1e300, 0.0, -1.0, float("nan"))),
        chance.choice((0, 500, 2**63 - 1, -1)),
    )
    try:
        native.add_spans(
            starts,
            ends,
            moved,
            of_process,
            of_kind,
            of_source,
            known,
            table,
            limits,
            classes_of,
            sources_of,
            busy,
            longest,
            durations,
            moved_by,
            kinds,
            sources,
            length_ns,
            end_ns,
        )
    except ValueError:
        assert not busy.any()
        assert not durations.any()
    else:
        place = np.where((of_process >= 0) & (of_process < processes), of_process, processes)
        assert (
            durations.sum()
            == (table.reshape(-1, kinds, sources)[place, of_kind, of_source] >= 0).sum()
        )


check_cases(check_case, "_bins", *sys.argv[1:])
