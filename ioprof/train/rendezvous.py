"""How the ranks of the built-in job find each other, and make torch's process group.

Ranks that one ioprof starts meet on this host: rank 0 opens a store on a free port, and leaves the
port in the spool. Ranks of a launcher, one ioprof each, meet at MASTER_ADDR and MASTER_PORT where
it says them (torchrun does), else by a file of rank 0 in a folder that all hosts share: so no list
of hosts of any scheduler needs to be read.
"""

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore  # as torch.distributed exports it

from ioprof.clock import monotonic_ns
from ioprof.errors import IoprofError
from ioprof.format.dataset import write_json_atomically
from ioprof.train.config import JobConfig

TIMEOUT_S: Final = 300.0
"""How long ranks wait for one another at the start: a scheduler may start tasks minutes apart."""
_POLL_S: Final = 0.01
_CONNECT_S: Final = 2.0
_READINGS: Final = 16
_FILE: Final = "rendezvous.json"
_INTERFACE: Final = "GLOO_SOCKET_IFNAME"


def join(config: JobConfig, rank: int, environment: Mapping[str, str]) -> None:
    """Make the process group of all ranks. Raises `IoprofError` if rank 0 cannot be found."""
    backend = "nccl" if config.device == "cuda" else "gloo"
    if config.is_task and {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        dist.init_process_group(backend)
        return
    folder = config.meeting if config.is_task and config.meeting is not None else config.spool
    store = _host(folder, config) if rank == 0 else _find(folder, config, rank)
    if config.is_task and _INTERFACE not in environment:
        _choose_interface(store, rank, config.ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=config.ranks)
    if rank == 0:
        (folder / _FILE).unlink(missing_ok=True)  # all have found it


def clock_offset_ns(rank: int, ranks: int) -> int:
    """What to add to a time of this rank's clock to get one of rank 0's, by the shortest of some
    messages over the job's store.
    """
    store, key = dist.distributed_c10d._get_default_store(), "clock of rank 0"  # noqa: SLF001
    if rank == 0:
        for name in (
            f"{key} for {other}/{number}"
            for other in range(1, ranks)
            for number in range(_READINGS)
        ):
            store.get(name)
            store.set(f"{name} is", str(monotonic_ns()))
        return 0
    found = []
    for number in range(_READINGS):
        name, sent_ns = f"{key} for {rank}/{number}", monotonic_ns()
        store.set(name, "")
        read_ns, received_ns = int(store.get(f"{name} is")), monotonic_ns()
        found.append((received_ns - sent_ns, read_ns - (sent_ns + received_ns) // 2))
    return min(found)[1]


def _host(folder: Path, config: JobConfig) -> Any:
    """The store of rank 0, and the file by which the others find it."""
    address = "0.0.0.0" if config.is_task else "127.0.0.1"  # noqa: S104
    store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
    addresses = list(_own_addresses()) if config.is_task else ["127.0.0.1"]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # the parts of a run will be in it
    write_json_atomically(
        folder / _FILE, {"addresses": addresses, "port": store.port, "job": config.job}
    )
    return store


def _find(folder: Path, config: JobConfig, rank: int) -> Any:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError, KeyError):
            os.listdir(folder)  # a network file system looks for new files then
            found = json.loads((folder / _FILE).read_text())
            if (
                found["job"] == config.job
                and (address := _reachable(found["addresses"], found["port"])) is not None
            ):
                store = TCPStore(address, found["port"], is_master=False, wait_for_workers=False)
                store.set(
                    f"address of rank 0 from rank {rank}",
                    json.dumps([os.uname().nodename, address]),
                )
                return store
        time.sleep(_POLL_S)
    raise IoprofError(
        f"rank {rank} found no rank 0 within {TIMEOUT_S:.0f} s: {folder} must be a folder of all"
        " hosts",
        1,
    )


def _reachable(addresses: list[str], port: int) -> str | None:
    """The first of the addresses that answers; a file of an earlier job has none."""
    for address in addresses:
        with suppress(OSError), socket.create_connection((address, port), _CONNECT_S):
            return address
    return None


def _choose_interface(store: Any, rank: int, ranks: int) -> None:
    """Have Gloo use the network by which another host reached rank 0; by itself it takes that of
    the host's name.
    """
    chosen = "address of rank 0"
    if rank == 0:
        reached = [
            json.loads(store.get(f"{chosen} from rank {other}")) for other in range(1, ranks)
        ]
        far = [address for host, address in reached if host != os.uname().nodename]
        store.set(chosen, (far or [reached[0][1]])[0])
    address = store.get(chosen).decode()
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing; the kernel chooses the route
        own = probe.getsockname()[0]
        names = _own_addresses()
        # A host reaches its own address by the loopback device, whose name is of no use to other
        # hosts.
        if (name := names.get(address) or names.get(own)) is not None:
            os.environ[_INTERFACE] = name


def _own_addresses() -> dict[str, str]:
    """The network interface of each IPv4 address of this host, that of the loopback device last."""
    import psutil

    found = {
        entry.address: name
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }
    return dict(sorted(found.items(), key=lambda item: item[0].startswith("127.")))
