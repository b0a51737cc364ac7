"""What the analysis needs to know about a run besides its spans, read once from `Trace.run`; whatever is missing there is None."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Facts:
    """The settings of a run; None where it did not record them."""

    ranks: int | None
    batch_size: int | None
    """Samples per step and rank."""
    workers: int | None
    """Loader processes per rank; 0: the rank loads its own batches."""
    loader: str | None
    device: str | None
    emulated: bool
    """The accelerator was a clock: every number that rests on its time is "emulated"."""
    device_samples_per_s: float | None
    """Rate of one device; known for emulated ones only."""
    cpus: int | None
    """Cores that the job may use, over all hosts."""
    memory_bytes: int | None
    """Memory of the hosts, summed."""
    dataset_bytes: int | None
    layout: str | None
    image: str | None
    """Transform of the stored images: `original` or `rgb256`."""
    reads_captured: bool
    uncertainty_ns: int
    """How far the clocks of two ranks may be apart; 0 on one host."""

    @classmethod
    def of(cls, run: dict[str, Any]) -> "Facts":
        """The facts in `run`; keys that are missing or of the wrong type are taken as not recorded."""
        config, device, dataset = (mapping(run.get(key)) for key in ("config", "device", "dataset"))
        hosts = [mapping(host) for host in run.get("hosts") or []]
        emulated = device.get("basis") == "emulated" or str(config.get("device", "")).startswith("emulated")
        return cls(
            ranks=whole(config.get("ranks")),
            batch_size=whole(config.get("batch_size")),
            workers=whole(config.get("workers")),
            loader=config.get("loader"),
            device=config.get("device") or device.get("name"),
            emulated=emulated,
            device_samples_per_s=number(device.get("samples_per_s")) if emulated else None,
            cpus=_sum(hosts, "cpus"),
            memory_bytes=_sum(hosts, "memory_bytes"),
            dataset_bytes=whole(dataset.get("bytes")),
            layout=dataset.get("layout"),
            image=mapping(dataset.get("image")).get("transform"),
            reads_captured=mapping(run.get("capture")).get("reads") is not False,
            uncertainty_ns=_uncertainty_ns(mapping(run.get("clocks"))),
        )

    @property
    def device_basis(self) -> str:
        """What the device's times are: `emulated` or `measured`."""
        return "emulated" if self.emulated else "measured"


def mapping(value: Any) -> dict[str, Any]:
    """The value if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def whole(value: Any) -> int | None:
    """The value if it is a whole number, not negative."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _uncertainty_ns(clocks: dict[str, Any]) -> int:
    """Longer than any run where clocks had to be tied and nothing says how well; 0 where nothing is said of clocks at all."""
    known = whole(clocks.get("uncertainty_ns"))
    return known if known is not None else 1 << 62 if clocks.get("ties") else 0


def number(value: Any) -> float | None:
    """The value if it is a positive number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _sum(hosts: list[dict[str, Any]], key: str) -> int | None:
    values = [value for host in hosts if (value := whole(host.get(key)))]
    return sum(values) if values else None
