"""Backward passes of DistributedDataParallel on the CPU: when they computed, and when they
exchanged gradients.

The exchange runs in C++, within the backward pass, and calls no Python. But DDP keeps a log of
itself: for each iteration that it samples, when the backward computation ended, and when the
exchange began and ended, by the wall clock. `gradients` has it sample every iteration (a few clock
readings). An entry is complete when DDP is asked to bring its log up to date. Its forward pass does
so, but not one within `no_sync()`; so it is asked at the end of each backward pass, which changes
the log's averages by nothing.
"""

from collections.abc import Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from ioprof.clock import anchor
from ioprof.instrument.hooks.pytorch.compute import emit_without_gaps
from ioprof.instrument.span import emit

_READINGS: Final = (
    4  # of both clocks, of which the narrowest counts: a thread may lose its core between the two
)


class GradientExchange:
    """The models of a process that log their exchanges."""

    def __init__(self) -> None:
        self.has_models = False
        self._models: WeakSet[Any] = WeakSet()
        self._seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def add(self, model: Any) -> None:
        """A model logs its exchanges from now on."""
        self.has_models = True
        self._models.add(model)

    def end_backward(
        self, start_ns: int, end_ns: int, step: int, gaps: list[tuple[int, int]]
    ) -> None:
        """Emit a backward pass on the CPU: its exchange, and its computation without the time that
        it only waited for the exchange.

        `gaps` have spans of their own.
        """
        at_ns = start_ns
        # iterating over an empty WeakSet takes 2 us, in each backward pass of any other model
        exchanges = sorted(self._exchanges()) if self.has_models else ()
        for compute_end_ns, exchange_start_ns, exchange_end_ns in exchanges:
            first, last = max(exchange_start_ns, start_ns), min(exchange_end_ns, end_ns)
            if first >= last:
                continue
            emit("comm", first, last, "gradients", step=step)
            computed_ns = min(max(compute_end_ns, at_ns), last)
            if at_ns < computed_ns:
                emit_without_gaps(at_ns, computed_ns, gaps, "backward", step)
            at_ns = max(at_ns, last)
        if at_ns < end_ns:
            emit_without_gaps(at_ns, end_ns, gaps, "backward", step)

    def _exchanges(self) -> Iterator[tuple[int, int, int]]:
        """The newest entry of each model's log, unless it was seen before: end of compute, start
        and end of the exchange.
        """
        for model in list(self._models):
            try:
                model.logger.set_runtime_stats_and_log()
                log: dict[str, int] = model.logger._get_ddp_logging_data().ints_map  # noqa: SLF001
                start_ns = log["backward_comm_time_start"]
                if start_ns <= 0 or self._seen.get(model) == start_ns:
                    continue
                self._seen[model] = start_ns
                offset_ns = anchor(_READINGS).offset_ns
                times = log["backward_compute_time_end"], start_ns, log["backward_comm_time_end"]
            except (AttributeError, KeyError, RuntimeError):
                continue
            yield times[0] - offset_ns, times[1] - offset_ns, times[2] - offset_ns
