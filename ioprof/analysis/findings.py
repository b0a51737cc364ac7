"""What an analysis finds besides the causes: loaders, the workers' time, how the job read, and how
waits and epochs vary.
"""

import polars as pl

from ioprof.analysis.charge.skew import skew
from ioprof.analysis.charge.workers_time import Making, workers_time
from ioprof.analysis.loaders import loaders
from ioprof.analysis.ranks.variation import epochs, steps_bounds, trend, waiting
from ioprof.analysis.reads.queue_depth import DepthOverTime
from ioprof.analysis.reads.read_patterns import ReadPatterns, of_data
from ioprof.analysis.reads.sources import counted_reads
from ioprof.analysis.reads.storage_bytes import by_process
from ioprof.format.run_record import Findings
from ioprof.format.trace import Trace


class Finding:
    """`findings`, once `reads` has looked at all spans. `received` is `loaders.batches(trace)`."""

    def __init__(self, trace: Trace, received: pl.DataFrame) -> None:
        self._trace, self._received = trace, received
        self._of_batch = epochs(trace, received)
        numbered = self._of_batch.select("rank", "batch", "epoch").unique(["rank", "batch"])
        first_ns, last_ns = steps_bounds(trace)
        is_counted = of_data(trace, counted_reads(trace), first_ns)
        self.reads = ReadPatterns(trace, is_counted, DepthOverTime(first_ns, last_ns), numbered)

    def findings(self, charged: pl.DataFrame, made: Making, arrived: pl.DataFrame) -> Findings:
        """All of them. `charged` is `blame(trace)`, `made` is `workers_time.making(trace)`, and
        `arrived` is `stragglers.arrivals(trace)`.
        """
        trace, received = self._trace, self._received
        whole_job = trace.run.whole_job
        # else the first of its epochs is none that is known
        has_all = whole_job is None or not whole_job.is_part
        over_epochs = trend(charged, self._of_batch, self.reads.of_epochs()) if has_all else None
        late = skew(arrived, trace.run.uncertainty_ns)
        found = self.reads.found(made.total_ns, by_process(trace))
        return Findings(
            loaders(received), workers_time(made), found, waiting(received), over_epochs, late
        )
