"""Calls ioprof._read_sums, built with sanitizers, with reads that have a place in its buffers and
with such as have none.

python sanitized_read_sums.py READ_SUMS_SO CASES
"""

import random
import sys
from typing import Any

import numpy as np
from extension import check_cases

EXTREMES = (-(2**63), 2**63 - 1, 0, 1, -1)
SIZES = 32
IS_READ, IS_OPEN, IS_CALL = 1, 2, 4


def check_case(native: Any, chance: random.Random) -> None:
    """The library refuses the reads, or counts each once."""
    sources, files, epochs, rows, limits = (chance.randrange(1, 5) for _ in range(5))

    def numbers(count: int, low: int, high: int) -> Any:
        odd = chance.random() < 0.1
        return np.array(
            [chance.choice(EXTREMES) if odd else chance.randrange(low, high) for _ in range(count)],
            np.int64,
        )

    columns = [
        numbers(rows, *bounds)
        for bounds in ((0, 50), (0, 99), (0, 9999), (-1, files + 1), (-1, 9), (-1, 3), (-1, 3))
    ]
    of_source = numbers(rows, 0, sources + (chance.random() < 0.1)).astype(np.uint8)
    flags = np.array([chance.randrange(8) for _ in range(rows - (chance.random() < 0.1))], np.uint8)
    tables = np.sort(numbers(limits, 0, 60)), np.sort(numbers(3, 0, 3 << 40)), numbers(3, 0, epochs)
    groups, of_files = (
        np.zeros((sources, SIZES, limits, 4), np.int64),
        np.zeros((files, 8), np.int64),
    )
    small, of_epochs = np.zeros((2, 3), np.int64), np.zeros((epochs, sources, 2), np.int64)
    shape = chance.choice(
        ((sources, epochs), (sources, epochs), (sources + 1, epochs), (-1, -1), (2**62, 2**62))
    )
    try:
        native.add_reads(
            *columns, of_source, flags, *tables, groups, of_files, small, of_epochs, *shape
        )
    except ValueError:
        assert not any(each.any() for each in (groups, of_files, small, of_epochs))
    else:
        is_read = (flags & (IS_READ | IS_OPEN)) == IS_READ
        is_known = (columns[3] >= 0) & (columns[3] < files)
        assert groups[..., 0].sum() == is_read.sum()
        assert of_files[:, 0].sum() == (is_read & is_known).sum()
        assert of_files[:, 5].sum() == ((flags & IS_OPEN != 0) & is_known).sum()


check_cases(check_case, "_read_sums", *sys.argv[1:])
