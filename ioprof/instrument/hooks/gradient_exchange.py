"""Backward passes of DistributedDataParallel on the CPU: when they computed, and when they exchanged gradients.

The exchange runs in C++, within the backward pass, and calls no Python. But DDP keeps a log of itself: for each iteration that it
samples, when the backward computation ended, and when the exchange began and ended, by the wall clock. `gradients` has it sample
every iteration (a few clock readings), which changes nothing else. The log is read when the next backward pass begins, since the
next forward pass completes the entry. For the last backward pass the recording does so when it ends, if the model still exists.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

from ioprof.clock import anchor
from ioprof.instrument.hooks.compute import emit_without_gaps
from ioprof.instrument.span import emit

_READINGS: Final = 4  # of both clocks, of which the narrowest counts: a thread may lose its core between the two


class GradientExchange:
    """The models of a process that log their exchanges, and backward passes whose exchange is not known yet."""

    def __init__(self) -> None:
        self.models: WeakSet[Any] = WeakSet()
        self._seen: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._pending: list[tuple[int, int, int, list[tuple[int, int]]]] = []
        """Start, end and step of backward passes, and times in them that were no computation."""

    def begin_backward(self) -> None:
        """A backward pass begins; the log of the one before it is complete."""
        if self._pending:
            self._emit(*self._pending.pop(), list(self._exchanges()))

    def end_backward(self, start_ns: int, end_ns: int, step: int, gaps: list[tuple[int, int]]) -> None:
        """A backward pass on the CPU took this long, the exchange of gradients included; `gaps` have spans of their own."""
        if self.models:
            self._pending.append((start_ns, end_ns, step, gaps))
        else:
            emit_without_gaps(start_ns, end_ns, gaps, "backward", step)

    def finish(self) -> None:
        """Emit the last backward pass: no forward pass will complete its entry any more."""
        if self._pending:
            exchanges = list(self._exchanges())
            if not exchanges:
                for model in list(self.models):
                    with suppress(AttributeError, RuntimeError):  # a torch whose DDP keeps its log otherwise
                        model.logger.set_runtime_stats_and_log()  # as DDP's forward pass does
                exchanges = list(self._exchanges())
            self._emit(*self._pending.pop(), exchanges)

    def _exchanges(self) -> Iterator[tuple[int, int, int]]:
        """From the newest entry of each model's log, unless it was seen before: end of compute, start and end of the exchange."""
        for model in list(self.models):
            try:
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

    def _emit(
        self, start_ns: int, end_ns: int, step: int, gaps: list[tuple[int, int]], exchanges: list[tuple[int, int, int]]
    ) -> None:
        """The exchange, and the computation without the time that it only waited for the exchange."""
        at_ns = start_ns
        for compute_end_ns, exchange_start_ns, exchange_end_ns in sorted(exchanges):
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
