"""What `ioprof simulate` and `ioprof size` are asked for, as they are typed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from ioprof.errors import CommandError
from ioprof.format.trace import Trace
from ioprof.model.recorded import pipeline
from ioprof.model.simulator import jobs
from ioprof.model.simulator.jobs import LAYOUTS, Job, described
from ioprof.model.simulator.simulation import (
    MOST_STEPS,
    SHARED,
    STAGED,
    Simulation,
    setting,
    simulate,
)
from ioprof.model.simulator.system import System, load_system, with_values
from ioprof.model.simulator.values import Value
from ioprof.options import Option, check_options
from ioprof.train.accelerators.exchange import SCHEMES

_RUN_FILE = "run.json"
_DATASET = re.compile(r"(\d+(?:\.\d+)?)x", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class JobAsked:
    """The job, described or recorded."""

    device: Annotated[
        str | None, Option("Accelerator, such as h100; see devices.toml.", unset="the system's")
    ] = None
    layout: Annotated[str, Option("How the images are stored.", choices=tuple(LAYOUTS))] = "files"
    dataset: Annotated[str, Option("Data: so many times those of ImageNet, such as 2x.")] = "1x"
    batch_size: Annotated[
        int | None, Option("Samples per step and rank.", least=1, unset="32, or the workload's")
    ] = None
    workers: Annotated[
        int | None, Option("Loader workers per rank.", least=0, unset="8, or the job's")
    ] = None
    prefetch: Annotated[
        int | None, Option("Batches per worker that are prepared ahead.", least=1, unset="2")
    ] = None

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def scale(self) -> float:
        """Of the dataset; CommandError for what is none."""
        found = _DATASET.fullmatch(self.dataset)
        if found is None or not float(found[1]):
            raise CommandError(f"--dataset {self.dataset}: give so many times the data, such as 2x")
        return float(found[1])

    def described(self, name: str, device: str) -> Job:
        """The job of that name."""
        return described(
            name,
            (self.device or device).removeprefix("emulated:"),
            layout=self.layout,
            scale=self.scale,
            batch=self.batch_size,
            workers=self.workers,
            prefetch=self.prefetch,
        )


@dataclass(frozen=True, kw_only=True)
class SimulationAsked(JobAsked):
    """A simulation."""

    ranks: Annotated[int, Option("Accelerators of all nodes together.", least=1)] = 1
    nodes: Annotated[
        int | None, Option("Nodes that they are on.", least=1, unset="as few as hold them")
    ] = None
    stage: Annotated[bool, Option("Copy the data to the nodes' disks first.")] = False
    exchange: Annotated[str, Option("How gradients are exchanged.", choices=tuple(SCHEMES))] = (
        "ring"
    )
    link: Annotated[str, Option("Over which link.", choices=("verbs", "tcp"))] = "verbs"
    epochs: Annotated[int, Option("Epochs of the whole job.", least=1)] = 1
    steps: Annotated[
        int, Option("Steps of an epoch that are simulated; others are like these.", least=2)
    ] = MOST_STEPS
    seed: Annotated[int, Option("Of what is drawn at random.", least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class SizeAsked(JobAsked):
    """What is to be sized."""

    ranks: Annotated[int, Option("Accelerators of all nodes together.", least=1)] = 1
    epochs: Annotated[int, Option("Epochs of the whole job.", least=1)] = 1
    storage_rate: Annotated[
        float | None, Option("GB/s that the shared storage delivers, for staging.", least=0.001)
    ] = None
    watts: Annotated[
        float | None, Option("Of a rank with its share of a node, for the energy.", least=0.0)
    ] = None
    price_per_hour: Annotated[float | None, Option("Of a rank, for the price.", least=0.0)] = None


def simulation(
    system: str | Path,
    job: str | Path,
    asked: SimulationAsked,
    changed: Mapping[str, float] = MappingProxyType({}),
) -> Simulation:
    """Simulate a job on a system, each a name or a run folder; CommandError for what is neither,
    ReplayError for a run that says too little. `changed` replaces values of the system.
    """
    host = system_of_run(Trace.load(Path(system))) if _is_run(system) else load_system(str(system))
    host = with_values(host, changed)
    if _is_run(job):
        check_measured(asked)
        found = jobs.recorded(Trace.load(Path(job)))[0]
        made = jobs.scaled(jobs.with_workers(found, asked.workers, asked.prefetch), asked.scale)
    else:
        made = asked.described(str(job), host.device)
    where = setting(
        host,
        asked.ranks,
        nodes=asked.nodes,
        reads_from=STAGED if asked.stage else SHARED,
        exchange=asked.exchange,
        link=asked.link,
    )
    return simulate(
        host,
        made,
        where,
        epochs=asked.epochs,
        steps=asked.steps,
        seed=asked.seed,
        as_recorded=_is_run(system),
    )


def _is_run(name: str | Path) -> bool:
    return (Path(name) / _RUN_FILE).is_file()


def check_measured(asked: JobAsked) -> None:
    """CommandError for an option that the recorded job has its own value of."""
    for option in ("device", "batch_size"):
        if getattr(asked, option) is not None:
            raise CommandError(
                f"--{option.replace('_', '-')}: the recorded job has its own; for another one see:"
                " ioprof whatif --help"
            )


def system_of_run(trace: Trace) -> System:
    """The host of a run, as far as the run shows it: cores, memory, and what its reads got."""
    found = pipeline(trace)

    def value(number: float, error: float = 0.0) -> Value:
        return Value(
            number, number * (1 - error), number * (1 + error), "measured", "recorded in the run"
        )

    hosts = len(found.cores)
    storage = found.storage
    values = {
        "nodes.accelerators": value(len(found.ranks) / hosts),
        "nodes.cores": value(sum(found.cores.values()) / hosts),
        "nodes.memory_bytes": value((trace.run.memory_bytes or 0) / hosts),
        "storage.bytes_per_s": value(storage.bytes_per_s, 0.05),
        "storage.latency_s": value(storage.latency_s, 0.05),
        "storage.stream_bytes_per_s": value(storage.reader_bytes_per_s, 0.05),
    }
    return System("the host of the run", "", "", values, {}, {}, ())
