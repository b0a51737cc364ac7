"""Recommended striping of a dataset's files over the object storage targets (OSTs) of a Lustre file
system.

New files inherit the layout of their folder, and it cannot be changed afterwards, so it is set
while the folder is empty. `lfs setstripe` sets it, and needs only write permission for the folder
(man lfs-setstripe).
"""

import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError

_MOUNTS: Final = Path("/proc/self/mounts")
_LFS_TIMEOUT_S: Final = 60.0
_MANY_SHARDS: Final = 16


@dataclass(frozen=True)
class Stripes:
    """A stripe layout, and the reason for it."""

    arguments: tuple[str, ...]
    """For `lfs setstripe`."""
    reason: str

    @property
    def command(self) -> str:
        """The command without the folder: given a folder that does not exist, `lfs` would create a
        file.
        """
        return shlex.join(("lfs", "setstripe", *self.arguments))


_SMALL_FILES: Final = Stripes(
    ("-c", "1"), "each file is smaller than a stripe: more stripes would only add round trips"
)
_SHARDS: Final = Stripes(
    ("-c", "1"), "there are enough shards to use all servers, and each is read sequentially"
)
_LARGE: Final = Stripes(
    ("-E", "1G", "-c", "1", "-E", "16G", "-c", "4", "-E", "-1", "-c", "-1", "-S", "4M"),
    "many ranks read one large file at random offsets: the larger the file, the more servers",
)


def recommended_stripes(layout: str, shards: int | None = None) -> Stripes:
    """The recommended stripes for a dataset layout."""
    if layout == "files":
        return _SMALL_FILES
    return (
        _SHARDS if layout in ("webdataset", "parquet") or (shards or 1) >= _MANY_SHARDS else _LARGE
    )


def is_lustre(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """Whether `folder`, or the place where it will be created, is on Lustre."""
    real = folder.resolve()
    found = (Path("/"), "")
    for line in mounts.read_text(errors="replace").splitlines():
        words = line.split(" ")
        place = Path(words[1].replace("\\040", " ")) if len(words) > 2 else None
        if (
            place
            and (place == real or place in real.parents)
            and len(place.parts) >= len(found[0].parts)
        ):
            found = (place, words[2])
    return found[1] == "lustre"


def stripe_folder(folder: Path, stripes: Stripes, destination: Path) -> None:
    """Set the layout of the empty `folder`, which becomes `destination`; raises `CommandError`
    where it cannot be set.
    """
    if not is_lustre(folder):
        raise CommandError(
            f"{destination}: not on Lustre, the only file system with stripes; leave out --stripe"
        )
    if shutil.which("lfs") is None:
        what = "--stripe needs Lustre's command lfs, which is not on the PATH"
        raise CommandError(f"{destination}: {what}; leave out --stripe", exit_code=1)
    command = ["lfs", "setstripe", *stripes.arguments, str(folder)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LFS_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        what = f"no answer from lfs setstripe for {_LFS_TIMEOUT_S:.0f} s"
        raise CommandError(f"{destination}: {what}; leave out --stripe", exit_code=1) from None
    if done.returncode != 0:
        output = " ".join((done.stderr or done.stdout).split())[:200]
        raise CommandError(
            f"{destination}: lfs setstripe failed ({output}); leave out --stripe", exit_code=1
        )
