"""The properties of a network file system's mount: servers, version, request sizes."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ioprof.file_systems import MOOSE_SOURCE
from ioprof.storage.kernel_text import Unknown, build_with_reasons, parse_number, printable_text
from ioprof.storage.mounts import Mount


@dataclass(frozen=True)
class Network:
    """A mount of a network file system other than Lustre, for which see `Lustre`."""

    servers: tuple[str, ...] | None
    volume: str | None
    """The exported path, share, bucket or volume."""
    protocol_version: str | None
    transport: str | None
    """e.g. tcp, rdma, virtio."""
    read_bytes: int | None
    """Maximum size of a read request. Below the size of a record: several round trips per
    record."""
    num_connections: int | None
    """Connections to the server. 1: all readers of this host share one queue."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Field → reason why its value is None."""


def network_of(mount: Mount) -> Network:
    """The properties of a mount of any network file system."""
    servers, volume = _servers_and_volume(mount)
    is_nfs = mount.file_system in ("nfs", "nfs4")
    return build_with_reasons(
        Network,
        servers=servers or _not_shown(mount, "servers"),
        volume=volume or _not_shown(mount, "volume"),
        protocol_version=_first_text(mount, "vers", "version", what="version"),
        transport=_first_text(mount, "proto", "trans", what="transport"),
        read_bytes=_first_number(mount, "rsize", "max_read", "msize", what="largest read"),
        # NFS uses one connection unless nconnect is given.
        num_connections=_first_number(
            mount, "nconnect", "max_channels", what="connections", default=1 if is_nfs else None
        ),
    )


def _servers_and_volume(mount: Mount) -> tuple[tuple[str, ...], str]:
    source = printable_text(mount.source)
    kind = mount.file_system
    if kind in ("cifs", "smb3"):
        server, _, share = source.strip("/\\").replace("\\", "/").partition("/")
        return (server,) if server else (), share
    if kind == "wekafs":
        servers, _, volume = source.rpartition("/")
        return tuple(servers.split(",")) if servers else (), volume
    if kind == "ceph":
        return _ceph_servers_and_volume(source, mount)
    if source.startswith(MOOSE_SOURCE):
        server, _, folder = source.removeprefix(MOOSE_SOURCE).partition("/")
        return (server,) if server else (), f"/{folder}"
    servers, separator, volume = source.rpartition(":/")
    if separator:  # server:/export, [fe80::1]:/export, user@host:/folder
        return (servers,), f"/{volume}"
    address = mount.option("addr")
    return (address,) if address else (), source


def _ceph_servers_and_volume(source: str, mount: Mount) -> tuple[tuple[str, ...], str]:
    """The source is `mon1:6789,mon2:6789:/folder`, since 5.17 `user@fsid.name=/folder` with the
    monitors in an option.
    """
    if "=/" in source:
        name, _, folder = source.partition("=/")
        monitors = mount.option("mon_addr") or ""
        return tuple(
            filter(None, printable_text(monitors).split("/"))
        ), f"{name.rpartition('.')[2]}:/{folder}"
    monitors, _, folder = source.rpartition(":/")
    return tuple(filter(None, monitors.split(","))), f"/{folder}"


def _first_text(mount: Mount, *names: str, what: str) -> str | Unknown:
    values: Iterator[str] = (
        printable_text(value) for name in names if (value := mount.option(name))
    )
    return next(values, _not_shown(mount, what))


def _first_number(
    mount: Mount, *names: str, what: str, default: int | None = None
) -> int | Unknown:
    for name in names:
        if (text := mount.option(name)) is not None:
            return parse_number(text, f"option {name} of {mount.point}")
    return _not_shown(mount, what) if default is None else default


def _not_shown(mount: Mount, what: str) -> Unknown:
    return Unknown(
        f"the mount options of {printable_text(mount.file_system)} do not show it ({what})"
    )
