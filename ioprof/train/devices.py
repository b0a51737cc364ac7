"""Emulated devices: what devices.toml says of each, and the rate of each for each model.

A rate is *published* where devices.toml names its source. The others are *derived*, in one of two
ways:

- from a ratio: the device's published rate of ResNet-50, times the ratio of the two models' rates
  in one study that measured both on one device (`RATIO_DEVICE`, TensorFlow's benchmarks of 2017);
- from operations, for a model that no such study has: the device's rate of ResNet-50, times the
  ratio of their operations.

Operations alone are a poor guide: by them a P100 would train AlexNet at 1,254 and VGG16 at 58
images/s; 2,987 and 154 were measured.
"""

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.train.models import MODELS, ModelFacts

RATIO_DEVICE: Final = "p100"
RATIO_RESNET50_SAMPLES_PER_S: Final = 219.0
"""TensorFlow benchmarks, 2017, one P100 of a DGX-1, synthetic data, batch 64: the study of that
device's other rates."""
PUBLISHED: Final = "published"
DERIVED: Final = "derived"


@dataclass(frozen=True)
class Rate:
    """How fast one device trains one model."""

    samples_per_s: float
    basis: str
    """`PUBLISHED` or `DERIVED`."""
    source: str
    """Where it was published, or how it was derived."""
    year: int | None = None


@dataclass(frozen=True)
class Links:
    """What connects emulated devices: within a node, and between nodes."""

    bytes_per_s: float
    """Between the devices of a node, one direction."""
    latency_s: float = 0.0
    """Of one message within a node."""
    network_bytes_per_s: float = float("inf")
    """Of a whole node, one direction: its devices share it."""
    network_latency_s: float = 0.0


@dataclass(frozen=True)
class EmulatedDevice:
    """A device that is only a clock, as it trains one model."""

    name: str
    rate: Rate
    h2d_bytes_per_s: float
    """Copies from page-locked memory."""
    pageable_bytes_per_s: float
    links: Links

    @property
    def samples_per_s(self) -> float:
        """Of one device."""
        return self.rate.samples_per_s


@lru_cache(maxsize=1)
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("ioprof.train").joinpath("devices.toml").read_text())


def device_names() -> tuple[str, ...]:
    """The emulated devices."""
    return tuple(_tables())


def check_device_name(device: str) -> None:
    """CommandError unless `--device` names a kind of device, and one that is known where it is
    emulated.
    """
    kind, _, name = device.partition(":")
    if not (kind in ("cpu", "cuda") and not name) and (kind != "emulated" or name not in _tables()):
        known = ", ".join(f"emulated:{known}" for known in device_names())
        raise CommandError(f"--device {device}: unknown; choose one of cpu, cuda, {known}")


def emulated_device(device: str, model: ModelFacts) -> EmulatedDevice | None:
    """The device that `emulated:NAME` stands for, training `model`; None: a real one. CommandError
    for a name that is not known.
    """
    check_device_name(device)
    kind, _, name = device.partition(":")
    if kind != "emulated":
        return None
    table = _tables()[name]
    links = (
        table[key]
        for key in (
            "exchange_bytes_per_s",
            "exchange_latency_s",
            "network_bytes_per_s",
            "network_latency_s",
        )
    )
    copies = table["h2d_bytes_per_s"]
    return EmulatedDevice(
        name, rate(name, model), copies, copies * table["pageable_ratio"], Links(*links)
    )


def rate(device: str, model: ModelFacts) -> Rate:
    """How fast that emulated device trains the model."""
    rates, ratios = _tables()[device]["rates"], _tables()[RATIO_DEVICE]["rates"]
    if model.name in rates:
        found = rates[model.name]
        return Rate(found["samples_per_s"], PUBLISHED, found["source"], found["year"])
    base = rates["resnet50"]["samples_per_s"]
    if model.name in ratios:
        ratio = ratios[model.name]["samples_per_s"] / RATIO_RESNET50_SAMPLES_PER_S
        how = (
            f"{base:,.1f} of ResNet-50, times {ratio:.3g}: the ratio of the two on a {RATIO_DEVICE}"
            " (TensorFlow benchmarks, 2017)"
        )
    else:
        ratio = MODELS["resnet50"].forward_flops / model.forward_flops
        how = f"{base:,.1f} of ResNet-50, times {ratio:.3g}: the inverse ratio of their operations"
    return Rate(base * ratio, DERIVED, how)
