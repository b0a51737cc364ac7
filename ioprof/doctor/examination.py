"""All checks, in the order in which they are shown, and the function that runs them."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ioprof.doctor import cgroups, gpus, kernel, places, programs
from ioprof.doctor.finding import Finding, Surroundings, failed

Check = Callable[[Surroundings], Finding | Iterable[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    programs.capture_library,
    programs.python_hooks,
    programs.jpeg_decoder,
    programs.preloaded,
    programs.interpreter,
    places.read_sources,
    places.residency,
    kernel.page_faults,
    kernel.locked_memory,
    kernel.io_counters,
    kernel.processes,
    kernel.pressure,
    kernel.block_delay,
    kernel.clock,
    kernel.open_files,
    kernel.tracing,
    places.spool_folder,
    cgroups.memory_limit,
    gpus.driver,
    gpus.kernels,
    gpus.restriction,
    gpus.dali,
)
"""All checks. None of them changes anything on the machine."""

_THREADS: Final = 4  # most of the time is spent waiting for child processes that import torch


def examine(surroundings: Surroundings, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """The findings of all checks, in their order; a check that raises gives a finding too."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return [
            finding
            for findings in pool.map(lambda check: _run_check(check, surroundings), checks)
            for finding in findings
        ]


def _run_check(check: Check, surroundings: Surroundings) -> list[Finding]:
    findings: list[Finding] = []
    try:
        found = check(surroundings)
        for finding in [found] if isinstance(found, Finding) else found:
            findings.append(finding)  # one by one, so that findings before an exception are kept
    except Exception as error:
        findings.append(failed(check.__name__.replace("_", " "), error))
    return findings
