"""The classes of ImageNet's validation images, which are in one flat folder or tar, from the list
that is distributed with them.

The devkit's list identifies classes by ILSVRC2012_ID, which does not sort like the wnids: used as
labels, those numbers would make nearly all labels wrong. Here every list is converted to wnids
first.
"""

import csv
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ioprof.converters.sources.archive_checksums import DEVKIT
from ioprof.converters.sources.mat_file import read_structs
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import MAX_TEXT_BYTES, read_class_names
from ioprof.errors import DatasetError
from ioprof.format.dataset import is_plain_name

_META: Final = "data/meta.mat"
_GROUND_TRUTH: Final = "data/ILSVRC2012_validation_ground_truth.txt"
_SYNSETS: Final = "imagenet_2012_validation_synset_labels.txt"
_KAGGLE: Final = "LOC_val_solution.csv"
_LISTS: Final = f"{DEVKIT}.tar.gz, {DEVKIT}/, {_KAGGLE} or {_SYNSETS}"


@dataclass(frozen=True)
class Labels:
    """The class of each validation image."""

    description: str
    """A text for the manifest."""
    classes: dict[str, str]
    """File name without suffix → wnid."""
    wnids: tuple[str, ...]
    """All classes, including those without images."""
    class_names: dict[str, str]

    def wnid_of(self, name: str, where: str) -> str:
        """The class of the image `name`; raises `DatasetError` for an image that is not in the
        list.
        """
        wnid = self.classes.get(Path(name).stem)
        if wnid is None:
            raise DatasetError(
                f"{where}: {name} has no label in {self.description}; "
                "it is not a validation image, or the list belongs to other images"
            )
        return wnid

    def known_wnid(self, name: str, where: str, refusals: Refusals) -> str | None:
        """The class of the image `name`; None where it is not in the list, and refused."""
        try:
            return self.wnid_of(name, where)
        except DatasetError as error:
            refusals.add(name, error)
            return None


def require_labels(where: str, *folders: Path) -> Labels:
    """The labels that `find_labels` finds; raises `DatasetError` where there is no list."""
    labels = find_labels(*folders)
    if labels is None:
        raise missing_labels(where, folders[0])
    return labels


def missing_labels(where: str, folder: Path) -> DatasetError:
    """The error for images that are neither in class folders nor in a list."""
    return DatasetError(
        f"{where}: holds images without classes; put a list of them into {folder}: {_LISTS}"
    )


def find_labels(*folders: Path) -> Labels | None:
    """The labels from the first list in one of `folders`; raises `DatasetError` if that list is
    damaged.
    """
    for folder in folders:
        for name, read in _READERS.items():
            if (folder / name).exists():
                return read(folder / name)
    return None


def _read_devkit_tar(path: Path) -> Labels:
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./").removeprefix(f"{DEVKIT}/")
                if (
                    name in (_META, _GROUND_TRUTH)
                    and member.isreg()
                    and (stream := archive.extractfile(member))
                ):
                    files[name] = _read_bounded(stream, path)
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); get the file again") from None
    return _devkit_labels(path, files.get(_META), files.get(_GROUND_TRUTH))


def _read_devkit_folder(path: Path) -> Labels:
    return _devkit_labels(
        path,
        *(
            _read(path / name) if (path / name).is_file() else None
            for name in (_META, _GROUND_TRUTH)
        ),
    )


def _devkit_labels(path: Path, meta: bytes | None, truth: bytes | None) -> Labels:
    if meta is None or truth is None:
        raise DatasetError(
            f"{path}: lacks {_META if meta is None else _GROUND_TRUTH}; get the devkit again"
        )
    leaves = [synset for synset in read_structs(meta, str(path)) if synset.get("num_children") == 0]
    wnid_of = {
        str(int(number)): str(synset["WNID"])
        for synset in leaves
        if isinstance(number := synset.get("ILSVRC2012_ID"), float)
    }
    words = {
        str(synset["WNID"]): str(synset.get("words") or synset["WNID"])
        for synset in leaves
        if synset.get("WNID")
    }
    if (
        not wnid_of
        or len(set(wnid_of.values())) != len(leaves)
        or not all(map(is_plain_name, wnid_of.values()))
    ):
        raise DatasetError(
            f"{path}: {_META} does not name the classes (synsets with ILSVRC2012_ID and WNID); get"
            " the devkit again"
        )
    classes = {}
    for line, number in enumerate(truth.decode(errors="replace").split(), start=1):
        if number not in wnid_of:
            raise DatasetError(
                f"{path}: {_GROUND_TRUTH} has {number[:20]!r} in line {line}, which is not a class"
                f" of {_META}; get the devkit again"
            )
        classes[f"ILSVRC2012_val_{line:08d}"] = wnid_of[number]
    return Labels(
        f"{path.name} (by ILSVRC2012_ID)", classes, tuple(sorted(wnid_of.values())), words
    )


def _read_synset_list(path: Path) -> Labels:
    wnids = _read(path).decode(errors="replace").split()
    classes = {
        f"ILSVRC2012_val_{line:08d}": _check_wnid(wnid, path, line)
        for line, wnid in enumerate(wnids, start=1)
    }
    return Labels(path.name, classes, tuple(sorted(set(wnids))), read_class_names(path.parent))


def _read_kaggle_list(path: Path) -> Labels:
    rows = list(csv.reader(_read(path).decode(errors="replace").splitlines()))
    if not rows or rows[0][:2] != ["ImageId", "PredictionString"]:
        raise DatasetError(
            f"{path}: its first line is not ImageId,PredictionString; get the file again"
        )
    classes = {}
    for line, row in enumerate(rows[1:], start=2):
        # "wnid x y x y" per object; all objects of an image have its class.
        words = row[1].split()[::5] if len(row) == 2 else []
        if len(set(words)) != 1:
            raise DatasetError(
                f"{path}: line {line} names {len(set(words))} classes, not one; get the file again"
            )
        classes[row[0]] = _check_wnid(words[0], path, line)
    names = read_class_names(path.parent)
    return Labels(path.name, classes, tuple(sorted({*classes.values(), *names})), names)


def _check_wnid(wnid: str, path: Path, line: int) -> str:
    if not is_plain_name(wnid):
        raise DatasetError(
            f"{path}: line {line} has {wnid[:40]!r}, which is not valid as a class name; get the"
            " file again"
        )
    return wnid


def _read(path: Path) -> bytes:
    with path.open("rb") as stream:
        return _read_bounded(stream, path)


def _read_bounded(stream: IO[bytes], path: Path) -> bytes:
    data = stream.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise DatasetError(
            f"{path}: more than {MAX_TEXT_BYTES} bytes, too large for a list of labels"
        )
    return data


_READERS: Final[dict[str, Callable[[Path], Labels]]] = {
    f"{DEVKIT}.tar.gz": _read_devkit_tar,
    DEVKIT: _read_devkit_folder,
    _KAGGLE: _read_kaggle_list,
    _SYNSETS: _read_synset_list,
}
