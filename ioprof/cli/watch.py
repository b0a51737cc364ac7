"""`ioprof watch`: a job that is being recorded, while it goes on."""

import os
from contextlib import suppress
from typing import Annotated

from typer import Argument, Option

from ioprof.cli.console import next_command, output, say
from ioprof.errors import CommandError
from ioprof.process import yield_cores
from ioprof.report.texts.units import visible
from ioprof.watching.metrics import MetricsServer
from ioprof.watching.otlp import OtlpSender
from ioprof.watching.screen import follow, screen
from ioprof.watching.target import Target, targets
from ioprof.watching.watched_job import WatchedJob


def watch(
    run: Annotated[
        str,
        Argument(
            help="The run folder of a recording that goes on, or a process of the job.",
            metavar="RUN|PID",
            show_default=False,
        ),
    ],
    every: Annotated[float, Option(help="Refresh interval in seconds.", min=0.2, max=3600)] = 5.0,
    once: Annotated[bool, Option("--once", help="Print what is known now, and end.")] = False,
    prometheus: Annotated[
        int | None,
        Option(
            help="Serve metrics for Prometheus at this port.",
            metavar="PORT",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = None,
    address: Annotated[
        str, Option(help="Where --prometheus listens; 0.0.0.0: on all networks.")
    ] = "127.0.0.1",
    otlp: Annotated[
        str | None,
        Option(
            help=(
                "Send metrics to a collector of OpenTelemetry by HTTP, such as http://HOST:4318;"
                " headers: OTEL_EXPORTER_OTLP_HEADERS."
            ),
            metavar="URL",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Show what a job waits for while it goes on: rates, causes so far, workers, the slowest reads.

    Reads the capture files that the job's processes write, and nothing else: the job does not
    notice.
    """
    found = targets(run)
    sender = OtlpSender(otlp, os.environ) if otlp is not None else None
    server = MetricsServer(address, prometheus) if prometheus is not None else None
    yield_cores()
    gets = [*([server.give] if server else []), *([sender.send] if sender else [])]
    watched = WatchedJob(found, gets)
    try:
        if server is not None:
            say(f"metrics for Prometheus: http://{address}:{server.port}/metrics")
        watched.look()
        if sender is not None and sender.failed:
            raise CommandError(
                f"--otlp: no metrics reach {visible(sender.url)} ({sender.why}); start a collector"
                " there, or give the address of one"
            )
        if once:
            output.print(screen(watched.live, watched.totals(), watched.name))
            return 0
        with suppress(KeyboardInterrupt):
            follow(watched, every, output)
        if sender is not None and sender.failed:
            say(f"metrics were not sent {sender.failed} times, last because {sender.why}")
        _say_end(found)
    finally:
        watched.close()
        if server is not None:
            server.close()
    return 0


def _say_end(found: list[Target]) -> None:
    for target in found:
        out = target.out
        if target.is_recorded:
            say("the job goes on")
        elif out is not None and (out / "run.json").is_file():
            say(f"{visible(str(out))}: the job has ended")
            next_command("ioprof", "report", out)
        else:
            say(
                f"{visible(str(out or target.spool))}: the ioprof that recorded the job ended"
                " without making a run folder"
            )
            next_command("ioprof", "gather", out or target.spool)
