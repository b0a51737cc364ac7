"""Formats the description of storage: for people as lines of a label and a text, for programs as
plain data.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ioprof.storage.blockdevices import BlockDevice
from ioprof.storage.description import PathStorage
from ioprof.storage.kernel_text import printable_text
from ioprof.storage.lustre import Lustre
from ioprof.storage.lustre_layout import ALL_OSTS, Component, Layout
from ioprof.storage.network import Network

_KINDS = {
    "local": "local to this host",
    "shared": "shared with other hosts",
    "memory": "memory, no storage",
    "unknown": "unknown whether other hosts share it",
}


def plain(storage: PathStorage) -> dict[str, Any]:
    """The whole description as JSON-compatible data."""
    found: dict[str, Any] = printable(asdict(storage))
    return found


def lines(storage: PathStorage) -> list[tuple[str, str]]:
    """The lines to print, in order: mount, devices, servers, and whether the source of a read can
    be known.
    """
    reasons = [*storage.unknown.items()]
    reasons += (
        (f"{device.name} {name}", reason)
        for device in storage.devices
        for name, reason in device.unknown.items()
    )
    reasons += storage.network.unknown.items() if storage.network else ()
    names_by_reason: dict[str, list[str]] = {}
    for name, reason in reasons:
        names_by_reason.setdefault(reason, []).append(name.replace("_", " "))
    return [
        *_lines(storage),
        *(
            ("not known", f"{', '.join(names)}: {reason}")
            for reason, names in names_by_reason.items()
        ),
    ]


def _lines(storage: PathStorage) -> Iterator[tuple[str, str]]:
    yield "storage", _place(storage)
    for device in storage.devices:
        yield from _device_lines(device)
    if isinstance(storage.network, Lustre):
        yield from _lustre_lines(storage.network, storage.sample or storage.path)
    elif storage.network:
        yield "servers", _network(storage.network)
    for layer in storage.layers:
        yield layer.role, f"{layer.storage.path}: {_place(layer.storage)}"
        yield from (
            line for line in _lines(layer.storage) if line[0] not in ("storage", "cold or warm")
        )
    if storage.file_system:
        yield "cold or warm", _source_of_reads(storage)


def _place(storage: PathStorage) -> str:
    where = (
        f"{storage.file_system} at {storage.mount_point} ({storage.source}), "
        if storage.file_system
        else ""
    )
    return f"{where}{_KINDS[storage.kind]}"


def _source_of_reads(storage: PathStorage) -> str:
    if storage.kind == "memory":
        return "all reads are from memory"
    if storage.answers_nowait:
        return (
            "RWF_NOWAIT is supported: the source of each read (storage or page cache) is known"
            " exactly"
        )
    if storage.counts_blocks:
        return (
            "the kernel counts the blocks that a thread fetched: the source of most reads (storage"
            " or page cache) is known"
        )
    return (
        "neither RWF_NOWAIT nor the kernel's counters show the source of a read; only its duration"
        " is known"
    )


def _device_lines(device: BlockDevice, label: str = "device") -> Iterator[tuple[str, str]]:
    yield label, _device(device)
    for below in device.below:
        yield from _device_lines(below, f"below {device.name}")


def _device(device: BlockDevice) -> str:
    rotational = {
        True: "rotational (according to the kernel)",
        False: "not rotational",
        None: None,
    }[device.rotational]
    words = (
        device.transport,
        device.model,
        None if device.size_bytes is None else f"{device.size_bytes / 1e9:,.0f} GB",
        rotational,
        device.scheduler and f"scheduler {device.scheduler}",
        None if device.read_ahead_bytes is None else f"readahead {size(device.read_ahead_bytes)}",
        (
            None
            if device.logical_block_bytes is None
            else f"blocks of {size(device.logical_block_bytes)}"
        ),
        None if device.num_requests is None else f"queue of {device.num_requests} requests",
        device.partition and f"partition {device.partition}",
    )
    return f"{device.name}: " + ", ".join(word for word in words if word)


def _lustre_lines(lustre: Lustre, path: str) -> Iterator[tuple[str, str]]:
    words = (
        f"Lustre {lustre.version}" if lustre.version else "Lustre",
        lustre.file_system,
        None if lustre.num_osts is None else f"{lustre.num_osts} OSTs",
        None if lustre.num_mdts is None else f"{lustre.num_mdts} MDTs",
        (
            None
            if lustre.read_ahead_per_file_bytes is None
            else f"readahead {size(lustre.read_ahead_per_file_bytes)} per file"
        ),
        (
            None
            if lustre.read_ahead_bytes is None
            else f"readahead {size(lustre.read_ahead_bytes)} in total"
        ),
        lustre.locks,
    )
    yield "servers", ", ".join(word for word in words if word)
    if lustre.layout:
        yield "layout", f"{path}: {layout_text(lustre.layout)}"


def layout_text(layout: Layout) -> str:
    """The components, e.g. `0 to 64 KiB on the MDT; from 64 KiB 4 stripes of 1 MiB on OSTs 3 7 0
    5`.
    """
    text = "; ".join(map(_component, layout.components))
    return text if layout.num_mirrors == 1 else f"{layout.num_mirrors} mirrors: {text}"


def _component(component: Component) -> str:
    start, end = component.start_bytes, component.end_bytes
    extent = (
        f"{size(start)} to {size(end)}: "
        if end is not None
        else f"from {size(start)}: "
        if start
        else ""
    )
    if "mdt" in component.patterns:
        return f"{extent}on the MDT"
    count = {ALL_OSTS: "all OSTs", 0: "the default number of stripes", 1: "1 stripe"}.get(
        component.stripe_count, f"{component.stripe_count} stripes"
    )
    per = f" of {size(component.stripe_size_bytes)}" if component.stripe_size_bytes else ""
    where = (
        f" on OST{'' if len(component.osts) == 1 else 's'} {' '.join(map(str, component.osts))}"
        if component.osts
        else ""
    )
    rest = [name for name in component.patterns if name != "raid0"] + (
        ["stale"] if component.is_stale else []
    )
    rest += [f"pool {component.pool}"] if component.pool else []
    rest += [] if component.is_instantiated else ["not written yet"]
    return f"{extent}{count}{per}{where}" + (f" ({', '.join(rest)})" if rest else "")


def _network(network: Network) -> str:
    words = (
        ", ".join(network.servers or ()),
        network.volume,
        network.protocol_version and f"version {network.protocol_version}",
        network.transport,
        None if network.read_bytes is None else f"reads of at most {size(network.read_bytes)}",
        None if network.num_connections is None else f"{network.num_connections} connection(s)",
    )
    return ", ".join(word for word in words if word)


def size(count: int) -> str:
    """Bytes in the largest binary unit without a fraction: these are settings, mostly powers of
    two.
    """
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} B" if count else "0"


def printable(value: Any) -> Any:
    """Plain data whose texts can be written to any UTF-8 stream."""
    if isinstance(value, str):
        return printable_text(value)
    if isinstance(value, dict):
        return {printable_text(str(key)): printable(inner) for key, inner in value.items()}
    return [printable(inner) for inner in value] if isinstance(value, list | tuple) else value
