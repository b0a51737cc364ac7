"""What the mount of a network file system says of itself: servers, version, sizes of requests."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ioprof.storage.filesystems import MOOSE_SOURCE
from ioprof.storage.kernel_text import Unknown, number_in, shown, told
from ioprof.storage.mounts import Mount


@dataclass(frozen=True)
class Network:
    """A mount whose files come from servers; for Lustre there is more, see `Lustre`."""

    servers: tuple[str, ...] | None
    volume: str | None
    """What is exported: path, share, bucket or volume."""
    protocol_version: str | None
    transport: str | None
    """e.g. tcp, rdma, virtio."""
    read_bytes: int | None
    """The largest read that is one request. Below the size of a record: several round trips for each."""
    num_connections: int | None
    """Connections to the server. 1: all readers of this host share one queue."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Why a value is None."""


def network_of(mount: Mount) -> Network:
    """The facts of a mount of any network file system."""
    servers, volume = _parts(mount)
    return told(
        Network,
        servers=servers or _unsaid(mount, "servers"),
        volume=volume or _unsaid(mount, "volume"),
        protocol_version=_first(mount, "vers", "version", what="version"),
        transport=_first(mount, "proto", "trans", what="transport"),
        read_bytes=_size(mount),
        num_connections=_connections(mount),
    )


def _parts(mount: Mount) -> tuple[tuple[str, ...], str]:
    source = shown(mount.source)
    kind = mount.file_system
    if kind in ("cifs", "smb3"):
        server, _, share = source.strip("/\\").replace("\\", "/").partition("/")
        return (server,) if server else (), share
    if kind == "wekafs":
        servers, _, volume = source.rpartition("/")
        return tuple(servers.split(",")) if servers else (), volume
    if kind == "ceph":
        return _ceph(source, mount)
    if source.startswith(MOOSE_SOURCE):
        server, _, folder = source.removeprefix(MOOSE_SOURCE).partition("/")
        return (server,) if server else (), f"/{folder}"
    servers, separator, volume = source.rpartition(":/")
    if separator:  # server:/export, [fe80::1]:/export, user@host:/folder
        return (servers,), f"/{volume}"
    address = mount.option("addr")
    return (address,) if address else (), source


def _ceph(source: str, mount: Mount) -> tuple[tuple[str, ...], str]:
    """`mon1:6789,mon2:6789:/folder`, since 5.17 `user@fsid.name=/folder` with the monitors in an option."""
    if "=/" in source:
        name, _, folder = source.partition("=/")
        monitors = mount.option("mon_addr") or ""
        return tuple(filter(None, shown(monitors).split("/"))), f"{name.rpartition('.')[2]}:/{folder}"
    monitors, _, folder = source.rpartition(":/")
    return tuple(filter(None, monitors.split(","))), f"/{folder}"


def _first(mount: Mount, *names: str, what: str) -> str | Unknown:
    values: Iterator[str] = (shown(value) for name in names if (value := mount.option(name)))
    return next(values, _unsaid(mount, what))


def _size(mount: Mount) -> int | Unknown:
    for name in ("rsize", "max_read", "msize"):
        if (text := mount.option(name)) is not None:
            return number_in(text, f"option {name} of {mount.point}")
    return _unsaid(mount, "largest read")


def _connections(mount: Mount) -> int | Unknown:
    for name in ("nconnect", "max_channels"):
        if (text := mount.option(name)) is not None:
            return number_in(text, f"option {name} of {mount.point}")
    return 1 if re.fullmatch("nfs4?", mount.file_system) else _unsaid(mount, "connections")


def _unsaid(mount: Mount, what: str) -> Unknown:
    return Unknown(f"the mount of {shown(mount.file_system)} does not say ({what})")
