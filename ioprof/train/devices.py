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

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.train.models import MODELS, ModelFacts

RATIO_DEVICE: Final = "p100"
RATIO_RESNET50_SAMPLES_PER_S: Final = 219.0
"""TensorFlow benchmarks, 2017, one P100 of a DGX-1, synthetic data, batch 64: the study of that
device's other rates."""
_KEYS: Final = (
    "h2d_bytes_per_s",
    "pageable_ratio",
    "exchange_bytes_per_s",
    "exchange_latency_s",
    "network_bytes_per_s",
    "network_latency_s",
)
_OWN: Final = ".toml"
"""Ends the name of a device of the user's own: its file."""
_RATE: Final = re.compile(r"(?=.*[1-9])[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)
"""Samples per second, more than 0."""
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
    found = tomllib.loads(files("ioprof.train").joinpath("devices.toml").read_text())
    return {name: found.get(table.get("like", ""), {}) | table for name, table in found.items()}


def device_names() -> tuple[str, ...]:
    """The emulated devices that come with ioprof."""
    return tuple(_tables())


def check_device_name(device: str) -> None:
    """CommandError unless `--device` names a kind of device, and one that is known where it is
    emulated.
    """
    kind, _, name = device.partition(":")
    if kind == "emulated":
        _table(name)
    elif kind not in ("cpu", "cuda") or name:
        raise _unknown(device)


def _unknown(device: str) -> CommandError:
    known = ", ".join(f"emulated:{known}" for known in device_names())
    return CommandError(
        f"--device {device}: unknown; choose one of cpu, cuda, {known}, one of these with another"
        " rate of ResNet-50 in images/s, such as emulated:v100@500, or emulated:FILE.toml with a"
        " device of your own"
    )


def _table(name: str) -> dict[str, Any]:
    """What is known of the device that `emulated:NAME` stands for; CommandError: nothing."""
    if name.endswith(_OWN):
        return _own_table(name)[1]
    like, is_given, samples_per_s = name.partition("@")
    table = _tables().get(like)
    if table is None or (is_given and not _RATE.fullmatch(samples_per_s)):
        raise _unknown(f"emulated:{name}")
    if not is_given:
        return table
    source = f"{samples_per_s} of ResNet-50 were asked for"
    given = {"samples_per_s": float(samples_per_s), "basis": DERIVED, "source": source}
    return table | {"rates": {"resnet50": given}}


@lru_cache
def _own_table(path: str) -> tuple[str, dict[str, Any]]:
    """Name and values of the device of a file; CommandError for one that lacks any."""
    try:
        found = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise CommandError(f"--device emulated:{path}: {error}") from error
    tables = [(name, table) for name, table in found.items() if isinstance(table, dict)]
    if len(tables) != 1:
        raise CommandError(
            f"--device emulated:{path}: it has {len(tables)} tables; give one, the device's, such"
            " as [mine]"
        )
    name, table = tables[0]
    table = _tables().get(table.get("like", ""), {}) | table
    missing = [key for key in _KEYS if not isinstance(table.get(key), int | float)]
    rates = table.get("rates", {})
    missing += [
        f"rates.{model}.{key}"
        for model, each in (rates.items() if isinstance(rates, dict) else ())
        for key, kind in (("samples_per_s", int | float), ("source", str), ("year", int))
        if not isinstance(each, dict) or not isinstance(each.get(key), kind)
    ]
    if not isinstance(rates, dict) or "resnet50" not in rates:
        missing.append("rates.resnet50, from which rates of other models are derived")
    if missing:
        raise CommandError(
            f"--device emulated:{path}: [{name}] lacks {', '.join(missing)}; with like = "
            f'"{next(iter(_tables()))}" it has the copies and links of that device'
        )
    return name, table


def emulated_device(device: str, model: ModelFacts) -> EmulatedDevice | None:
    """The device that `emulated:NAME` stands for, training `model`; None: a real one. CommandError
    for a name that is not known.
    """
    check_device_name(device)
    kind, _, name = device.partition(":")
    if kind != "emulated":
        return None
    table = _table(name)
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
    shown = _own_table(name)[0] if name.endswith(_OWN) else name
    return EmulatedDevice(
        shown, rate(name, model), copies, copies * table["pageable_ratio"], Links(*links)
    )


def rate(device: str, model: ModelFacts) -> Rate:
    """How fast that emulated device trains the model."""
    rates, ratios = _table(device)["rates"], _tables()[RATIO_DEVICE]["rates"]
    if model.name in rates:
        found = rates[model.name]
        basis = found.get("basis", PUBLISHED)
        return Rate(found["samples_per_s"], basis, found["source"], found.get("year"))
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
