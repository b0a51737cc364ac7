"""Observes Python's garbage collector: `gc` spans of collections that took long, named for the
generation, or, if the program asked for the collection itself, for the line that did.

A collection stops all threads of its process. Those below `SHORTEST_NS`, of which there may be
thousands per second, are summed: the series `process.gc_short_time` and
`process.gc_short_collections`, which are written when the recording of the process ends.
"""

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ioprof.clock import monotonic_ns
from ioprof.format.schema import COLLECTED_AT
from ioprof.instrument.appending import append
from ioprof.instrument.hooks.patches import Function, Patches
from ioprof.instrument.host import host
from ioprof.instrument.span import emit

SHORTEST_NS: Final = 1_000_000
"""A shorter collection has no span."""

_FORMAT: Final = "ioprof.spool.counters/1"
_SERIES: Final = ("process.gc_short_time", "s"), ("process.gc_short_collections", "collections")
_NAMES: Final = ("generation 0", "generation 1", "generation 2")


class GarbageCollections:
    """The collections of this process."""

    def __init__(self) -> None:
        self.is_on = False
        """Whether spans are emitted."""
        self._begin_ns = 0
        self._asked_at = ""
        """The line that asked for the collection in progress."""
        self.forget()

    def observe(self, patches: Patches) -> None:
        """Follow collections until `patches` are undone."""
        if self._follow not in gc.callbacks:
            gc.callbacks.append(self._follow)
            patches.wrap(gc, "collect", self._observe_collect)
            patches.when_undone(lambda: gc.callbacks.remove(self._follow))

    def forget(self) -> None:
        """Drop the sums, of a parent process or of an earlier recording."""
        self._since_ns = monotonic_ns()
        self._short_ns = self._num_short = 0

    def write(self, spool: Path) -> None:
        """Write the sums of short collections to a sample file of this process."""
        if not self._num_short:
            return
        # `ioprof.instrument.samplers.file` specifies the format. It is not imported here: an import
        # that makes dataclasses executes text, after which CPython forgets that the job was ended
        # by Ctrl-C (`unhandled_keyboard_interrupt` in pythonrun.c).
        with suppress(OSError, ImportError):
            self._append_sums(spool)
        self.forget()

    def _append_sums(self, spool: Path) -> None:
        import json

        pid = os.getpid()
        lines: list[Any] = [{"format": _FORMAT, "host": host(), "pid": pid, "period_s": 0.0}]
        for number, (name, unit) in enumerate(_SERIES):
            lines.append({"series": number, "name": name, "unit": unit, "pid": pid})
        lines.append([self._since_ns, 0, [0, 0.0, 1, 0.0], []])
        lines.append([monotonic_ns(), 0, [0, self._short_ns / 1e9, 1, float(self._num_short)], []])
        append(
            spool / f"counters-{host()}-{pid}.jsonl",
            "".join(json.dumps(line) + "\n" for line in lines).encode(),
        )

    def _observe_collect(self, original: Function) -> Function:
        def collect(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return original(*args, **kwargs)
            frame = sys._getframe(1)  # noqa: SLF001
            self._asked_at = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            try:
                return original(*args, **kwargs)
            finally:
                self._asked_at = ""

        return collect

    def _follow(self, phase: str, info: dict[str, Any]) -> None:
        """Of `gc.callbacks`; what it raised would be printed."""
        if not self.is_on:
            return
        if phase == "start":
            self._begin_ns = monotonic_ns()
            return
        begin_ns, self._begin_ns = self._begin_ns, 0
        if not begin_ns:
            return
        end_ns = monotonic_ns()
        if end_ns - begin_ns < SHORTEST_NS:
            self._short_ns += end_ns - begin_ns
            self._num_short += 1
        else:
            name = (
                COLLECTED_AT + self._asked_at
                if self._asked_at
                else _NAMES[min(info.get("generation", 0), 2)]
            )
            emit("gc", begin_ns, end_ns, name)
