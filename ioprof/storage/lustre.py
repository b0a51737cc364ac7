"""What a Lustre client says of a mount to any user: version, targets, its readahead and locks, and the stripes of a file.

Where each file lies differs by release (2.10 to 2.17): /proc/fs/lustre, /sys/fs/lustre, or debugfs, which is root's.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ioprof.storage.kernel_text import Roots, Unknown, first_known, names_in, refusal, shown, text_of, told
from ioprof.storage.lustre_layout import Layout, layout_of
from ioprof.storage.mounts import Mount

ATTRIBUTE: Final = "lustre.lov"
_LOCKS: Final = ("flock", "localflock", "noflock")
_MEBIBYTE: Final = 1 << 20


@dataclass(frozen=True)
class Lustre:
    """A Lustre file system as this client sees it."""

    file_system: str | None
    """Its name, at most 8 characters."""
    servers: tuple[str, ...]
    """The management servers that it was mounted from."""
    version: str | None
    """Of the client."""
    num_osts: int | None
    """Object storage targets: what a file can be striped over."""
    num_mdts: int | None
    """Metadata targets."""
    read_ahead_bytes: int | None
    """What the whole client may read ahead. Small beside readers × file: readahead stops when many read."""
    read_ahead_per_file_bytes: int | None
    read_ahead_range_bytes: int | None
    """What a fault in a mapped file reads around it (2.14 and later)."""
    statahead_max: int | None
    """How many attributes a listing fetches ahead; 0: off."""
    fast_read: bool | None
    """Whether reads that hit the page cache go without a lock."""
    locks: str | None
    """`flock`, `localflock` or `noflock`, by which `fcntl` fails with "Function not implemented": open LMDB with lock=False."""
    jobid: str | None
    """By what the servers name a job's requests in their statistics, e.g. SLURM_JOB_ID."""
    layout: Layout | None
    """The stripes of the file, or the default of the folder."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Why a value is None."""


def lustre_of(mount: Mount, path: Path, roots: Roots) -> Lustre:
    """The facts of the mount, and the layout of the file or folder `path` on it."""
    servers, name = _source(mount.source)
    instances = _instances(name, roots)
    return told(
        Lustre,
        file_system=shown(name) if name else Unknown(f"the mount's source is {shown(mount.source)}"),
        servers=servers,
        version=_version(roots),
        num_osts=_num_targets("osc", name, "OST", roots),
        num_mdts=_num_targets("mdc", name, "MDT", roots),
        read_ahead_bytes=_setting("max_read_ahead_mb", instances, roots, _MEBIBYTE),
        read_ahead_per_file_bytes=_setting("max_read_ahead_per_file_mb", instances, roots, _MEBIBYTE),
        read_ahead_range_bytes=_setting("read_ahead_range_kb", instances, roots, 1024),
        statahead_max=_setting("statahead_max", instances, roots),
        fast_read=_as_flag(_setting("fast_read", instances, roots)),
        locks=next((option for option in _LOCKS if option in mount.options), Unknown("the mount's options do not say")),
        jobid=first_known(text_of(place / "jobid_var") for place in _places(roots)),
        layout=layout_at(path),
    )


def layout_at(path: Path) -> Layout | Unknown:
    """The layout of a file, or what a folder gives to new files."""
    try:
        return layout_of(os.getxattr(path, ATTRIBUTE))
    except OSError as error:
        return Unknown(f"{shown(str(path))} has no attribute {ATTRIBUTE}: {refusal(error, path).reason}")
    except ValueError as error:
        return Unknown(f"the attribute {ATTRIBUTE} of {shown(str(path))} is not as expected: {error}")


def _places(roots: Roots) -> tuple[Path, ...]:
    return roots.sys / "fs/lustre", roots.proc / "fs/lustre", roots.sys / "kernel/debug/lustre"


def _source(source: str) -> tuple[tuple[str, ...], str]:
    """`10.0.0.1@o2ib,10.0.1.1@o2ib1:10.0.0.2@o2ib:/scratch/folder`: the servers, and the name of the file system."""
    servers, _, inside = source.rpartition(":/")
    return tuple(shown(server) for server in re.split("[:,]", servers) if server), inside.split("/")[0]


def _instances(name: str, roots: Roots) -> list[str]:
    """The mounts of the file system on this client, as llite names them: `scratch-ffff9e10c2a4b000`."""
    own = re.compile(re.escape(name) + r"-[0-9a-f]+")
    return sorted({entry for place in _places(roots) for entry in names_in(place / "llite") if own.fullmatch(entry)})


def _num_targets(kind: str, name: str, target: str, roots: Roots) -> int | Unknown:
    own = re.compile(re.escape(name) + rf"-({target}[0-9a-f]{{4}})-{kind}-[0-9a-f]+")
    found = {match[1] for place in _places(roots) for entry in names_in(place / kind) if (match := own.fullmatch(entry))}
    return len(found) or Unknown(f"no {kind} of {shown(name)} is in any of {', '.join(map(str, _places(roots)))}")


def _version(roots: Roots) -> str | Unknown:
    text = first_known(text_of(place / "version") for place in _places(roots))
    if isinstance(text, Unknown):
        return text
    lines = text.splitlines()  # until 2.11 there were several: "lustre: 2.10.1", "kernel: ...", "build: ..."
    return next((line.removeprefix("lustre:").strip() for line in lines if line), Unknown("the version is empty"))


def _setting(name: str, instances: list[str], roots: Roots, scale: int = 1) -> int | Unknown:
    """The value of a setting that all mounts of the file system agree on: which of them the path is on, only an ioctl would say."""
    if not instances:
        return Unknown("no mount of it is known to llite")
    found = {_value(name, instance, roots, scale) for instance in instances}
    return found.pop() if len(found) == 1 else Unknown(f"the mounts of it on this client differ in {name}")


def _value(name: str, instance: str, roots: Roots, scale: int) -> int | Unknown:
    text = first_known(text_of(place / "llite" / instance / name) for place in _places(roots))
    if isinstance(text, Unknown):
        return text
    number = re.fullmatch(r"(\d{1,12})(\.\d{1,6})?", text)  # "64" and "64.00", as the release has it
    return int(float(number[0]) * scale) if number else Unknown(f"{name} is {shown(text)!r}, which is no number")


def _as_flag(value: int | Unknown) -> bool | Unknown:
    return value if isinstance(value, Unknown) else bool(value)
