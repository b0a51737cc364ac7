"""What an analysis finds besides the causes: loaders, the workers' time, how the job read, and how waits and epochs vary."""

import polars as pl

from ioprof.analysis.loaders import loaders
from ioprof.analysis.queue_depth import DepthOverTime
from ioprof.analysis.read_patterns import of_data, reads
from ioprof.analysis.reads import counted_reads
from ioprof.analysis.skew import skew
from ioprof.analysis.storage_bytes import storage_bytes
from ioprof.analysis.stragglers import arrivals
from ioprof.analysis.variation import epochs, steps_bounds, trend, waiting
from ioprof.analysis.workers_time import Making, workers_time
from ioprof.run_record import Findings
from ioprof.trace import Trace


def findings(
    trace: Trace, charged: pl.DataFrame, received: pl.DataFrame, made: Making, arrived: pl.DataFrame | None = None
) -> Findings:
    """All of them. `charged` is `blame(trace)`, `received` is `loaders.batches(trace)`, `made` is `workers_time.making(trace)`, and
    `arrived` is `stragglers.arrivals(trace)`, if known already.
    """
    of_batch = epochs(trace, received)
    numbered = of_batch.select("rank", "batch", "epoch").unique(["rank", "batch"])
    first_ns, last_ns = steps_bounds(trace)
    is_counted = of_data(trace, counted_reads(trace), first_ns)
    found, of_epochs = reads(trace, is_counted, DepthOverTime(first_ns, last_ns), numbered, made.total_ns, storage_bytes(trace))
    whole_job = trace.run.whole_job
    has_all = whole_job is None or not whole_job.is_part  # else the first of its epochs is none that is known
    over_epochs = trend(charged, of_batch, of_epochs) if has_all else None
    late = skew(arrivals(trace) if arrived is None else arrived, trace.run.uncertainty_ns)
    return Findings(loaders(received), workers_time(made), found, waiting(received), over_epochs, late)
