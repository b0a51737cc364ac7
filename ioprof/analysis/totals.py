"""What the analyses find that look at all of the spans. They look at them together, so that the
spans are read once.
"""

from dataclasses import dataclass

import polars as pl

from ioprof.analysis.charge.blame import Charges, Charging
from ioprof.analysis.charge.overlap import Overlaps
from ioprof.analysis.charge.workers_time import Making, MakingSums
from ioprof.analysis.cpu.stacks import ChargedSamples, stacks_of_causes
from ioprof.analysis.ranks.stragglers import arrivals
from ioprof.analysis.reads.demand import Computing, Fetched, Fetching
from ioprof.analysis.selection import analyse
from ioprof.format.run_record import Overlap
from ioprof.format.trace import Trace


@dataclass(frozen=True)
class Totals:
    """Sums over all spans of a run."""

    charged: Charges
    work: Making
    """See `workers_time.MakingSums`."""
    overlaps: dict[str, Overlap]
    """See `overlap.Overlaps`."""
    fetched: Fetched
    computed_ns: int
    """Time that the accelerators computed, summed over ranks."""
    samples: pl.DataFrame
    """See `stacks.ChargedSamples`."""
    unnamed_samples: pl.DataFrame
    """See `workers_time.MakingSums`."""
    arrived: pl.DataFrame
    """See `stragglers.arrivals`."""


def totals(trace: Trace) -> Totals:
    """The sums over all spans of a trace."""
    samples = None if trace.stacks.is_empty() else ChargedSamples(trace)
    arrived = arrivals(trace)
    charging, work, overlaps = (
        Charging(trace, samples, arrived),
        MakingSums(None if samples is None else samples.of_threads),
        Overlaps(trace),
    )
    fetching, computing = Fetching(trace), Computing()
    analyse(trace, charging, work, overlaps, fetching, computing)
    found = (
        charging.charges(),
        work.found(),
        overlaps.by_activity(),
        fetching.found,
        computing.computed_ns,
    )
    charged_samples = ChargedSamples(trace).found() if samples is None else samples.found()
    return Totals(*found, charged_samples, work.unnamed_samples(), arrived)


def code_of_causes(found: Totals) -> pl.DataFrame:
    """The time of each cause by stack, as far as stacks were sampled: columns `cause stack
    seconds`.
    """
    return stacks_of_causes(found.charged, found.samples)
