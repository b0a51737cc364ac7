"""How a dataset's files should be striped over the servers of a Lustre file system.

A folder's layout is inherited by the files that are made in it, and cannot be changed afterwards, so it is set while the folder is
empty. `lfs setstripe` sets it, and needs no rights but those to the folder (man lfs-setstripe).
"""

import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError

_MOUNTS: Final = Path("/proc/self/mounts")
_LFS_S: Final = 60.0
_MANY_SHARDS: Final = 16


@dataclass(frozen=True)
class Stripes:
    """A layout, and why it suits."""

    arguments: tuple[str, ...]
    """Of `lfs setstripe`."""
    reason: str

    @property
    def command(self) -> str:
        """What sets it, but for the folder: of one that is not there `lfs` would make a file."""
        return shlex.join(("lfs", "setstripe", *self.arguments))


_SMALL_FILES: Final = Stripes(("-c", "1"), "each file is smaller than a stripe: further stripes would only cost round trips")
_SHARDS: Final = Stripes(("-c", "1"), "their number spreads them over the servers, and each is read from one end to the other")
_LARGE: Final = Stripes(
    ("-E", "1G", "-c", "1", "-E", "16G", "-c", "4", "-E", "-1", "-c", "-1", "-S", "4M"),
    "one large file that many ranks read at many places: the larger, the more servers",
)


def advice(layout: str, shards: int | None = None) -> Stripes:
    """The stripes that suit a layout."""
    if layout == "files":
        return _SMALL_FILES
    return _SHARDS if layout == "webdataset" or (shards or 1) >= _MANY_SHARDS else _LARGE


def is_lustre(folder: Path, mounts: Path = _MOUNTS) -> bool:
    """Whether `folder`, or the place where it will be made, lies on Lustre."""
    real = folder.resolve()
    found = (Path("/"), "")
    for line in mounts.read_text(errors="replace").splitlines():
        words = line.split(" ")
        place = Path(words[1].replace("\\040", " ")) if len(words) > 2 else None
        if place and (place == real or place in real.parents) and len(place.parts) >= len(found[0].parts):
            found = (place, words[2])
    return found[1] == "lustre"


def stripe_folder(folder: Path, stripes: Stripes, destination: Path) -> None:
    """Set the layout of an empty folder, which is to become `destination`; raises `CommandError` where it cannot be set."""
    if not is_lustre(folder):
        raise CommandError(f"{destination}: not on Lustre, which alone has stripes; leave out --stripe")
    if shutil.which("lfs") is None:
        what = "--stripe needs Lustre's own command lfs, which is not here"
        raise CommandError(f"{destination}: {what}; leave out --stripe", exit_code=1)
    command = ["lfs", "setstripe", *stripes.arguments, str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LFS_S, check=False)
    except subprocess.TimeoutExpired:
        what = f"no answer from lfs setstripe for {_LFS_S:.0f} s"
        raise CommandError(f"{destination}: {what}; leave out --stripe", exit_code=1) from None
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())[:200]
        raise CommandError(f"{destination}: lfs setstripe failed ({said}); leave out --stripe", exit_code=1)
