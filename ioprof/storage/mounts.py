"""The mount that a path is on: open, /proc/self/fdinfo, /proc/self/mountinfo (man proc_pid_fdinfo,
proc_pid_mountinfo).

Device numbers and the longest prefix of the path are not sufficient: both are wrong for subvolumes
and bind mounts.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ioprof.storage.kernel_text import Roots, Unknown, read_bytes

# blanks, newlines and backslashes, by the kernel's mangle()
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """One line of mountinfo."""

    number: int
    device: str
    """`major:minor`; 0:N for an anonymous device: no block device, or several."""
    point: str
    file_system: str
    source: str
    options: tuple[str, ...]
    """Options of the mount and of the file system, e.g. `rsize=1048576`."""

    def option(self, name: str) -> str | None:
        """The value of the option `name=value`; None without it."""
        return next(
            (option[len(name) + 1 :] for option in self.options if option.startswith(f"{name}=")),
            None,
        )


def mount_of_number(number: int | Unknown, roots: Roots) -> Mount | Unknown:
    """The mount with this id in the process's mount namespace."""
    if isinstance(number, Unknown):
        return number
    place = roots.proc / "self" / "mountinfo"
    data = read_bytes(place)
    if isinstance(data, Unknown):
        return data
    found = (mount_in(line) for line in data.split(b"\n") if line.startswith(b"%d " % number))
    return next(
        (mount for mount in found if mount),
        Unknown(f"mount {number} is not in {place}, or its line is invalid"),
    )


def mount_number(path: Path, roots: Roots) -> int | Unknown:
    """The mount id of a path; raises OSError where the path cannot be opened."""
    # A folder is opened as "folder/.": an automounter mounts what a path lookup passes through, but
    # not its last component.
    descriptor = os.open(
        os.path.join(path, ".") if path.is_dir() else path, os.O_PATH | os.O_CLOEXEC
    )
    try:
        info = read_bytes(roots.proc / "self" / "fdinfo" / str(descriptor))
    finally:
        os.close(descriptor)
    if isinstance(info, Unknown):
        return info
    found = re.search(rb"^mnt_id:\s+(\d{1,9})$", info, re.MULTILINE)
    return (
        int(found[1])
        if found
        else Unknown("the kernel does not report the mount of an open file (no mnt_id in fdinfo)")
    )


def mount_in(line: bytes) -> Mount | None:
    """The mount that a line of mountinfo describes; None for an invalid line."""
    before, separator, after = line.partition(b" - ")
    fields, rest = before.split(b" "), after.split(b" ")
    if not separator or len(fields) < 6 or len(rest) < 3 or not fields[0].isdigit():
        return None
    return Mount(
        number=int(fields[0][:9]),
        device=_text(fields[2]),
        point=_text(fields[4]),
        file_system=_text(rest[0]),
        source=_text(rest[1]),
        options=tuple(
            _text(option) for option in (fields[5] + b"," + rest[2]).split(b",") if option
        ),
    )


def _text(field: bytes) -> str:
    return os.fsdecode(_ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 0xFF]), field))
