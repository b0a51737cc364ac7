"""The MD5 sums of the archives that ImageNet is distributed in."""

import hashlib
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError

DEVKIT: Final = "ILSVRC2012_devkit_t12"

MD5: Final = {
    "ILSVRC2012_img_train.tar": "1d675b47d978889d74fa0da5fadfb00e",
    "ILSVRC2012_img_val.tar": "29b22e2961454d5413ddabcf34fc5622",
    f"{DEVKIT}.tar.gz": "fa75699e90414af021442c21a62c3abf",
}
"""The values that torchvision's `ImageNet` checks."""


def check_archives(path: Path, split: str, known: dict[str, str] = MD5) -> None:
    """Read the archive at `path`, or those in it that `split` needs; raises `CommandError` when an
    MD5 differs from `known`.
    """
    folder = path if path.is_dir() else path.parent
    tar = path if path.is_file() else folder / f"ILSVRC2012_img_{split}.tar"
    wanted = [
        file for file in (tar, folder / f"{DEVKIT}.tar.gz") if file.is_file() and file.name in known
    ]
    if not wanted:
        raise CommandError(
            f"{path}: no archive whose MD5 is known ({', '.join(known)}); leave out --check-md5"
        )
    for file in wanted:
        with file.open("rb") as stream:
            found = hashlib.file_digest(
                stream, lambda: hashlib.md5(usedforsecurity=False)
            ).hexdigest()
        if found != known[file.name]:
            raise CommandError(
                f"{file}: MD5 is {found}, ImageNet's is {known[file.name]}; get the file again",
                exit_code=1,
            )
