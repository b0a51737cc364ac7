"""All checks in the order in which they are shown, and how they are run."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ioprof.doctor import cgroups, gpus, kernel, places, programs
from ioprof.doctor.finding import Finding, Surroundings, untried

Check = Callable[[Surroundings], Finding | Iterable[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    programs.capture_library,
    programs.python_hooks,
    programs.span_extension,
    programs.preloaded,
    programs.interpreter,
    places.read_sources,
    places.residency,
    kernel.page_faults,
    kernel.locked_memory,
    kernel.process_books,
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
"""Every check there is. None of them changes anything on the machine."""

_AT_ONCE: Final = 4  # most of the time is spent waiting for child processes that import torch


def examine(surroundings: Surroundings) -> list[Finding]:
    """The findings of all checks, in the order of `CHECKS`; a check that cannot be made is a finding too."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [finding for findings in pool.map(lambda check: _made(check, surroundings), CHECKS) for finding in findings]


def _made(check: Check, surroundings: Surroundings) -> list[Finding]:
    made: list[Finding] = []
    try:
        found = check(surroundings)
        for finding in [found] if isinstance(found, Finding) else found:
            made.append(finding)  # one by one: what was found before a failure stays found
    except Exception as error:
        made.append(untried(check.__name__.replace("_", " "), error))
    return made
