"""The facts of a Lustre mount that any user can read: version, targets, readahead, locks, and the
stripes of a file.

The location of each setting depends on the release (2.10 to 2.17): /proc/fs/lustre, /sys/fs/lustre,
or debugfs, which needs root.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ioprof.storage.kernel_text import (
    Roots,
    Unknown,
    build_with_reasons,
    first_known,
    list_names,
    printable_text,
    read_text,
    refusal,
)
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
    """The management servers (MGS) that it was mounted from."""
    version: str | None
    """Version of the client."""
    num_osts: int | None
    """Number of object storage targets (OSTs), over which files are striped."""
    num_mdts: int | None
    """Number of metadata targets (MDTs)."""
    read_ahead_bytes: int | None
    """Readahead limit of the whole client. Less than readers × per-file limit: readahead stops when
    many read."""
    read_ahead_per_file_bytes: int | None
    read_ahead_range_bytes: int | None
    """Bytes that a page fault in a mapped file reads around it (2.14 and later)."""
    statahead_max: int | None
    """Number of attributes that a directory listing prefetches; 0: off."""
    fast_read: bool | None
    """Whether reads that hit the page cache take no lock."""
    locks: str | None
    """`flock`, `localflock` or `noflock`, with which locks fail ("Function not implemented"): open
    LMDB with lock=False."""
    jobid: str | None
    """The variable by which the servers' statistics identify a job, e.g. SLURM_JOB_ID."""
    layout: Layout | None
    """The stripes of the file, or the default of the folder."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Field → reason why its value is None."""


def lustre_of(mount: Mount, path: Path, roots: Roots) -> Lustre:
    """The facts of the mount, and the layout of the file or folder `path` on it."""
    # The source is e.g. 10.0.0.1@o2ib,10.0.1.1@o2ib1:10.0.0.2@o2ib:/scratch/folder
    sources, _, inside = mount.source.rpartition(":/")
    servers = tuple(printable_text(server) for server in re.split("[:,]", sources) if server)
    name = inside.split("/")[0]
    # llite names mounts like scratch-ffff9e10c2a4b000
    own = re.compile(re.escape(name) + r"-[0-9a-f]+")
    instances = sorted(
        {
            entry
            for place in _places(roots)
            for entry in list_names(place / "llite")
            if own.fullmatch(entry)
        }
    )
    fast_read = _setting("fast_read", instances, roots)
    return build_with_reasons(
        Lustre,
        file_system=(
            printable_text(name)
            if name
            else Unknown(f"the mount's source is {printable_text(mount.source)}")
        ),
        servers=servers,
        version=_version(roots),
        num_osts=_num_targets("osc", name, "OST", roots),
        num_mdts=_num_targets("mdc", name, "MDT", roots),
        read_ahead_bytes=_setting("max_read_ahead_mb", instances, roots, _MEBIBYTE),
        read_ahead_per_file_bytes=_setting(
            "max_read_ahead_per_file_mb", instances, roots, _MEBIBYTE
        ),
        read_ahead_range_bytes=_setting("read_ahead_range_kb", instances, roots, 1024),
        statahead_max=_setting("statahead_max", instances, roots),
        fast_read=fast_read if isinstance(fast_read, Unknown) else bool(fast_read),
        locks=next(
            (option for option in _LOCKS if option in mount.options),
            Unknown("the mount's options do not say"),
        ),
        jobid=first_known(read_text(place / "jobid_var") for place in _places(roots)),
        layout=layout_at(path),
    )


def layout_at(path: Path) -> Layout | Unknown:
    """The layout of a file, or the default layout that a folder gives to new files."""
    try:
        return layout_of(os.getxattr(path, ATTRIBUTE))
    except OSError as error:
        return Unknown(
            f"{printable_text(str(path))} has no attribute {ATTRIBUTE}:"
            f" {refusal(error, path).reason}"
        )
    except ValueError as error:
        return Unknown(
            f"the attribute {ATTRIBUTE} of {printable_text(str(path))} is invalid: {error}"
        )


def _places(roots: Roots) -> tuple[Path, ...]:
    return roots.sys / "fs/lustre", roots.proc / "fs/lustre", roots.sys / "kernel/debug/lustre"


def _num_targets(kind: str, name: str, target: str, roots: Roots) -> int | Unknown:
    own = re.compile(re.escape(name) + rf"-({target}[0-9a-f]{{4}})-{kind}-[0-9a-f]+")
    found = {
        match[1]
        for place in _places(roots)
        for entry in list_names(place / kind)
        if (match := own.fullmatch(entry))
    }
    return len(found) or Unknown(
        f"no {kind} of {printable_text(name)} is in any of {', '.join(map(str, _places(roots)))}"
    )


def _version(roots: Roots) -> str | Unknown:
    text = first_known(read_text(place / "version") for place in _places(roots))
    if isinstance(text, Unknown):
        return text
    # until 2.11 there were several: "lustre: 2.10.1", "kernel: ...", "build: ..."
    lines = text.splitlines()
    return next(
        (line.removeprefix("lustre:").strip() for line in lines if line),
        Unknown("the version is empty"),
    )


def _setting(name: str, instances: list[str], roots: Roots, scale: int = 1) -> int | Unknown:
    """A setting, if it is the same for all mounts of the file system: only an ioctl would show
    which of them the path is on.
    """
    if not instances:
        return Unknown("llite lists no mount of it")
    found = {_value(name, instance, roots, scale) for instance in instances}
    return (
        found.pop()
        if len(found) == 1
        else Unknown(f"the mounts of it on this client differ in {name}")
    )


def _value(name: str, instance: str, roots: Roots, scale: int) -> int | Unknown:
    text = first_known(read_text(place / "llite" / instance / name) for place in _places(roots))
    if isinstance(text, Unknown):
        return text
    # "64" or "64.00", depending on the release
    number = re.fullmatch(r"(\d{1,12})(\.\d{1,6})?", text)
    return (
        int(float(number[0]) * scale)
        if number
        else Unknown(f"{name} is {printable_text(text)!r}, which is not a number")
    )
