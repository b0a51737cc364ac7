"""The overhead of the measurement: the same clients and the same loop, reading an empty file."""

import os
from typing import Final

import numpy as np

from ioprof.storage.probe.clients import run_clients
from ioprof.storage.probe.measure import durations_ns
from ioprof.storage.probe.outcomes import Kind, Pieces, places_of
from ioprof.storage.probe.result import Harness

_READS: Final = 20_000
_EMPTY_FILE: Final = "/dev/null"


def measure_harness(reads: int = _READS) -> Harness:
    """Measured with one client. The system call is part of every reader; the clock readings around
    it are the overhead.
    """
    descriptor = os.open(_EMPTY_FILE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = run_clients(
            Pieces(Kind.RANGES, (descriptor,), places_of(np.zeros(reads, np.int64), 0, 1)),
            clients=1,
        )
    finally:
        os.close(descriptor)
    outcomes = found.read
    between = outcomes["begin_ns"][1:] - outcomes["end_ns"][:-1]
    return Harness(float(np.median(durations_ns(outcomes))), float(np.median(between)))
