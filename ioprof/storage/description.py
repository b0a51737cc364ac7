"""The description of a path's storage: mount, file system, devices, servers, and the layers
below.
"""

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.file_systems import (
    IMAGE_FUSE,
    FileSystemType,
    Kind,
    is_shared_fuse,
    subtype_of,
    type_of,
)
from ioprof.storage.blockdevices import BlockDevice, combine_kinds, device_of_name, device_of_number
from ioprof.storage.kernel_text import (
    Roots,
    Unknown,
    build_with_reasons,
    first_known,
    list_names,
    printable_text,
    read_number,
)
from ioprof.storage.lustre import Lustre, lustre_of
from ioprof.storage.mounts import Mount, mount_number, mount_of_number
from ioprof.storage.network import Network, network_of
from ioprof.storage.sample import answers_nowait, sample_of

_REAL: Final = Roots()
FOLDER_ROLES: Final = ("upper", "lower")
"""Roles of the layers that are folders, those of an overlay; the others are files."""
_MAX_DEPTH: Final = 6  # a file in an image in an overlay on an image ...
_BLOCK: Final = FileSystemType("block", "unknown", None)
_COUNTS: Final = {"blocks": True, "memory": False, "unreliable": False, "unknown": None}
_DEFAULTS: Final = {"kind": "unknown", "devices": (), "layers": ()}


@dataclass(frozen=True)
class PathStorage:
    """The storage of a file or folder. An unknown value is None, and `unknown` holds the reason."""

    path: str
    mount_point: str | None
    file_system: str | None
    """The type, e.g. `ext4`, `lustre`, `fuse.sshfs`."""
    source: str | None
    """The mounted device or server, e.g. `/dev/nvme0n1p2`, `server:/export`."""
    options: tuple[str, ...] | None
    """Options of the mount and of the file system."""
    kind: Kind
    """`shared`: other hosts use the same servers. For `unknown` the reason is in `unknown`."""
    answers_nowait: bool | None
    """Whether preadv2(RWF_NOWAIT) shows for each read if it was cached; tried on `sample`, or else
    derived from the type."""
    counts_blocks: bool | None
    """Whether the kernel counts the blocks that each thread's reads fetched: shows cold reads where
    RWF_NOWAIT does not."""
    read_ahead_bytes: int | None
    """Maximum readahead of one sequential reader of a file."""
    sample: str | None
    """The file that was tried, and whose layout is shown: the path itself, or a large file in the
    folder."""
    devices: tuple[BlockDevice, ...] = ()
    """The block devices of the file system, each with its components; empty for memory and network
    file systems."""
    network: Lustre | Network | None = None
    """The servers and their settings, from the mount; None where there are none."""
    layers: tuple["Layer", ...] = ()
    """Other paths that contain its files: those of an overlay, an image."""
    unknown: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """A path in which another file system stores its files."""

    role: str
    """`upper` (the writable layer of an overlay), `lower` (a read-only one),
    `backing file of loop0`, `image`."""
    storage: PathStorage


def describe(path: Path, roots: Roots = _REAL) -> PathStorage:
    """The storage of an existing file or folder. Reads no file content, so that uncached files stay
    uncached.

    Raises `CommandError` where there is no such path, or where its status may not be read.
    """
    try:
        status = path.stat()
        number = mount_number(path, roots)
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else error
        raise CommandError(
            f"{printable_text(str(path))}: {what}; name an existing file or folder that you may"
            " read"
        ) from None
    if stat.S_ISBLK(status.st_mode):
        return _describe_device(path, status.st_rdev, roots)
    sample = sample_of(path, status)
    found = describe_mount(path, mount_of_number(number, roots), roots, sample=sample)
    answer = answers_nowait(sample) if sample else Unknown("there is no sample")
    if isinstance(answer, Unknown):
        return found
    reasons = {name: reason for name, reason in found.unknown.items() if name != "answers_nowait"}
    return replace(found, answers_nowait=answer, unknown=reasons)


def describe_mount(
    path: Path, mount: Mount | Unknown, roots: Roots, *, sample: Path | None = None, depth: int = 0
) -> PathStorage:
    """The storage of a path on this mount; `sample` is the path itself or a file in it, if there is
    one.
    """
    if isinstance(mount, Unknown):
        return _unknown_storage(path, mount)
    known = type_of(mount.file_system) or (None if mount.device.startswith("0:") else _BLOCK)
    devices = _devices(mount, known, roots)
    layers = tuple(_layers(mount, devices, roots, depth))
    network: Lustre | Network | None = None
    if mount.file_system == "lustre":
        network = lustre_of(mount, sample or path, roots)
    elif (known and known.place == "network") or is_shared_fuse(mount.file_system, mount.source):
        network = network_of(mount)
    return build_with_reasons(
        PathStorage,
        _DEFAULTS,
        path=printable_text(str(path)),
        mount_point=printable_text(mount.point),
        file_system=printable_text(mount.file_system),
        source=printable_text(mount.source),
        options=tuple(dict.fromkeys(map(printable_text, mount.options))),
        kind=_kind(mount, known, devices, layers),
        answers_nowait=_by_type(
            known.answers_nowait if known else None, mount, "whether it supports RWF_NOWAIT"
        ),
        counts_blocks=_by_type(
            _COUNTS[known.accounting] if known else None,
            mount,
            "whether the kernel counts what a read fetched",
        ),
        read_ahead_bytes=_read_ahead(mount, known, devices, network, roots),
        sample=(
            printable_text(str(sample))
            if sample
            else Unknown("no file that this user may read was found there")
        ),
        devices=devices,
        network=network,
        layers=layers,
    )


def _unknown_storage(path: Path, reason: Unknown, **values: Any) -> PathStorage:
    """A description in which only `values` are known."""
    names = [
        entry.name
        for entry in fields(PathStorage)
        if entry.name not in ("network", "layers", "unknown")
    ]
    known = {"path": printable_text(str(path)), **values}
    return build_with_reasons(PathStorage, _DEFAULTS, **{**dict.fromkeys(names, reason), **known})


def _describe_device(path: Path, number: int, roots: Roots) -> PathStorage:
    """The storage of a device file: the device, not the file system of `/dev`."""
    device = device_of_number(f"{os.major(number)}:{os.minor(number)}", roots)
    devices = device if isinstance(device, Unknown) else (device,)
    mount = Mount(0, "", "", "", "", ())
    layers = tuple(_layers(mount, devices, roots, 0))
    values = {"devices": devices, "layers": layers, "kind": _kind(mount, _BLOCK, devices, layers)}
    return _unknown_storage(path, Unknown("it is a block device, not a file"), **values)


def _by_type(value: bool | None, mount: Mount, what: str) -> bool | Unknown:
    return (
        Unknown(f"{what} is not known of {printable_text(mount.file_system)}")
        if value is None
        else value
    )


# ------------------------------------------------------------------------------------------ devices


def _devices(
    mount: Mount, known: FileSystemType | None, roots: Roots
) -> tuple[BlockDevice, ...] | Unknown:
    if mount.file_system == "btrfs":
        return _btrfs_devices(mount, roots)
    if known and known.place == "pool":
        return Unknown(
            f"{mount.file_system} does not name its devices to unprivileged users; see: zpool"
            " status"
        )
    if not known or known.place != "block":
        return ()
    device = device_of_number(mount.device, roots)
    return device if isinstance(device, Unknown) else (device,)


def _btrfs_devices(mount: Mount, roots: Roots) -> tuple[BlockDevice, ...] | Unknown:
    """All devices of the file system; the mount names one of them. btrfs uses an anonymous device
    number.
    """
    name = Path(os.path.realpath(mount.source.replace("\0", ""))).name
    place = roots.sys / "fs" / "btrfs"
    members = next(
        (
            names
            for entry in list_names(place)
            if name in (names := list_names(place / entry / "devices"))
        ),
        [name],
    )
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
        return Unknown(f"{mount.file_system} has no readahead of its own")
    if isinstance(network, Lustre):
        ahead = network.read_ahead_per_file_bytes
        return Unknown(network.unknown["read_ahead_per_file_bytes"]) if ahead is None else ahead
    of_mount = read_number(roots.sys / "class" / "bdi" / mount.device / "read_ahead_kb", 1024)
    of_devices = (
        [device.read_ahead_bytes for device in devices] if isinstance(devices, tuple) else []
    )
    return first_known([of_mount, *(ahead for ahead in of_devices if ahead is not None)])


# --------------------------------------------------------------------------------------------- kind


def _kind(
    mount: Mount,
    known: FileSystemType | None,
    devices: tuple[BlockDevice, ...] | Unknown,
    layers: tuple[Layer, ...],
) -> Kind | Unknown:
    if known is None:
        return Unknown(f"where {printable_text(mount.file_system)} stores its files is not known")
    if known.place == "memory":
        return "memory"
    if known.place == "network" or is_shared_fuse(mount.file_system, mount.source):
        return "shared"
    if isinstance(devices, Unknown):
        return devices
    if known.place == "fuse" and not layers:
        return Unknown(
            f"its FUSE program ({printable_text(subtype_of(mount.file_system)) or 'FUSE'}) can"
            " store its files anywhere"
        )
    leaves = [leaf for device in devices for leaf in device.leaves]
    # The kind of a loop device is that of its backing file, which is one of the layers.
    kind = combine_kinds(
        [
            *(leaf.kind for leaf in leaves if leaf.backing_file is None),
            *(layer.storage.kind for layer in layers),
        ]
    )
    if kind != "unknown":
        return kind
    reasons = [f"{leaf.name}: {leaf.unknown['kind']}" for leaf in leaves if "kind" in leaf.unknown]
    reasons += [
        f"{layer.role}: {layer.storage.unknown['kind']}"
        for layer in layers
        if "kind" in layer.storage.unknown
    ]
    return Unknown("; ".join(reasons) or "nothing is known of its devices")


# ------------------------------------------------------------------------------------------- layers


def _layers(
    mount: Mount, devices: tuple[BlockDevice, ...] | Unknown, roots: Roots, depth: int
) -> Iterator[Layer]:
    found = list(_overlay_folders(mount))
    if subtype_of(mount.file_system) in IMAGE_FUSE and mount.source.startswith("/"):
        found.append(("image", mount.source))
    leaves = (
        leaf
        for device in (() if isinstance(devices, Unknown) else devices)
        for leaf in device.leaves
    )
    found += [
        (f"backing file of {leaf.name}", leaf.backing_file)
        for leaf in leaves
        if leaf.backing_file is not None
    ]
    for role, path in found:
        yield Layer(role, _describe_layer(path, roots, depth + 1))


def _overlay_folders(mount: Mount) -> Iterator[tuple[str, str]]:
    """The folders of an overlay, from the top: `upperdir=`, `lowerdir=a:b` or, since 6.8,
    `lowerdir+=a` for each.
    """
    if mount.file_system != "overlay":
        return
    for name, role in (
        ("upperdir", "upper"),
        ("lowerdir", "lower"),
        ("lowerdir+", "lower"),
        ("datadir+", "lower"),
    ):
        for option in mount.options:
            if option.startswith(f"{name}="):
                paths = (
                    [option[len(name) + 1 :]]
                    if name != "lowerdir"
                    else re.split(r"(?<!\\):+", option[len(name) + 1 :])
                )
                yield from ((role, re.sub(r"\\(.)", r"\1", path)) for path in paths if path)


def _describe_layer(text: str, roots: Roots, depth: int) -> PathStorage:
    """The storage of a layer. Its path is that in the mount namespace and folder of the process
    that mounted it.
    """
    path = Path(text)
    if depth > _MAX_DEPTH:
        return _unknown_storage(path, Unknown(f"it is more than {_MAX_DEPTH} layers deep"))
    if not path.is_absolute():
        return _unknown_storage(path, Unknown("its path is relative to a folder that is not known"))
    try:
        status = path.stat()
        if stat.S_ISBLK(status.st_mode):
            return _describe_device(path, status.st_rdev, roots)
        number = mount_number(path, roots)
    except (OSError, ValueError):
        return _unknown_storage(
            path,
            Unknown(
                f"{printable_text(text)} is not visible here: in another mount namespace, or"
                " removed"
            ),
        )
    return describe_mount(
        path, mount_of_number(number, roots), roots, sample=sample_of(path, status), depth=depth
    )
