"""What `ioprof probe` measured of a path against what the devices of a run demand."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ioprof.errors import CommandError
from ioprof.format.run_record import Demand
from ioprof.report.texts.statements import Statement
from ioprof.report.texts.units import amount, clean, rate

_TESTS: Final = ("random", "sequential")
"""Of a probe, those whose rate a job can have; the first that was measured counts."""


class _Level(msgspec.Struct):
    test: str
    clients: int
    bytes_per_s: float
    operations_per_s: float


class _Probe(msgspec.Struct):
    levels: list[_Level]
    path: str = ""


@dataclass(frozen=True)
class ProbedPath:
    """What a path delivered to the most effective number of clients."""

    path: str
    test: str
    """The order of the reads: `random` or `sequential`."""
    clients: int
    bytes_per_s: float
    reads_per_s: float


def probed_path(probe: Path) -> ProbedPath:
    """What `ioprof probe --json` printed into that file; `CommandError` for a file that it did not
    print.
    """
    try:
        found = msgspec.convert(json.loads(probe.read_bytes()), _Probe)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CommandError(
            f"--probe {probe}: is not a probe ({reason}); make one with: ioprof probe PATH --json >"
            f" {probe}"
        ) from None
    test = next(
        (test for test in _TESTS if any(level.test == test for level in found.levels)), None
    )
    levels = [level for level in found.levels if level.test == test]
    if test is None or not levels:
        raise CommandError(
            f"--probe {probe}: has no level of reads; probe for longer: ioprof probe PATH --seconds"
            " 60 --json"
        )
    best = max(levels, key=lambda level: level.bytes_per_s)
    return ProbedPath(found.path, test, best.clients, best.bytes_per_s, best.operations_per_s)


def path_statement(demand: Demand, best: ProbedPath) -> Statement:
    """How many of the run's devices the probed path feeds."""
    clients = f"{best.clients} client{'s' if best.clients > 1 else ''}"
    rates = f"{amount(best.bytes_per_s)}/s in {rate(best.reads_per_s)} {best.test} reads/s"
    text = f"{clean(best.path, 60)} delivers {rates} to {clients}"
    if not demand.bytes_per_s or not demand.num_devices:
        return Statement("probed path", f"{text}; the demand of the devices is not known")
    fed = best.bytes_per_s / demand.bytes_per_s * demand.num_devices
    enough = "enough" if fed >= demand.num_devices else "too few"
    return Statement(
        "probed path",
        f"{text}, which feeds {fed:.2g} of such devices: {enough} for this job's"
        f" {demand.num_devices}",
    )
