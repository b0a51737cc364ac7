"""Block devices, from the one that holds a file system down to its components: partitions, dm, md,
loop, NVMe, disks.

Sources: Documentation/ABI/stable/sysfs-block and sysfs-block-device of the kernel,
drivers/nvme/host/sysfs.c. None of it needs root. Sysfs may be masked in a container; then a reason
is returned instead of a device.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ioprof.file_systems import Kind
from ioprof.storage.kernel_text import (
    Roots,
    Unknown,
    build_with_reasons,
    first_known,
    list_names,
    printable_text,
    read_bytes,
    read_flag,
    read_number,
    read_text,
)

_SECTOR_BYTES: Final = 512  # unit of /sys/block/*/size, independent of the device's sector size
_MAX_DEPTH: Final = 8  # dm on md on dm on partitions is four

_IN_MEMORY: Final = ("zram", "ram", "pmem")
_ON_SERVERS: Final = ("nbd", "rbd", "drbd")
_REMOTE: Final = frozenset(
    {
        *_ON_SERVERS,
        "iscsi",
        "fibre channel",
        "nvme tcp",
        "nvme rdma",
        "nvme fc",
        "ata over ethernet",
    }
)
_STACKED: Final = ("dm", "md", "loop", "bcache")

_TRANSPORTS: Final = (
    (re.compile(r"/session\d+(/|$)"), "iscsi"),
    (re.compile(r"/rport-"), "fibre channel"),
    (re.compile(r"/end_device-"), "sas"),
    (re.compile(r"/ata\d+/"), "sata"),
    (re.compile(r"/usb\d+/"), "usb"),
    (re.compile(r"/mmc_host/"), "mmc"),
    (re.compile(r"/virtio\d+/"), "virtio"),
    (re.compile(r"/vbd-"), "xen"),
    (re.compile(r"/(VMBUS|vmbus)"), "hyper-v"),
    (re.compile(r"/block/etherd!"), "ata over ethernet"),
    (re.compile(r"/host\d+/target"), "scsi"),
)
"""Part of a device's sysfs path → its transport; the first match counts."""


@dataclass(frozen=True)
class BlockDevice:
    """A block device and the current settings of its request queue."""

    name: str
    """Its name in /sys/block and in the series `disk.<name>.*`."""
    number: str | None
    """major:minor."""
    transport: str | None
    """How it is attached: `nvme pcie`, `nvme tcp`, `sata`, `iscsi`, `virtio`; of a stacked one its
    driver: `loop`, `md raid0`."""
    kind: Kind
    """The kind of the devices below it; `unknown` for a loop device, whose kind is that of its
    backing file's storage."""
    model: str | None
    size_bytes: int | None
    rotational: bool | None
    """Not reliable: the kernel assumes True where the device does not report it, and some
    hypervisors report it for flash."""
    scheduler: str | None
    """The active I/O scheduler."""
    read_ahead_bytes: int | None
    """Maximum readahead of a sequential reader. High: random reads of memory-mapped databases fetch
    many unused pages."""
    logical_block_bytes: int | None
    """O_DIRECT reads must be aligned to it."""
    physical_block_bytes: int | None
    num_requests: int | None
    """Length of the request queue. Low: it limits the queue depth."""
    largest_request_bytes: int | None
    partition: str | None = None
    """The partition of it that was queried."""
    backing_file: str | None = None
    """The backing file of a loop device."""
    below: tuple["BlockDevice", ...] = ()
    """Its components: members of an array, disks of a volume."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Field → reason why its value is None."""

    @property
    def leaves(self) -> tuple["BlockDevice", ...]:
        """The devices at the bottom of the stack: itself, if nothing is below."""
        return tuple(leaf for device in self.below for leaf in device.leaves) or (self,)


def device_of_number(number: str, roots: Roots) -> BlockDevice | Unknown:
    """The whole device with the number `major:minor`, or with a partition of that number."""
    if not re.fullmatch(r"\d+:\d+", number) or number.startswith("0:"):
        return Unknown(f"{printable_text(number)} is not the number of a block device")
    place = roots.sys / "dev" / "block" / number
    return _device_at(Path(os.path.realpath(place)), roots) if place.exists() else _missing(place)


def device_of_name(name: str, roots: Roots) -> BlockDevice | Unknown:
    """The whole device called `name`, or with a partition of that name."""
    place = roots.sys / "class" / "block" / name.replace("/", "!")
    return _device_at(Path(os.path.realpath(place)), roots) if place.exists() else _missing(place)


def _missing(place: Path) -> Unknown:
    return Unknown(f"there is no {printable_text(str(place))}; in a container, sysfs may be hidden")


def _device_at(place: Path, roots: Roots, depth: int = 0) -> BlockDevice:
    partition = place.name if (place / "partition").exists() else None
    if partition:
        place = place.parent
    name, queue = place.name, place / "queue"
    transport = _transport(name, place, roots)
    below: list[BlockDevice] = []
    for member in list_names(place / "slaves") if depth < _MAX_DEPTH else ():
        target = Path(os.path.realpath(place / "slaves" / member))
        if target.is_dir() and target != place:
            below.append(_device_at(target, roots, depth + 1))
    backing_file: str | Unknown | None = None
    if name.startswith("loop"):
        data = read_bytes(place / "loop" / "backing_file")
        backing_file = data if isinstance(data, Unknown) else os.fsdecode(data.removesuffix(b"\n"))
    schedulers = read_text(queue / "scheduler")
    active = None if isinstance(schedulers, Unknown) else re.search(r"\[([^\]]+)\]", schedulers)
    read_ahead_files = queue / "read_ahead_kb", place / "bdi" / "read_ahead_kb"
    device = build_with_reasons(
        BlockDevice,
        name=printable_text(name),
        number=read_text(place / "dev"),
        transport=transport,
        kind="unknown",
        model=_model(name, place, roots),
        size_bytes=read_number(place / "size", _SECTOR_BYTES),
        rotational=read_flag(queue / "rotational"),
        scheduler=active[1] if active else schedulers or Unknown(f"{queue / 'scheduler'} is empty"),
        read_ahead_bytes=first_known(read_number(file, 1024) for file in read_ahead_files),
        logical_block_bytes=read_number(queue / "logical_block_size"),
        physical_block_bytes=read_number(queue / "physical_block_size"),
        num_requests=read_number(queue / "nr_requests"),
        largest_request_bytes=read_number(queue / "max_sectors_kb", 1024),
        partition=partition and printable_text(partition),
        backing_file=backing_file,
        below=tuple(below),
    )
    return _with_kind(device)


def _with_kind(device: BlockDevice) -> BlockDevice:
    reasons, family = dict(device.unknown), _family(device.name)
    kind: Kind
    if device.below:
        kind = combine_kinds(below.kind for below in device.below)
    elif family in _IN_MEMORY:
        kind = "memory"
    elif device.transport is None or family in _STACKED:
        kind = "unknown"
    else:
        kind = "shared" if device.transport in _REMOTE else "local"
    if kind == "unknown":
        stacked = family in _STACKED
        reasons["kind"] = (
            "it is that of the devices below, which is not known"
            if stacked
            else "how it is attached is not known"
        )
    return replace(device, kind=kind, unknown=reasons)


def combine_kinds(kinds: Iterable[Kind]) -> Kind:
    """The kind of a combination of parts: shared if any part is, in memory only if all parts
    are.
    """
    found = set(kinds)
    for kind in ("shared", "unknown", "local", "memory"):
        if kind in found:
            return kind
    return "unknown"


def _family(name: str) -> str:
    found = re.match("[a-z]*", name)
    return found[0] if found else ""


def _transport(name: str, place: Path, roots: Roots) -> str | Unknown:
    family = _family(name)
    if family == "nvme":
        answers = [
            read_text(controller / "transport") for controller in _controllers(name, place, roots)
        ]
        known = sorted({text for text in answers if isinstance(text, str)})
        remote = [text for text in known if text != "pcie"]
        return f"nvme {(remote or known)[0]}" if known else first_known(answers)
    if family == "dm":
        return "dm" + _suffix(read_text(place / "dm" / "uuid"), r"(CRYPT|LVM|mpath|VDO|STRATIS)")
    if family == "md":
        return "md" + _suffix(read_text(place / "md" / "level"), r"(\w+)")
    if family in (*_IN_MEMORY, *_ON_SERVERS, "loop", "bcache"):
        return family
    transport = next(
        (transport for pattern, transport in _TRANSPORTS if pattern.search(f"{place}/")), None
    )
    return transport or Unknown("sysfs does not show how it is attached")


def _suffix(text: str | Unknown, pattern: str) -> str:
    found = None if isinstance(text, Unknown) else re.match(pattern, text)
    return f" {found[1].lower()}" if found else ""


def _controllers(name: str, place: Path, roots: Roots) -> list[Path]:
    """The controllers of an NVMe namespace: one, or with multipath several of one subsystem."""
    device = place / "device"
    if (device / "transport").exists():
        return [device]
    members = [device / entry for entry in list_names(device) if re.fullmatch(r"nvme\d+", entry)]
    number = re.match(r"nvme\d+", name)
    return members or ([roots.sys / "class" / "nvme" / number[0]] if number else [])


def _model(name: str, place: Path, roots: Roots) -> str | Unknown:
    controllers = _controllers(name, place, roots) if name.startswith("nvme") else []
    model = first_known(read_text(folder / "model") for folder in (place / "device", *controllers))
    if isinstance(model, Unknown):
        return Unknown("it has none" if not controllers else model.reason)
    return model or Unknown("it has none")
