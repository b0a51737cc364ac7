"""What recording costs on this machine: of one span and of one call, and of both after other work.

It is measured when the first run of this machine ends, which takes half a second, and kept in the
user's cache folder until the machine boots anew, or another ioprof or Python records.
"""

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ioprof.files import cache_folder, read_regular_file, write_atomically
from ioprof.format.run_record import CaptureRecord, Reason
from ioprof.instrument import preload, recorder
from ioprof.instrument.call_cost import cost_per_call_ns, cost_per_process_ns
from ioprof.instrument.kernel_clocks import boot_id

_COLD_TRIALS: Final = 30
_BURST: Final = 5
"""Spans that follow each other after other work: an image is decoded and transformed in a few
steps."""
_DISPLACED_BYTES: Final = 8 << 20
"""Copied before a trial of the cost where caches are cold: more than a core's share of all
caches."""
_MEASUREMENTS: Final = 2
"""Of which the lower counts: other programs can only add to a cost."""
_NAMES: Final = ("ns_per_span", "ns_per_cold_span", "ns_per_call", "ns_per_cold_call")

_OF_PROCESS: Final = "ns_per_process"
"""Known where `cat` is, and kept if it is known."""

Costs = dict[str, float | None]
"""Nanoseconds by the names of fields of `CaptureRecord`; None: other programs interrupted too many
of the trials."""


def with_costs(capture: CaptureRecord, environment: Mapping[str, str]) -> CaptureRecord:
    """The record with what was kept, or else with what is measured now and kept."""
    costs = _kept(environment)
    if costs is None:
        costs = measured_costs(environment)
        _keep(costs, environment)
    return _with(capture, costs)


def with_kept_costs(capture: CaptureRecord, environment: Mapping[str, str]) -> CaptureRecord:
    """The record with what was kept, if anything was."""
    return _with(capture, _kept(environment) or {})


def measured_costs(environment: Mapping[str, str]) -> Costs:
    """The costs, measured now; `environment` is that of a job."""
    hot = {
        "ns_per_span": [_or_none(recorder.cost_per_span_ns) for _ in range(_MEASUREMENTS)],
        "ns_per_call": [
            _or_none(lambda: cost_per_call_ns(environment)) for _ in range(_MEASUREMENTS)
        ],
    }
    costs: Costs = {
        name: min((each for each in found if each is not None), default=None)
        for name, found in hot.items()
    }
    costs["ns_per_cold_span"] = _or_none(
        lambda: recorder.cost_per_span_ns(_BURST, _COLD_TRIALS, _DISPLACED_BYTES)
    )
    costs["ns_per_cold_call"] = None
    if costs["ns_per_call"] is not None:
        costs["ns_per_cold_call"] = _or_none(
            lambda: cost_per_call_ns(environment, _COLD_TRIALS, 1, _DISPLACED_BYTES)
        )
    costs[_OF_PROCESS] = _or_none(lambda: cost_per_process_ns(environment))
    return costs


def _with(capture: CaptureRecord, costs: Mapping[str, float | None]) -> CaptureRecord:
    """Without the costs of calls where the library was not loaded."""
    has_library = capture.library is not False
    known = {
        name: costs.get(name) if has_library or "span" in name else None
        for name in (*_NAMES, _OF_PROCESS)
    }
    is_known = known["ns_per_span"] and (known["ns_per_call"] or not has_library)
    return capture.replace(**known, cost_reason=None if is_known else Reason.COST_UNRESOLVED)


def _or_none(measure: Callable[[], float | None]) -> float | None:
    """What `measure` returns; None where its files cannot be written, such as on a full disk, which
    costs no run.
    """
    try:
        return measure()
    except OSError:
        return None


def _file(environment: Mapping[str, str]) -> Path:
    """Where the costs of this machine are, by all that they depend on."""
    libraries = [
        Path(found) for found in (recorder.native_file(), preload.library()) if found is not None
    ]
    depends_on = [
        *(
            os.uname()[:3],
            boot_id(),
            sys.version,
            environment.get("LD_PRELOAD"),
            recorder.uses_native(),
        ),
        *((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in libraries),
    ]
    key = hashlib.sha256(repr(depends_on).encode()).hexdigest()[:16]
    return cache_folder(environment) / f"costs-{key}.json"


def _kept(environment: Mapping[str, str]) -> Costs | None:
    try:
        found = json.loads(read_regular_file(_file(environment)))
        more = (_OF_PROCESS,) if _OF_PROCESS in found else ()
        costs = {name: float(found[name]) for name in (*_NAMES, *more)}
    except (
        OSError,
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
    ):  # none, damaged, or no home folder
        return None
    return dict(costs) if all(math.isfinite(cost) and cost > 0 for cost in costs.values()) else None


def _keep(costs: Costs, environment: Mapping[str, str]) -> None:
    """For further runs, if all are known; a folder that cannot be written costs them half a second
    each.
    """
    costs = {name: cost for name, cost in costs.items() if name in _NAMES or cost is not None}
    if None not in costs.values():
        with suppress(OSError, RuntimeError):
            path = _file(environment)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(costs))
