"""A computer with its storage, as the model needs it, from `systems/*.toml` or a file of one's own.

What a file does not give sets no limit, and is named in every answer (`Numbers.unknown`).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.model.simulator.values import Value, parse_value
from ioprof.train.devices import Links

_SUFFIX: Final = ".toml"
_NEEDED: Final = ("nodes.accelerators", "nodes.cores", "nodes.memory_bytes", "storage.bytes_per_s")


@dataclass(frozen=True)
class Numbers:
    """A system at one end of the range of its values. Infinite: no limit is known."""

    nodes_accelerators: float
    """Of each node."""
    nodes_cores: float
    nodes_memory_bytes: float
    storage_bytes_per_s: float
    """Of the shared storage, to all nodes together."""
    nodes_count: float = inf
    nodes_client_bytes_per_s: float = inf
    """What one node receives from the shared storage at most: its link, or its client."""
    storage_metadata_per_s: float = inf
    """Files that all metadata servers open."""
    storage_open_s: float = 0.0
    """Of opening one file, alone."""
    storage_latency_s: float = 0.0
    """From a request until its first byte, alone."""
    storage_stream_bytes_per_s: float = inf
    """What one reader that reads one request after the other gets."""
    storage_servers: float = 1.0
    """Object servers, which share `storage_bytes_per_s` equally."""
    storage_stripes: float = inf
    """Servers that one file lies on; infinite: all."""
    disk_bytes_per_s: float = 0.0
    """Of the disk of each node; 0: there is none."""
    disk_write_bytes_per_s: float = 0.0
    disk_latency_s: float = 0.0
    disk_capacity_bytes: float = inf
    network_within_bytes_per_s: float = inf
    """Between accelerators of a node, one direction."""
    network_within_latency_s: float = 0.0
    network_bytes_per_s: float = inf
    """Of a node to others, one direction."""
    network_latency_s: float = 0.0
    network_tcp_bytes_per_s: float = 0.0
    """The same over TCP; 0: not known."""
    network_tcp_latency_s: float = 0.0

    def links(self, link: str) -> Links:
        """What the exchange uses; `link` is `verbs` or `tcp`."""
        over_tcp = link == "tcp"
        return Links(
            self.network_within_bytes_per_s,
            self.network_within_latency_s,
            self.network_tcp_bytes_per_s if over_tcp else self.network_bytes_per_s,
            self.network_tcp_latency_s if over_tcp else self.network_latency_s,
        )


FIELDS: Final = {each.name: each.name.replace("_", ".", 1) for each in fields(Numbers)}
"""Names of fields and of keys in files: `storage_bytes_per_s` is `bytes_per_s` of `[storage]`."""


@dataclass(frozen=True)
class System:
    """A system with the source of each value."""

    name: str
    about: str
    device: str
    """The device that its nodes have, as `emulated:NAME` names it."""
    values: dict[str, Value]
    """By key: `storage.bytes_per_s`."""
    loaders: dict[str, Value]
    """By workload: samples per second that the loaders of one node make at most, where a published
    result shows that."""
    overheads: dict[str, Value]
    """By workload: what a step takes besides computation and waiting for data, where a published
    result shows that; else that of the job."""
    limits: tuple[str, ...]
    """What is known to be missing in this description."""

    def at(self, end: str) -> Numbers:
        """Its numbers at one end: `value`, `worse` or `better`."""
        return Numbers(
            **{
                name: self.values[key].at(end, is_cost=is_cost(key))
                for name, key in FIELDS.items()
                if key in self.values
            }
        )

    def loader_per_s(self, workload: str, end: str) -> float | None:
        """Samples per second that one node makes at most; None: not known."""
        found = self.loaders.get(workload)
        return None if found is None else found.at(end, is_cost=False)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Keys without a value, which set no limit."""
        return tuple(key for key in FIELDS.values() if key not in self.values)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Keys whose value has no source."""
        return tuple(key for key, each in self.values.items() if each.basis == "assumed")


def is_cost(key: str) -> bool:
    """Whether more of it is worse: times are, rates and amounts are not."""
    return key.endswith("_s") and not key.endswith("_per_s")


def system_names() -> list[str]:
    """The systems that come with ioprof; `FILE:NAME` is one of several in a file."""
    found = []
    for path in sorted(files("ioprof.model").joinpath("systems").iterdir(), key=lambda it: it.name):
        if path.name.endswith(_SUFFIX):
            table = tomllib.loads(path.read_text())
            name = path.name.removesuffix(_SUFFIX)
            found += [name] if "about" in table else [f"{name}:{each}" for each in table]
    return found


def load_system(name: str) -> System:
    """The system of that name, or of a file of one's own; CommandError for none."""
    file, _, part = name.partition(":")
    if file.endswith(_SUFFIX):
        path: Any = Path(file)
    else:
        path = files("ioprof.model").joinpath("systems", file + _SUFFIX)
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError:
        known = ", ".join(system_names())
        raise CommandError(
            f"{name}: no such system; choose one of {known}, or a file NAME.toml"
        ) from None
    except (OSError, ValueError) as error:
        raise CommandError(f"{name}: {error}") from error
    if part and part not in table:
        raise CommandError(f"{name}: {file} has {', '.join(table)}")
    return parse_system(name, table[part] if part else table)


def with_values(system: System, changed: Mapping[str, float]) -> System:
    """The system with these values instead of its own; CommandError for a key that none has."""
    for key in changed:
        if key not in FIELDS.values():
            raise CommandError(f"{key}: unknown; a system has {', '.join(FIELDS.values())}")
    given = {key: Value(each, each, each, "source", "given") for key, each in changed.items()}
    return replace(system, values=system.values | given)


def parse_system(name: str, table: dict[str, Any]) -> System:
    """A system of the table of a file; CommandError for what is missing or has no source."""
    values, known = dict[str, Value](), set(FIELDS.values())
    for section in ("nodes", "storage", "disk", "network"):
        for key, given in table.get(section, {}).items():
            where = f"{section}.{key}"
            if where not in known:
                raise CommandError(f"{name}: {where}: unknown; a system has {', '.join(known)}")
            values[where] = parse_value(f"{name}: {where}", given)
    missing = [key for key in _NEEDED if key not in values]
    if missing:
        raise CommandError(f"{name}: it lacks {', '.join(missing)}")
    published = {
        section: {
            workload: parse_value(f"{name}: {section}.{workload}", given)
            for workload, given in table.get(section, {}).items()
        }
        for section in ("loaders", "overheads")
    }
    return System(
        name=name,
        about=str(table.get("about", "")),
        device=str(table.get("device", "")),
        values=values,
        limits=tuple(table.get("limits", ())),
        **published,
    )
