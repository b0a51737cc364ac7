"""What is different from the recorded run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from ioprof.errors import CommandError
from ioprof.format.run_record import JobChange
from ioprof.options import Option, check_options
from ioprof.train.copies import COPIES

CACHES: Final = ("warm", "cold")
CALLS: Final = "calls"
"""What a dataset does by one call for each sample, in `loader` and `collate`; not the sampler."""
SPEEDS: Final = (
    "storage",
    "page_cache",
    "decode",
    "transform",
    "collate",
    "loader",
    "compute",
    "exchange",
    "h2d",
    CALLS,
)
"""Causes whose cost a change may divide."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of a recorded run. The default is none.

    >>> Change(workers=4, speeds={"decode": 2.0})
    """

    workers: Annotated[
        int | None,
        Option("Loader workers per rank; 0: the rank loads its batches itself.", least=0),
    ] = None
    prefetch: Annotated[
        int | None, Option("Batches per worker that are prepared ahead.", least=1)
    ] = None
    cores: Annotated[float | None, Option("CPU cores per host that the job may use.", least=1)] = (
        None
    )
    batch: Annotated[int | None, Option("Samples per batch and rank.", least=1)] = None
    ranks: Annotated[
        int | None,
        Option(
            "Ranks, each with its own loader, on the hosts of the recorded ones in turn.", least=1
        ),
    ] = None
    persistent_workers: Annotated[bool, Option("Keep workers from epoch to epoch.")] = False
    reused: float = field(default=0.0, metadata={"internal": True})
    """See `JobChange.reused`."""
    in_order: bool = field(default=False, metadata={"internal": True})
    skip_discarded: Annotated[
        bool, Option("Do not load the batches with which nothing is done.")
    ] = False
    cache: Annotated[
        str | None,
        Option(
            "Page cache: warm (holds all data) or cold (every batch is read from storage).",
            choices=CACHES,
        ),
    ] = None
    layout: Annotated[
        str | None, Option("Layout of the dataset, which the run of --like read.")
    ] = None
    image: Annotated[
        str | None, Option("Form of the images, original or rgb256, which the run of --like read.")
    ] = None
    like: Annotated[
        str | None,
        Option("A short run on a converted sample: the cost of a batch is taken from it."),
    ] = None
    device: Annotated[str | None, Option("Another emulated device, e.g. emulated:h100.")] = None
    copy: Annotated[
        str | None, Option(f"How batches get to the device: {', '.join(COPIES)}.", choices=COPIES)
    ] = None
    speeds: Mapping[str, float] = field(default_factory=dict, metadata={"internal": True})
    """Cause to by how many times it becomes faster; infinite: it costs nothing."""

    def __post_init__(self) -> None:
        check_options(self)
        for cause, speed in self.speeds.items():
            if cause not in SPEEDS:
                raise CommandError(
                    f"{cause}: its speed cannot be changed; choose from {', '.join(SPEEDS)}"
                )
            if not speed > 0:
                raise CommandError(f"--{cause} {speed}: must be greater than 0")

    def factor(self, cause: str) -> float:
        """What its time is multiplied by."""
        speed = self.speeds.get(cause, 1.0)
        return 0.0 if math.isinf(speed) else 1.0 / speed


def change_of(record: JobChange) -> Change:
    """The change that summary.json describes."""
    speeds = {cause: math.inf if speed is None else speed for cause, speed in record.speeds.items()}
    return Change(
        workers=record.workers,
        prefetch=record.prefetch,
        batch=record.batch,
        persistent_workers=record.persistent_workers,
        reused=record.reused,
        in_order=record.in_order,
        skip_discarded=record.skip_discarded,
        cache=record.cache,
        speeds=speeds,
    )


def parse_speed(option: str, text: str) -> float:
    """The speed in `2x`, `1.5` or `none` (at no cost)."""
    if text == "none":
        return math.inf
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = -1.0
    if not 0 < speed < math.inf:
        raise CommandError(f"{option} {text}: give a factor such as 2x, or none for no cost at all")
    return speed
