"""Block devices, from the one that a file system is on down to what it is made of: partitions, dm, md, loop, NVMe, disks.

Sources: Documentation/ABI/stable/sysfs-block and sysfs-block-device of the kernel, drivers/nvme/host/sysfs.c. Nothing of it needs
root. Sysfs may be masked in a container; then there is a reason instead of a device.
"""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ioprof.storage.filesystems import Kind
from ioprof.storage.kernel_text import (
    Roots,
    Unknown,
    data_of,
    first_known,
    flag_of,
    names_in,
    number_of,
    shown,
    text_of,
    told,
)

_SECTOR_BYTES: Final = 512  # of /sys/block/*/size, whatever the device's own sector is
_DEEPEST: Final = 8  # dm on md on dm on partitions is four

_IN_MEMORY: Final = ("zram", "ram", "pmem")
_ON_SERVERS: Final = ("nbd", "rbd", "drbd")
_REMOTE: Final = frozenset({*_ON_SERVERS, "iscsi", "fibre channel", "nvme tcp", "nvme rdma", "nvme fc", "ata over ethernet"})
_MADE: Final = ("dm", "md", "loop", "bcache")

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
"""What the path of a device in sysfs goes through, and what that says of how it is attached; the first that fits counts."""


@dataclass(frozen=True)
class BlockDevice:
    """A block device and its settings, those of its request queue as they are now."""

    name: str
    """As in /sys/block and in the series `disk.<name>.*`."""
    number: str | None
    """major:minor."""
    transport: str | None
    """How it is attached: `nvme pcie`, `nvme tcp`, `sata`, `iscsi`, `virtio`; or what makes it: `loop`, `md raid0`, `dm crypt`."""
    kind: Kind
    """Of what lies below it, but for a loop device, which is `unknown` here: ask for what its file lies on."""
    model: str | None
    size_bytes: int | None
    rotational: bool | None
    """A hint: the kernel's word where the device gave none, and some hypervisors say so of flash."""
    scheduler: str | None
    """The one in use of those that there are."""
    read_ahead_bytes: int | None
    """What a sequential reader has read ahead at most. High: mapped databases read much that nobody asked for."""
    logical_block_bytes: int | None
    """O_DIRECT reads must be aligned to it."""
    physical_block_bytes: int | None
    num_requests: int | None
    """How many requests may queue. Low: deep queues are cut here."""
    largest_request_bytes: int | None
    partition: str | None = None
    """The partition of it that was asked for."""
    backing_file: str | None = None
    """The file that a loop device shows."""
    below: tuple["BlockDevice", ...] = ()
    """What it is made of: members of an array, the volume's disks."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Why a value is None."""

    @property
    def leaves(self) -> tuple["BlockDevice", ...]:
        """The devices at the bottom: itself, if nothing is below."""
        return tuple(leaf for device in self.below for leaf in device.leaves) or (self,)


def device_of_number(number: str, roots: Roots) -> BlockDevice | Unknown:
    """The whole device with that `major:minor`, or whose partition has it."""
    if not re.fullmatch(r"\d+:\d+", number) or number.startswith("0:"):
        return Unknown(f"{shown(number)} is the number of no block device")
    place = roots.sys / "dev" / "block" / number
    return _device_at(Path(os.path.realpath(place)), roots) if place.exists() else Unknown(_masked(place))


def device_of_name(name: str, roots: Roots) -> BlockDevice | Unknown:
    """The whole device called `name`, or whose partition is."""
    place = roots.sys / "class" / "block" / name.replace("/", "!")
    return _device_at(Path(os.path.realpath(place)), roots) if place.exists() else Unknown(_masked(place))


def _masked(place: Path) -> str:
    return f"there is no {shown(str(place))}; in a container, sysfs may be hidden"


def _device_at(place: Path, roots: Roots, depth: int = 0) -> BlockDevice:
    partition = place.name if (place / "partition").exists() else None
    if partition:
        place = place.parent
    name = place.name
    below = tuple(_below(place, roots, depth)) if depth < _DEEPEST else ()
    transport = _transport(name, place, roots)
    queue, backing = place / "queue", _backing_file(place)
    device = told(
        BlockDevice,
        name=shown(name),
        number=text_of(place / "dev"),
        transport=transport,
        kind="unknown",
        model=_model(name, place, roots),
        size_bytes=number_of(place / "size", _SECTOR_BYTES),
        rotational=flag_of(queue / "rotational"),
        scheduler=_scheduler(queue / "scheduler"),
        read_ahead_bytes=first_known(number_of(file, 1024) for file in (queue / "read_ahead_kb", place / "bdi" / "read_ahead_kb")),
        logical_block_bytes=number_of(queue / "logical_block_size"),
        physical_block_bytes=number_of(queue / "physical_block_size"),
        num_requests=number_of(queue / "nr_requests"),
        largest_request_bytes=number_of(queue / "max_sectors_kb", 1024),
        partition=partition and shown(partition),
        backing_file=backing,
        below=below,
    )
    return _with_kind(device)


def _with_kind(device: BlockDevice) -> BlockDevice:
    reasons = dict(device.unknown)
    kind = joined(below.kind for below in device.below) if device.below else _own_kind(device.name, device.transport)
    if kind == "unknown":
        made = _family(device.name) in _MADE
        reasons["kind"] = "it is that of what lies below, which is not known" if made else "how it is attached is not known"
    return replace(device, kind=kind, unknown=reasons)


def joined(kinds: Iterable[Kind]) -> Kind:
    """The kind of what is made of these parts: as shared as the most shared of them, in memory only if all of them are."""
    found = set(kinds)
    for kind in ("shared", "unknown", "local", "memory"):
        if kind in found:
            return kind
    return "unknown"


def _own_kind(name: str, transport: str | None) -> Kind:
    if _family(name) in _IN_MEMORY:
        return "memory"
    if transport is None or _family(name) in _MADE:
        return "unknown"
    return "shared" if transport in _REMOTE else "local"


def _family(name: str) -> str:
    found = re.match("[a-z]*", name)
    return found[0] if found else ""


def _below(place: Path, roots: Roots, depth: int) -> Iterator[BlockDevice]:
    for name in names_in(place / "slaves"):
        target = Path(os.path.realpath(place / "slaves" / name))
        if target.is_dir() and target != place:
            yield _device_at(target, roots, depth + 1)


def _backing_file(place: Path) -> str | Unknown | None:
    if not place.name.startswith("loop"):
        return None
    data = data_of(place / "loop" / "backing_file")
    return data if isinstance(data, Unknown) else os.fsdecode(data.removesuffix(b"\n"))


def _scheduler(place: Path) -> str | Unknown:
    text = text_of(place)
    if isinstance(text, Unknown):
        return text
    chosen = re.search(r"\[([^\]]+)\]", text)
    return chosen[1] if chosen else text or Unknown(f"{place} is empty")


def _transport(name: str, place: Path, roots: Roots) -> str | Unknown:
    family = _family(name)
    if family == "nvme":
        return _nvme_transport(name, place, roots)
    if family == "dm":
        return "dm" + _suffix(text_of(place / "dm" / "uuid"), r"(CRYPT|LVM|mpath|VDO|STRATIS)")
    if family == "md":
        return "md" + _suffix(text_of(place / "md" / "level"), r"(\w+)")
    if family in (*_IN_MEMORY, *_ON_SERVERS, "loop", "bcache"):
        return family
    found = next((transport for pattern, transport in _TRANSPORTS if pattern.search(f"{place}/")), None)
    return found or Unknown("sysfs does not show how it is attached")


def _suffix(text: str | Unknown, pattern: str) -> str:
    found = None if isinstance(text, Unknown) else re.match(pattern, text)
    return f" {found[1].lower()}" if found else ""


def _controllers(name: str, place: Path, roots: Roots) -> list[Path]:
    """The controllers by which an NVMe namespace is reached: one, or with multipath several of one subsystem."""
    device = place / "device"
    if (device / "transport").exists():
        return [device]
    members = [device / entry for entry in names_in(device) if re.fullmatch(r"nvme\d+", entry)]
    number = re.match(r"nvme\d+", name)
    return members or ([roots.sys / "class" / "nvme" / number[0]] if number else [])


def _nvme_transport(name: str, place: Path, roots: Roots) -> str | Unknown:
    found = [text_of(controller / "transport") for controller in _controllers(name, place, roots)]
    known = sorted({text for text in found if isinstance(text, str)})
    remote = [text for text in known if text != "pcie"]
    return f"nvme {(remote or known)[0]}" if known else first_known(found)


def _model(name: str, place: Path, roots: Roots) -> str | Unknown:
    controllers = _controllers(name, place, roots) if name.startswith("nvme") else []
    model = first_known(text_of(folder / "model") for folder in (place / "device", *controllers))
    if isinstance(model, Unknown):
        return Unknown("it has none" if not controllers else model.reason)
    return model or Unknown("it has none")
