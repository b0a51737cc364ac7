"""Creates trees of /proc and /sys in the formats of the kernel, for hardware that is not
available."""

import os
from collections.abc import Mapping
from pathlib import Path

from ioprof.storage.kernel_text import Roots

QUEUE = {
    "rotational": "0\n",
    "scheduler": "[none] mq-deadline kyber\n",
    "read_ahead_kb": "128\n",
    "logical_block_size": "512\n",
    "physical_block_size": "4096\n",
    "nr_requests": "1023\n",
    "max_sectors_kb": "1280\n",
}


def roots(folder: Path) -> Roots:
    """Both roots in one folder."""
    for name in ("proc", "sys"):
        (folder / name).mkdir(exist_ok=True)
    return Roots(folder / "proc", folder / "sys")


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Files by their paths."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def link(at: Path, target: Path) -> None:
    """A relative link, as in sysfs."""
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(os.path.relpath(target, at.parent))


def disk(sys: Path, name: str, number: str, by: str, **more: str) -> Path:
    """A whole disk at `devices/<by>/block/<name>`, in /sys/dev/block and /sys/class/block; `more`
    are files of it."""
    place = sys / "devices" / by / "block" / name
    write(
        place,
        {
            "dev": f"{number}\n",
            "size": "2097152\n",
            **{f"queue/{key}": text for key, text in QUEUE.items()},
            **more,
        },
    )
    _register(sys, name, number, place)
    return place


def partition(sys: Path, of: Path, name: str, number: str) -> None:
    """A partition of a disk, in its folder."""
    write(of / name, {"dev": f"{number}\n", "partition": "1\n", "size": "1048576\n"})
    _register(sys, name, number, of / name)


def slave(of: Path, below: Path) -> None:
    """The stacked device `of` consists of `below`."""
    link(of / "slaves" / below.name, below)


def _register(sys: Path, name: str, number: str, place: Path) -> None:
    link(sys / "dev" / "block" / number, place)
    link(sys / "class" / "block" / name, place)


def mount_line(
    number: int, device: str, point: str, file_system: str, source: str, options: str = "rw"
) -> str:
    """A line of mountinfo."""
    return (
        f"{number} 1 {device} / {point} rw,relatime shared:1 - {file_system} {source} {options}\n"
    )
