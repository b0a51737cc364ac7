"""What a training job is to do: read once at the edge, handed to every rank as JSON."""

import json
import tomllib
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from ioprof.dataset import Dataset
from ioprof.errors import CommandError
from ioprof.loaders.base import LMDB_READS, LoaderOptions
from ioprof.loaders.filling import FillingOptions

_PATHS: Final = ("spool", "dataset", "local_copy")


@dataclass(frozen=True)
class EmulatedDevice:
    """A device that is only a clock (see devices.toml)."""

    name: str
    samples_per_s: float
    h2d_bytes_per_s: float
    exchange_bytes_per_s: float


@dataclass(frozen=True)
class JobConfig:
    """The built-in data-parallel training job."""

    loader: str
    device: str
    """`emulated:NAME`, `cpu` or `cuda`."""
    ranks: int
    batch_size: int
    """Samples per step and rank."""
    workers: int
    """Loader processes per rank."""
    steps: int
    seed: int
    spool: Path
    """Node-local folder that takes the capture files while the job runs."""
    dataset: Path | None = None
    lmdb_read: str = LMDB_READS[0]
    """How the `lmdb` loader gets at a value."""
    local_copy: Path | None = None
    """Of the dataset, on this node: what loaders fill while they read (see `ioprof.loaders.filling`)."""

    def save(self, path: Path) -> None:
        """Write the config for the ranks to read."""
        keys = asdict(self)
        path.write_text(json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in keys.items()}))

    @classmethod
    def load(cls, path: Path) -> "JobConfig":
        """The config that `save` wrote."""
        keys: dict[str, Any] = json.loads(path.read_text())
        paths = {key: Path(keys[key]) for key in _PATHS if keys[key] is not None}
        return cls(**{**keys, **paths})

    def loader_options(self, rank: int) -> LoaderOptions:
        """The options of one rank's loader."""
        sizes = (self.batch_size, self.steps, rank, self.ranks, self.workers)
        options = LoaderOptions(*sizes, seed=self.seed, spool=self.spool, lmdb_read=self.lmdb_read)
        return options if self.local_copy is None else FillingOptions(**vars(options), local_copy=self.local_copy)

    def open_dataset(self) -> Dataset | None:
        """The dataset's manifest, if the job reads one."""
        return Dataset.load(self.dataset) if self.dataset else None


@lru_cache(maxsize=1)
def emulated_devices() -> dict[str, EmulatedDevice]:
    """The devices of devices.toml by name."""
    tables = tomllib.loads(files("ioprof.train").joinpath("devices.toml").read_text())
    return {
        name: EmulatedDevice(name, keys["resnet50_samples_per_s"], keys["h2d_bytes_per_s"], keys["exchange_bytes_per_s"])
        for name, keys in tables.items()
    }


def emulated_device(device: str) -> EmulatedDevice | None:
    """The device that `emulated:NAME` stands for; None for a real one; CommandError for a name that is not known."""
    kind, _, name = device.partition(":")
    if kind in ("cpu", "cuda") and not name:
        return None
    devices = emulated_devices()
    if kind != "emulated" or name not in devices:
        known = ", ".join(f"emulated:{known}" for known in devices)
        raise CommandError(f"--device {device}: unknown; choose one of cpu, cuda, {known}")
    return devices[name]
