"""What the measuring itself takes: the same clients and the same loop, on a file that gives nothing."""

import os
from typing import Final

import numpy as np

from ioprof.storage.probe.clients import ENGINE, visit
from ioprof.storage.probe.measure import durations_ns
from ioprof.storage.probe.outcomes import Kind, Pieces, places_of
from ioprof.storage.probe.result import Harness

_READS: Final = 20_000
_NOTHING: Final = "/dev/null"


def measured(reads: int = _READS) -> Harness:
    """By one client. The system call is the reader's own in every program; the readings of the clock about it are ours."""
    descriptor = os.open(_NOTHING, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = visit(Pieces(Kind.RANGES, (descriptor,), places_of(np.zeros(reads, np.int64), 0, 1)), clients=1)
    finally:
        os.close(descriptor)
    outcomes = found.read
    between = outcomes["begin_ns"][1:] - outcomes["end_ns"][:-1]
    return Harness(ENGINE, float(np.median(durations_ns(outcomes))), float(np.median(between)))
