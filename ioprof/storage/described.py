"""What a path lies on, all the way down."""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.storage.blockdevices import BlockDevice, device_of_name, device_of_number, joined
from ioprof.storage.filesystems import IMAGE_FUSE, FileSystemType, Kind, is_shared_fuse, subtype_of, type_of
from ioprof.storage.kernel_text import Roots, Unknown, first_known, names_in, number_of, shown, told
from ioprof.storage.lustre import Lustre, lustre_of
from ioprof.storage.mounts import Mount, mount_number, mount_of_number
from ioprof.storage.network import Network, network_of
from ioprof.storage.sample import answers_nowait, sample_of

_REAL: Final = Roots()
_DEEPEST: Final = 6  # a file in an image in an overlay on an image ...
_BLOCK: Final = FileSystemType("block", "other", None)
_COUNTS: Final = {"blocks": True, "memory": False, "own": False, "other": None}
_WITHOUT: Final = {"kind": "unknown", "devices": (), "layers": ()}


@dataclass(frozen=True)
class PathStorage:
    """What a file or folder lies on. A value that is not known is None, and `unknown` says why."""

    path: str
    mount_point: str | None
    file_system: str | None
    """The type, e.g. `ext4`, `lustre`, `fuse.sshfs`."""
    source: str | None
    """What was mounted, e.g. `/dev/nvme0n1p2`, `server:/export`."""
    options: tuple[str, ...] | None
    """Of the mount and of the file system."""
    kind: Kind
    """`shared`: other hosts compete for the same servers. `unknown` has its reason in `unknown`."""
    answers_nowait: bool | None
    """Whether preadv2(RWF_NOWAIT) says of each read if it was cached; tried on `sample`, or else known of the type."""
    counts_blocks: bool | None
    """Whether the kernel counts what each thread's reads fetched, so that cold can be told from warm where RWF_NOWAIT cannot."""
    read_ahead_bytes: int | None
    """What one sequential reader of a file has read ahead at most."""
    sample: str | None
    """The file that was tried, and whose layout is told: the path itself, or a large file in the folder."""
    devices: tuple[BlockDevice, ...] = ()
    """The block devices that it is on, each with what is below it; none for memory and servers."""
    network: Lustre | Network | None = None
    """What the mount says of its servers; None where there are none."""
    layers: tuple["Layer", ...] = ()
    """Other paths that its files lie in: those of an overlay, an image."""
    unknown: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """A path that another file system keeps its files in."""

    role: str
    """`upper` (what was written), `lower` (what was there before), `backing file of loop0`, `image`."""
    storage: PathStorage


def describe(path: Path, roots: Roots = _REAL) -> PathStorage:
    """What an existing file or folder lies on. Reads no byte of any file there, so that what is cold stays cold.

    Raises `CommandError` where there is no such path, or it may not be looked at.
    """
    try:
        status = path.stat()
        number = mount_number(path, roots)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{shown(str(path))}: {what}; name a file or folder that is there and may be looked at") from None
    if stat.S_ISBLK(status.st_mode):
        return _of_device(path, status.st_rdev, roots)
    sample = sample_of(path, status)
    return _tried(described(path, mount_of_number(number, roots), roots, sample=sample), sample)


def described(path: Path, mount: Mount | Unknown, roots: Roots, *, sample: Path | None = None, depth: int = 0) -> PathStorage:
    """What a path on that mount lies on; `sample` is the path itself or a file in it, if there is one."""
    if isinstance(mount, Unknown):
        return _nothing_known(path, mount)
    known = type_of(mount.file_system) or (None if mount.device.startswith("0:") else _BLOCK)
    devices = _devices(mount, known, roots)
    layers = tuple(_layers(mount, devices, roots, depth))
    network = lustre_of(mount, sample or path, roots) if mount.file_system == "lustre" else _network(mount, known)
    return told(
        PathStorage,
        _WITHOUT,
        path=shown(str(path)),
        mount_point=shown(mount.point),
        file_system=shown(mount.file_system),
        source=shown(mount.source),
        options=tuple(dict.fromkeys(map(shown, mount.options))),
        kind=_kind(mount, known, devices, layers),
        answers_nowait=_by_type(known.answers_nowait if known else None, mount, "whether RWF_NOWAIT answers"),
        counts_blocks=_by_type(_COUNTS[known.books] if known else None, mount, "whether the kernel counts what a read fetched"),
        read_ahead_bytes=_read_ahead(mount, known, devices, network, roots),
        sample=shown(str(sample)) if sample else Unknown("no file there was found that this user may read"),
        devices=devices,
        network=network,
        layers=layers,
    )


def _nothing_known(path: Path, reason: Unknown, **values: Any) -> PathStorage:
    """A description of which only `values` are known."""
    names = [entry.name for entry in fields(PathStorage) if entry.name not in ("network", "layers", "unknown")]
    return told(PathStorage, _WITHOUT, **{**dict.fromkeys(names, reason), "path": shown(str(path)), **values})


def _of_device(path: Path, number: int, roots: Roots) -> PathStorage:
    """A device file: not what `/dev` is on, but the device."""
    device = device_of_number(f"{os.major(number)}:{os.minor(number)}", roots)
    devices = device if isinstance(device, Unknown) else (device,)
    mount = Mount(0, "", "", "", "", ())
    layers = tuple(_layers(mount, devices, roots, 0))
    values = {"devices": devices, "layers": layers, "kind": _kind(mount, _BLOCK, devices, layers)}
    return _nothing_known(path, Unknown("it is a block device, and no file on one"), **values)


def _tried(found: PathStorage, sample: Path | None) -> PathStorage:
    answer = answers_nowait(sample) if sample else Unknown("")
    if isinstance(answer, Unknown):
        return found
    reasons = {name: reason for name, reason in found.unknown.items() if name != "answers_nowait"}
    return replace(found, answers_nowait=answer, unknown=reasons)


def _by_type(value: bool | None, mount: Mount, what: str) -> bool | Unknown:
    return Unknown(f"{what} is not known of {shown(mount.file_system)}") if value is None else value


# ------------------------------------------------------------------------------------------------ devices


def _devices(mount: Mount, known: FileSystemType | None, roots: Roots) -> tuple[BlockDevice, ...] | Unknown:
    if mount.file_system == "btrfs":
        return _btrfs_devices(mount, roots)
    if known and known.place == "own":
        return Unknown(f"{mount.file_system} does not name its devices where every user could read it; ask: zpool status")
    if not known or known.place != "block":
        return ()
    device = device_of_number(mount.device, roots)
    return device if isinstance(device, Unknown) else (device,)


def _btrfs_devices(mount: Mount, roots: Roots) -> tuple[BlockDevice, ...] | Unknown:
    """All devices of the file system that one of its devices was mounted by: btrfs has a device number of its own making."""
    name = Path(os.path.realpath(mount.source)).name
    place = roots.sys / "fs" / "btrfs"
    members = next((names for entry in names_in(place) if name in (names := names_in(place / entry / "devices"))), [name])
    found = [device_of_name(member, roots) for member in members]
    known = tuple(device for device in found if isinstance(device, BlockDevice))
    return known or next(device for device in found if isinstance(device, Unknown))


def _read_ahead(
    mount: Mount,
    known: FileSystemType | None,
    devices: tuple[BlockDevice, ...] | Unknown,
    network: Lustre | Network | None,
    roots: Roots,
) -> int | Unknown:
    if known and known.place in ("memory", "overlay"):
        return Unknown(f"{mount.file_system} reads nothing ahead itself")
    if isinstance(network, Lustre):
        ahead = network.read_ahead_per_file_bytes
        return Unknown(network.unknown["read_ahead_per_file_bytes"]) if ahead is None else ahead
    of_mount = number_of(roots.sys / "class" / "bdi" / mount.device / "read_ahead_kb", 1024)
    of_devices = [device.read_ahead_bytes for device in devices] if isinstance(devices, tuple) else []
    return first_known([of_mount, *(ahead for ahead in of_devices if ahead is not None)])


def _network(mount: Mount, known: FileSystemType | None) -> Network | None:
    on_servers = (known and known.place == "network") or is_shared_fuse(mount.file_system, mount.source)
    return network_of(mount) if on_servers else None


# ------------------------------------------------------------------------------------------------ kind


def _kind(
    mount: Mount, known: FileSystemType | None, devices: tuple[BlockDevice, ...] | Unknown, layers: tuple[Layer, ...]
) -> Kind | Unknown:
    if known is None:
        return Unknown(f"where {shown(mount.file_system)} keeps its files is not known")
    if known.place == "memory":
        return "memory"
    if known.place == "network" or is_shared_fuse(mount.file_system, mount.source):
        return "shared"
    if isinstance(devices, Unknown):
        return devices
    if known.place == "fuse" and not layers:
        return Unknown(f"a program ({shown(subtype_of(mount.file_system)) or 'FUSE'}) keeps its files wherever it wants")
    kind = joined([*_kinds_of_leaves(devices), *(layer.storage.kind for layer in layers)])
    return _why_unknown(devices, layers) if kind == "unknown" else kind


def _kinds_of_leaves(devices: tuple[BlockDevice, ...]) -> Iterator[Kind]:
    """Of all but loop devices: theirs are the kinds of the layers."""
    return (leaf.kind for device in devices for leaf in device.leaves if leaf.backing_file is None)


def _why_unknown(devices: tuple[BlockDevice, ...], layers: tuple[Layer, ...]) -> Unknown:
    reasons = [f"{leaf.name}: {leaf.unknown['kind']}" for device in devices for leaf in device.leaves if "kind" in leaf.unknown]
    reasons += [f"{layer.role}: {layer.storage.unknown['kind']}" for layer in layers if "kind" in layer.storage.unknown]
    return Unknown("; ".join(reasons) or "nothing is known of what it lies on")


# ------------------------------------------------------------------------------------------------ layers


def _layers(mount: Mount, devices: tuple[BlockDevice, ...] | Unknown, roots: Roots, depth: int) -> Iterator[Layer]:
    found = [*_overlaid(mount), *_image(mount), *_backing_files(() if isinstance(devices, Unknown) else devices)]
    for role, path in found:
        yield Layer(role, _of_layer(path, roots, depth + 1))


def _overlaid(mount: Mount) -> Iterator[tuple[str, str]]:
    """The folders of an overlay, from the top: `upperdir=`, `lowerdir=a:b` or, since 6.8, `lowerdir+=a` for each."""
    if mount.file_system != "overlay":
        return
    for name, role in (("upperdir", "upper"), ("lowerdir", "lower"), ("lowerdir+", "lower"), ("datadir+", "lower")):
        for option in mount.options:
            if option.startswith(f"{name}="):
                paths = [option[len(name) + 1 :]] if name != "lowerdir" else re.split(r"(?<!\\):+", option[len(name) + 1 :])
                yield from ((role, re.sub(r"\\(.)", r"\1", path)) for path in paths if path)


def _image(mount: Mount) -> Iterator[tuple[str, str]]:
    if subtype_of(mount.file_system) in IMAGE_FUSE and mount.source.startswith("/"):
        yield "image", mount.source


def _backing_files(devices: tuple[BlockDevice, ...]) -> Iterator[tuple[str, str]]:
    leaves = (leaf for device in devices for leaf in device.leaves)
    return ((f"backing file of {leaf.name}", leaf.backing_file) for leaf in leaves if leaf.backing_file is not None)


def _of_layer(text: str, roots: Roots, depth: int) -> PathStorage:
    """What a layer lies on. Its path is as the one who mounted it saw it: with other mounts, or from another folder, perhaps."""
    path = Path(text)
    if depth > _DEEPEST:
        return _nothing_known(path, Unknown(f"it is the {depth}th layer of what it is in"))
    if not path.is_absolute():
        return _nothing_known(path, Unknown("its path is relative to a folder that is not known"))
    try:
        status = path.stat()
        if stat.S_ISBLK(status.st_mode):
            return _of_device(path, status.st_rdev, roots)
        number = mount_number(path, roots)
    except (OSError, ValueError):
        return _nothing_known(path, Unknown(f"{shown(text)} is not to be seen from here: other mounts, or gone"))
    return described(path, mount_of_number(number, roots), roots, sample=sample_of(path, status), depth=depth)
