"""Simulated hosts, each with a name, a boot id and a clock of its own; and two of them in network
namespaces with a shaped link."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

AHEAD_S: Final = {"node-a": 1_000, "node-b": 987_654}
"""By how many seconds the CLOCK_MONOTONIC of each host is ahead of the machine's."""
ADDRESSES: Final = {"node-a": "10.213.0.1", "node-b": "10.213.0.2"}
_HOST: Final = """
hostname "$1"
printf %s "boot-of-$1" > "$2/boot-$1"
mount --bind "$2/boot-$1" /proc/sys/kernel/random/boot_id
shift 2
exec "$@"
"""


@contextmanager
def linked_hosts(rate_mbit: float) -> Iterator[str | None]:
    """Make the two networks and their link, `rate_mbit` in each direction; gives why not, where
    this machine does not let us."""
    spaces = {name: f"{name}-{os.getpid()}" for name in ADDRESSES}
    missing = [program for program in ("ip", "tc", "unshare") if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        yield (
            f"no hosts can be made here: needs root, and {', '.join(missing) or 'root'} is missing"
        )
        return
    try:
        yield _link(spaces, rate_mbit)
    finally:
        for space in spaces.values():
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)


def _link(spaces: dict[str, str], rate_mbit: float) -> str | None:
    first, second = spaces.values()
    lines = [
        *(["ip", "netns", "add", space] for space in spaces.values()),
        [
            "ip",
            "link",
            "add",
            "link0",
            "netns",
            first,
            "type",
            "veth",
            "peer",
            "name",
            "link0",
            "netns",
            second,
        ],
    ]
    for name, space in spaces.items():
        lines += [
            ["ip", "-n", space, "address", "add", f"{ADDRESSES[name]}/24", "dev", "link0"],
            ["ip", "-n", space, "link", "set", "lo", "up"],
            ["ip", "-n", space, "link", "set", "link0", "up"],
            [
                *("tc", "-n", space, "qdisc", "add", "dev", "link0", "root", "tbf"),
                "rate",
                f"{rate_mbit}mbit",
                *_BURST,
            ],
        ]
    for line in lines:
        ended = subprocess.run(line, capture_output=True, text=True, check=False)
        if ended.returncode:
            return f"no hosts can be made here: {' '.join(line)}: {ended.stderr.strip()}"
    return None


_BURST: Final = ("burst", "64kb", "latency", "50ms")


def as_host(name: str, folder: Path, ahead_s: int | None = None) -> list[str]:
    """The command prefix that runs a command on a simulated host; its CLOCK_MONOTONIC is ahead by
    so much, or `AHEAD_S`."""
    ahead_s = AHEAD_S[name] if ahead_s is None else ahead_s
    clock = ["unshare", "--uts", "--mount", "--time", "--monotonic", str(ahead_s), "--fork"]
    return [*clock, "sh", "-ec", _HOST, "sh", name, str(folder)]


def on_host(name: str, folder: Path) -> list[str]:
    """The command prefix that runs a command on a linked host."""
    return ["ip", "netns", "exec", f"{name}-{os.getpid()}", *as_host(name, folder)]
