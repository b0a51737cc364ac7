"""What is different from the recorded run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ioprof.errors import CommandError
from ioprof.run_record import JobChange
from ioprof.train.copies import COPIES

CACHES: Final = ("warm", "cold")
SPEEDS: Final = ("storage", "page_cache", "decode", "transform", "collate", "loader", "compute", "exchange", "h2d")
"""Causes whose cost a change may divide."""


@dataclass(frozen=True)
class Change:
    """A change of a recorded run. The default is none.

    >>> Change(workers=4, speeds={"decode": 2.0})
    """

    workers: int | None = None
    """Loader workers of each rank; 0: the loop fetches its batches itself."""
    prefetch: int | None = None
    """Batches per worker that are prepared ahead."""
    cores: float | None = None
    """Cores that the job may use, on each host."""
    batch: int | None = None
    """Samples per batch."""
    ranks: int | None = None
    """Ranks, each with its own loader, on the hosts of the recorded ones in turn."""
    persistent_workers: bool = False
    """Workers stay from one epoch to the next."""
    cache: str | None = None
    """`warm`: every read is served from the page cache. `cold`: every batch is read from storage."""
    layout: str | None = None
    """Layout of the dataset, which the run of `like` read."""
    image: str | None = None
    """Form of its images, `original` or `rgb256`, which the run of `like` read."""
    like: str | None = None
    """Name of another run: batches cost what they cost there."""
    device: str | None = None
    """An emulated device, by its name as `emulated:NAME`."""
    copy: str | None = None
    """How batches get to the device: `overlapped`, `pinned` or `pageable`."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """Cause to by how many times it becomes faster; infinite: it costs nothing."""

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("prefetch", 1), ("cores", 1), ("batch", 1), ("ranks", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise CommandError(f"--{name} {value}: must be at least {least}")
        for cause, speed in self.speeds.items():
            if cause not in SPEEDS:
                raise CommandError(f"{cause}: its speed cannot be changed; choose from {', '.join(SPEEDS)}")
            if not speed > 0:
                raise CommandError(f"--{cause} {speed}: must be greater than 0")
        for name, choices in (("cache", CACHES), ("copy", COPIES)):
            if getattr(self, name) not in (None, *choices):
                raise CommandError(f"--{name} {getattr(self, name)}: choose one of {', '.join(choices)}")

    def factor(self, cause: str) -> float:
        """What its time is multiplied by."""
        speed = self.speeds.get(cause, 1.0)
        return 0.0 if math.isinf(speed) else 1.0 / speed

    @property
    def text(self) -> str:
        """In words, as in `4 workers, decode 2 times as fast`."""
        parts = [f"{value:g} {name}" for name in ("workers", "ranks", "cores") if (value := getattr(self, name)) is not None]
        parts += [f"prefetch {self.prefetch}"] if self.prefetch is not None else []
        parts += [f"batches of {self.batch}"] if self.batch is not None else []
        parts += ["persistent workers"] if self.persistent_workers else []
        parts += [f"{self.cache} page cache"] if self.cache else []
        parts += [f"the layout {self.layout}"] if self.layout else []
        parts += [f"images as {self.image}"] if self.image else []
        parts += [f"batches like those of {self.like}"] if self.like and not (self.layout or self.image) else []
        parts += [f"the device {self.device}"] if self.device else []
        parts += [f"{self.copy} copies"] if self.copy else []
        parts += [
            f"{cause} at no cost" if math.isinf(speed) else f"{cause} {speed:g} times as fast"
            for cause, speed in self.speeds.items()
        ]
        return ", ".join(parts) or "nothing changed"


def change_of(record: JobChange) -> Change:
    """The change that summary.json describes."""
    speeds = {cause: math.inf if speed is None else speed for cause, speed in record.speeds.items()}
    return Change(
        workers=record.workers, prefetch=record.prefetch, batch=record.batch, persistent_workers=record.persistent_workers,
        cache=record.cache, speeds=speeds,
    )  # fmt: skip


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
