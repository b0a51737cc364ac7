"""A simulation in words: what bounds the job, its epochs with their ranges, and how far the
simulator was from published results.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.table import Table

from ioprof.model.simulator.jobs import MEASURED
from ioprof.model.simulator.simulation import Epoch, Estimate, Simulation
from ioprof.model.simulator.validation import CALIBRATES, USE, Comparison, Summed
from ioprof.report.terminal import plain_table
from ioprof.report.texts.units import amount, count, duration, percent, rate

RESOURCES: Final = {
    "compute": "the accelerators",
    "storage": "the shared storage's bandwidth",
    "client": "what a node receives from the shared storage",
    "metadata": "the metadata servers",
    "cores": "the nodes' cores (decoding, collation)",
    "loader": "what the loaders of a node make",
    "disk": "the nodes' disks",
}
"""What `Epoch.bound_by` is called."""
_FULL: Final = 0.95
"""Share of the time in which something is in use, from which on it is called full: a queue before
it takes what remains."""


def simulation_lines(found: Simulation) -> Iterator[str]:
    """One sentence per line, the most important first."""
    first, later = found.first, found.later
    yield (
        f"Predicted: {found.job} on {found.system}, {count(found.ranks)} ranks on"
        f" {count(found.nodes)} nodes, reading {_place(found)}."
    )
    bound = max(first, later, key=lambda each: max(each.busy.values()))
    used = bound.busy[bound.bound_by]
    words = RESOURCES.get(bound.bound_by, bound.bound_by)
    if used >= _FULL or bound.bound_by == "compute":
        yield f"Bound by {words}: in use {percent(used)} of the time."
    else:
        yield (
            f"Nothing is full: most used are {words}, {percent(used)} of the time; the rest is"
            " waiting for single batches, the slowest rank and exchange."
        )
    yield (
        f"The job: {found.job_source} ({found.job_basis}); {amount(found.dataset_bytes)} of data,"
        f" {amount(found.memory_bytes)} of memory in all nodes; {percent(later.hit_ratio)} of the"
        " reads of later epochs come from memory."
    )
    if found.staging_s is not None:
        yield f"Staging to the nodes' disks: {estimate_text(found.staging_s, duration)}."
    if found.epochs > 1:
        yield f"{count(found.epochs)} epochs: {estimate_text(found.total_s, duration)} in all."


def simulation_table(found: Simulation) -> Table:
    """The first epoch and a later one, with ranges."""
    rows: tuple[tuple[str, Callable[[Epoch], str]], ...] = (
        ("epoch", lambda each: estimate_text(each.seconds, duration)),
        ("samples/s", lambda each: estimate_text(each.samples_per_s, rate)),
        ("use of accelerators", lambda each: estimate_text(each.use, percent)),
        ("first step", lambda each: estimate_text(each.first_step_s, duration)),
        ("later steps", lambda each: estimate_text(each.step_s, duration)),
        ("  compute", lambda each: duration(each.compute_s)),
        ("  waiting for data", lambda each: duration(each.wait_s)),
        ("  slowest rank", lambda each: duration(each.straggler_s)),
        ("  exchange and other", lambda each: duration(each.other_s)),
        ("in use", _in_use),
    )
    return plain_table(
        ("predicted", "first epoch", "later epochs"),
        ((name, cell(found.first), cell(found.later)) for name, cell in rows),
    )


def basis_lines(found: Simulation) -> Iterator[str]:
    """What the ranges cover, and what they do not."""
    yield "The ranges have all values of system and job at their worse or better ends."
    if found.assumed:
        yield f"Assumed, without a source: {', '.join(found.assumed)}."
    if found.unknown:
        yield f"Not known, and no limit here: {', '.join(found.unknown)}."
    for each in found.limits:
        yield f"Not modelled: {each}."
    if found.job_basis == MEASURED:
        yield "Not modelled: exchange among other ranks than the recorded ones."


def validation_table(rows: Sequence[Comparison]) -> Table:
    """Each comparison by itself."""
    return plain_table(("compared with", "quantity", "it", "error", "asked"), map(_compared, rows))


def _compared(each: Comparison) -> tuple[str, ...]:
    missed = abs(each.error) > each.bound
    return (
        f"{each.row}\n  {each.why}" if missed and each.why else each.row,
        each.quantity,
        "fitted" if each.role == CALIBRATES else "validates",
        _error(each.quantity, each.error) + (" !" if missed else ""),
        _error(each.quantity, each.bound).lstrip("+"),
    )


def validation_lines(found: Sequence[Summed]) -> Iterator[str]:
    """One line for each quantity, of the results that no value was fitted to."""
    for each in found:
        worst = _error(each.quantity, each.worst).lstrip("+")
        middle = _error(each.quantity, each.median).lstrip("+")
        yield (
            f"Error of the simulator, {each.quantity}: median {middle}, worst {worst};"
            f" {each.within} of {each.count} within what is asked."
        )


def _error(quantity: str, error: float) -> str:
    return f"{error * 100:+.1f} points" if quantity == USE else f"{error:+.1%}"


def estimate_text(found: Estimate, shown: Callable[[float], str]) -> str:
    """A value with its range, if it has one."""
    if found.low == found.high:
        return shown(found.value)
    return f"{shown(found.value)} ({shown(found.low)} to {shown(found.high)})"


def _in_use(epoch: Epoch) -> str:
    used = sorted(epoch.busy.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {percent(share, 0)}" for name, share in used)


def _place(found: Simulation) -> str:
    return "the nodes' disks" if found.reads_from == "staged" else "the shared storage"
