"""A probe of a path from its options to its result."""

import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ioprof.clock import wall_text
from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset
from ioprof.jobs.byte_sizes import parse_bytes
from ioprof.jobs.options import ProbeOptions
from ioprof.jobs.probes.probe_targets import ProbeRequest, check_request, open_target
from ioprof.report.texts.units import visible
from ioprof.reporter import Reporter
from ioprof.storage import PathStorage, describe
from ioprof.storage.probe import (
    MAX_CLIENTS,
    MAX_RECORD_BYTES,
    Allowance,
    Level,
    Plan,
    Probe,
    clients_up_to,
)
from ioprof.storage.probe import probe as probe_material
from ioprof.storage.probe.scratch import LEAST_BYTES, PREFIX
from ioprof.storage.wording import lines, plain

_LONGEST_S: Final = 24 * 3600.0
_MOST_BYTES: Final = 1 << 50


@dataclass(frozen=True)
class PathProbe:
    """What a path delivers, measured by `ioprof.probe`."""

    request: ProbeRequest
    """What was to be read."""
    read: str
    """What was read, in words."""
    host: str
    began: str
    """Wall-clock time, as text."""
    allowance: Allowance
    """Limits of time and bytes."""
    storage: PathStorage
    """What the path lies on."""
    result: Probe
    """The measured levels: test, mode, number of clients, rates and latencies."""

    @property
    def levels(self) -> Sequence[Level]:
        """The levels that were measured; empty if nothing could be read."""
        return self.result.levels

    def facts(self) -> dict[str, Any]:
        """The result as `ioprof probe --json` prints it."""
        dataset: Dataset | None = self.request.dataset
        return {
            **self.result.facts(),
            "path": str(self.request.path),
            "host": self.host,
            "began": self.began,
            "read": self.read,
            "dataset": (
                {"path": str(dataset.path), "name": dataset.name, "layout": dataset.layout}
                if dataset
                else None
            ),
            "readahead": self.request.readahead,
            "scratch_bytes": self.request.scratch_bytes,
            "allowance": {"seconds": self.allowance.seconds, "bytes": self.allowance.bytes},
            "storage": plain(self.storage),
            "storage_lines": lines(self.storage),
        }

    def write_html(self, path: Path) -> None:
        """Write figures and tables as one HTML file; raises OSError."""
        # the figures' library takes a second to load
        from ioprof.report.page.probe_page import (
            write_page,
        )

        write_page(self.facts(), path)


@dataclass(frozen=True)
class PlannedProbe:
    """A probe whose options were checked."""

    request: ProbeRequest
    allowance: Allowance
    plan: Plan

    def run(self, reporter: Reporter) -> PathProbe:
        """Measure; empties the page cache of the files that are read. Raises `CommandError`."""
        began = wall_text(time.time_ns())
        path = self.request.path
        shown = visible(os.fspath(path))  # a name that is not text could not be printed
        for left in path.glob(f"{PREFIX}*") if self.request.scratch_bytes else ():
            what = visible(os.fspath(left))
            reporter.say(
                f"{what}: left by a probe that was killed, or in use by one that runs; if killed:"
                f" rm -r {left.name}"
            )
        with open_target(self.request, np.random.default_rng(), reporter) as target:
            with reporter.progress(f"probing {shown}", len(list(self.plan.steps()))) as advance:
                result = probe_material(
                    target.material, self.allowance, self.plan, lambda _: advance(1)
                )
            host, storage = socket.gethostname(), describe(path)
            return PathProbe(
                self.request, target.description, host, began, self.allowance, storage, result
            )


def plan_probe(options: ProbeOptions) -> PlannedProbe:
    """Check the options; raises `CommandError` and `DatasetError`."""
    if not math.isfinite(options.seconds) or not 0 < options.seconds <= _LONGEST_S:
        raise CommandError(
            f"--seconds {options.seconds}: give more than 0 and at most {_LONGEST_S:.0f}, such"
            " as 30"
        )
    allowance = Allowance(
        options.seconds, parse_bytes("--max-bytes", options.max_bytes, 1, _MOST_BYTES)
    )
    if not 1 <= options.clients <= MAX_CLIENTS:
        raise CommandError(
            f"--clients {options.clients}: give 1 to {MAX_CLIENTS}; more clients on one node only"
            " wait for each other"
        )
    record, scratch = options.record_bytes, options.scratch
    record_bytes = (
        parse_bytes("--record-bytes", record, 1, MAX_RECORD_BYTES) if record is not None else None
    )
    scratch_bytes = (
        parse_bytes("--scratch", scratch, LEAST_BYTES, _MOST_BYTES) if scratch is not None else None
    )
    dataset = Path(options.dataset) if options.dataset else None
    request = check_request(
        Path(options.path), dataset, record_bytes, scratch_bytes, options.readahead
    )
    return PlannedProbe(request, allowance, Plan(clients_up_to(options.clients)))
