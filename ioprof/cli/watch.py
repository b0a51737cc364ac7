"""`ioprof watch`: a job that is being recorded, while it goes on."""

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

from rich.live import Live as Screen
from typer import Argument, Option

from ioprof import clock
from ioprof.cli.console import next_command, output, say
from ioprof.cli.watch_screen import Totals, line, screen
from ioprof.report.units import visible
from ioprof.watching.live import Live
from ioprof.watching.metrics import MetricsServer, metrics_text
from ioprof.watching.spool import LiveSpool
from ioprof.watching.target import Target, targets

_RATE_S: Final = 15.0
"""Rates are of so many seconds."""


def watch(
    run: Annotated[
        str,
        Argument(
            help="The run folder of a recording that goes on, or a process of the job.", metavar="RUN|PID", show_default=False
        ),
    ],
    every: Annotated[float, Option(help="Seconds between two looks.", min=0.2, max=3600)] = 5.0,
    once: Annotated[bool, Option("--once", help="Print what is known now, and end.")] = False,
    prometheus: Annotated[
        int | None, Option(help="Serve metrics for Prometheus at this port.", metavar="PORT", min=0, max=65535, show_default=False)
    ] = None,
    address: Annotated[str, Option(help="Where --prometheus listens; 0.0.0.0: on all networks.")] = "127.0.0.1",
) -> int:
    """Show what a job waits for while it goes on: rates, causes so far, workers, the slowest reads.

    Reads the capture files that the job's processes write, and nothing else: the job does not notice.
    """
    found = targets(run)
    server = MetricsServer(address, prometheus) if prometheus is not None else None
    _yield_cores()
    watched = _Watched(found, server)
    try:
        if server is not None:
            say(f"metrics for Prometheus: http://{address}:{server.port}/metrics")
        if once:
            watched.look()
            output.print(screen(watched.live, watched.totals(), watched.name))
            return 0
        with suppress(KeyboardInterrupt):
            _follow(watched, every)
        _say_end(found)
    finally:
        watched.close()
        if server is not None:
            server.close()
    return 0


class _Watched:
    """The sums of a job, and when which of them were known."""

    def __init__(self, found: list[Target], server: MetricsServer | None) -> None:
        self._targets, self._spools, self._server = found, [LiveSpool(target.spool) for target in found], server
        out = found[0].out
        self.name = (out or found[0].spool).name if len(found) == 1 or out is None else out.parent.name.removesuffix(".parts")
        self.live = Live()
        self._history: deque[tuple[float, Totals]] = deque()

    def look(self) -> None:
        """Read what is new."""
        until_ns = clock.monotonic_ns()
        for spool in self._spools:
            for news in spool.look():
                self.live.add(news)
        self.live.settle(until_ns)
        self._history.append((until_ns / 1e9, Totals.of(self.live)))
        while len(self._history) > 2 and self._history[-1][0] - self._history[1][0] >= _RATE_S:
            self._history.popleft()
        if self._server is not None:
            lost = sum(spool.lost for spool in self._spools)
            self._server.text = metrics_text(self.live, self.name, self.is_running, lost)

    @property
    def is_running(self) -> bool:
        """Whether it is recorded, or goes on without the ioprof that recorded it, which may have been killed."""
        pairs = zip(self._targets, self._spools, strict=True)
        return any(target.is_recorded or target.has_living(spool.pids) for target, spool in pairs)

    def totals(self) -> Totals | None:
        """Of the last seconds, per second. None: there was one look only."""
        (first_s, first), (last_s, last) = self._history[0], self._history[-1]
        return last.less(first, last_s - first_s) if last_s > first_s else None

    def close(self) -> None:
        for spool in self._spools:
            spool.close()


def _follow(watched: _Watched, every: float) -> None:
    """Show the job until it ends."""
    if not output.is_terminal:
        _look_until_end(watched, every, lambda: output.print(line(watched.live, watched.totals()), markup=False))
        return
    with Screen(console=output, auto_refresh=False, transient=False) as shown:
        _look_until_end(
            watched, every, lambda: shown.update(screen(watched.live, watched.totals(), watched.name, output.height), refresh=True)
        )


def _look_until_end(watched: _Watched, every: float, show: Callable[[], None]) -> None:
    while True:
        is_running = watched.is_running  # before the look, so that the last look finds all that was recorded
        watched.look()
        show()
        if not is_running:
            return
        time.sleep(every)


def _say_end(found: list[Target]) -> None:
    for target in found:
        out = target.out
        if target.is_recorded:
            say("the job goes on")
        elif out is not None and (out / "run.json").is_file():
            say(f"{visible(str(out))}: the job has ended")
            next_command("ioprof", "report", out)
        else:
            say(f"{visible(str(out or target.spool))}: the ioprof that recorded the job ended without making a run folder")
            next_command("ioprof", "gather", out or target.spool)


def _yield_cores() -> None:
    """Run only when a core has nothing else to do, where the kernel has such a policy."""
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
