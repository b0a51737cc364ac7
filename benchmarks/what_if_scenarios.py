"""The jobs of `what_if.py`, and what is changed of each: `SCENARIOS` change a job, `REMOVALS` take
a cause away from it.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from ioprof.model.changes import Change


@dataclass(frozen=True)
class Storage:
    """Where the images are."""

    disk_bytes_per_s: int = 0
    read_ms: float = 0.0
    is_cold: bool = False
    is_small: bool = False
    """Whether images of 96 pixels are read, which take little time to decode."""


@dataclass(frozen=True)
class Job:
    """What is recorded."""

    settings: dict[str, Any]
    """Of `what_if_job.py`."""
    storage: Storage
    num_cores: int
    """Cores that it may use; 0: all."""


@dataclass(frozen=True)
class Variant:
    """A change, and the job that has it."""

    change: Change = field(default_factory=Change)
    settings: dict[str, Any] = field(default_factory=dict)
    storage: Storage | None = None
    """None: that of the scenario."""
    num_cores: int = 0
    """Cores that the job may use; 0: all."""
    removed: tuple[str, ...] = ()
    """Causes that cost nothing, instead of a change."""


@dataclass(frozen=True)
class Scenario:
    """A job, and what is changed."""

    name: str
    settings: dict[str, Any]
    variants: tuple[Variant, ...]
    storage: Storage = Storage()
    num_cores: int = 0

    @property
    def job(self) -> Job:
        """The job without a change."""
        return Job(self.settings, self.storage, self.num_cores)

    def changed(self, variant: Variant) -> Job:
        """The job with one of the changes."""
        storage, num_cores = variant.storage or self.storage, variant.num_cores or self.num_cores
        return Job(self.settings | variant.settings, storage, num_cores)


def workers(*numbers: int) -> tuple[Variant, ...]:
    return tuple(Variant(Change(workers=number), {"workers": number}) for number in numbers)


def prefetch(*numbers: int) -> tuple[Variant, ...]:
    return tuple(Variant(Change(prefetch=number), {"prefetch": number}) for number in numbers)


def batch(*sizes: int) -> tuple[Variant, ...]:
    return tuple(Variant(Change(batch=size), {"batch": size}) for size in sizes)


def faster(cause: str, speed: float, **settings: Any) -> Variant:
    return Variant(Change(speeds={cause: speed}), settings)


PERSISTENT = Variant(Change(persistent_workers=True), {"persistent": True})
SMALL = Storage(is_small=True)
DISK = Storage(disk_bytes_per_s=4 << 20, is_cold=True)
LATENT = Storage(read_ms=4.0, is_cold=True)


def latent_small(read_ms: float, is_cold: bool = True) -> Storage:
    return Storage(read_ms=read_ms, is_cold=is_cold, is_small=True)


SCENARIOS = (
    Scenario(
        "own code waits",
        {"workers": 1, "own_ms": 8.0, "samples": 640, "pause_ms": 10.0},
        (*workers(0, 2, 3, 4, 6, 8), *prefetch(1, 4)),
        SMALL,
    ),
    Scenario(
        "own code waits, 4 workers",
        {"workers": 4, "own_ms": 8.0, "samples": 1920, "pause_ms": 10.0},
        (*workers(1, 2, 8), *prefetch(1, 8), *batch(4, 16)),
        SMALL,
    ),
    Scenario(
        "decode",
        {"workers": 1, "decodes": 2, "resizes": 2, "samples": 480},
        (
            *workers(0, 2),
            *prefetch(1, 4),
            *batch(4, 16),
            faster("decode", 2.0, decodes=1),
            faster("transform", 2.0, resizes=1),
        ),
    ),
    Scenario(
        "compute",
        {"workers": 1, "layers": 24, "samples": 480},
        (
            *workers(0, 2),
            faster("compute", 2.0, layers=12),
            faster("compute", 0.5, layers=48),
            *batch(
                16,
            ),
        ),
    ),
    Scenario(
        "disk bound by rate",
        {"workers": 2, "samples": 240, "layers": 4},
        (
            *workers(1, 4),
            *prefetch(
                1,
            ),
            Variant(
                Change(speeds={"storage": 2.0}), {}, Storage(disk_bytes_per_s=8 << 20, is_cold=True)
            ),
            Variant(
                Change(speeds={"storage": 4.0}),
                {},
                Storage(disk_bytes_per_s=16 << 20, is_cold=True),
            ),
            Variant(
                Change(speeds={"storage": 0.5}), {}, Storage(disk_bytes_per_s=2 << 20, is_cold=True)
            ),
            Variant(Change(cache="warm"), {}, Storage(disk_bytes_per_s=4 << 20)),
        ),
        DISK,
    ),
    Scenario(
        "storage with latency",
        {"workers": 1, "samples": 240},
        (
            *workers(0, 2, 4, 8),
            Variant(Change(speeds={"storage": 2.0}), {}, Storage(read_ms=2.0, is_cold=True)),
            Variant(Change(speeds={"storage": 0.5}), {}, Storage(read_ms=8.0, is_cold=True)),
            Variant(Change(cache="warm"), {}, Storage(read_ms=4.0)),
        ),
        LATENT,
    ),
    Scenario(
        "storage with latency, 4 workers",
        {"workers": 4, "samples": 480, "pause_ms": 5.0},
        (
            *workers(1, 2, 8),
            *prefetch(
                1,
            ),
            *batch(4, 16),
            Variant(Change(speeds={"storage": 2.0}), {}, Storage(read_ms=2.0, is_cold=True)),
        ),
        LATENT,
    ),
    Scenario(
        "latency, small images",
        {"workers": 1, "samples": 480, "pause_ms": 4.0},
        (
            *workers(0, 2, 4, 6),
            *prefetch(
                1,
            ),
            *batch(4, 16),
            Variant(Change(speeds={"storage": 2.0}), {}, latent_small(4.0)),
            Variant(Change(speeds={"storage": 4.0}), {}, latent_small(2.0)),
            Variant(Change(speeds={"storage": 0.5}), {}, latent_small(16.0)),
            Variant(Change(cache="warm"), {}, latent_small(8.0, is_cold=False)),
        ),
        latent_small(8.0),
    ),
    Scenario(
        "latency, small images, 4 workers",
        {"workers": 4, "samples": 480, "pause_ms": 4.0},
        (
            *workers(1, 2, 6),
            *prefetch(
                1,
            ),
            *batch(4, 16),
            Variant(Change(speeds={"storage": 2.0}), {}, latent_small(4.0)),
            Variant(Change(speeds={"storage": 0.5}), {}, latent_small(16.0)),
        ),
        latent_small(8.0),
    ),
    Scenario(
        "short epochs",
        {"workers": 2, "samples": 80, "epochs": 6, "own_ms": 4.0, "batch": 4},
        (
            PERSISTENT,
            *workers(1, 4),
            *prefetch(
                4,
            ),
            *batch(
                8,
            ),
        ),
        SMALL,
    ),
    Scenario(
        "one core",
        {"workers": 1, "samples": 640, "layers": 8},
        (
            Variant(Change(cores=2), {}, num_cores=2),
            *(Variant(each.change, each.settings, num_cores=1) for each in workers(0, 2)),
        ),
        num_cores=1,
    ),
)


def without(*causes: str, storage: Storage | None = None, **settings: Any) -> Variant:
    """The causes cost nothing."""
    return Variant(Change(), settings, storage, removed=causes)


def warm(storage: Storage) -> Storage:
    """The same with all data in memory, so that nothing is read from it."""
    return replace(storage, is_cold=False)


SYNTHETIC = without("storage", "page_cache", "decode", "transform", synthetic=True)
"""Samples are made already: with a run without storage and one with all, the three runs of the
differential method."""

REMOVALS = (
    Scenario(
        "decode removed",
        {"workers": 1, "decodes": 2, "resizes": 2, "samples": 480},
        (without("decode", decodes=0, copies=2), without("compute", computes=False), SYNTHETIC),
    ),
    Scenario(
        "own code removed",
        {"workers": 2, "own_ms": 8.0, "samples": 640, "pause_ms": 20.0},
        (
            without("loader", own_ms=0.0),
            without("host", pause_ms=0.0),
            without("decode", decodes=0),
        ),
        SMALL,
    ),
    Scenario(
        "compute removed",
        {"workers": 1, "layers": 24, "samples": 480},
        (without("compute", computes=False), without("decode", decodes=0), SYNTHETIC),
    ),
    Scenario(
        "disk removed",
        {"workers": 2, "samples": 240, "layers": 4},
        (without("storage", storage=warm(DISK)), without("decode", decodes=0), SYNTHETIC),
        DISK,
    ),
    Scenario(
        "latency removed",
        {"workers": 1, "samples": 240, "layers": 4},
        (
            without("storage", storage=warm(LATENT)),
            without("decode", decodes=0),
            without("compute", computes=False),
            SYNTHETIC,
        ),
        LATENT,
    ),
    Scenario(
        "latency removed, 4 workers",
        {"workers": 4, "samples": 480, "pause_ms": 12.0},
        (
            without("storage", storage=warm(latent_small(8.0))),
            without("host", pause_ms=0.0),
            SYNTHETIC,
        ),
        latent_small(8.0),
    ),
    Scenario(
        "storage, decoding and loop alike",
        {"workers": 2, "samples": 480, "decodes": 2, "pause_ms": 40.0},
        (
            without("storage", storage=warm(LATENT)),
            without("decode", decodes=0, copies=2),
            without("host", pause_ms=0.0),
        ),
        LATENT,
    ),
)
