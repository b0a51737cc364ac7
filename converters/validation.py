"""The classes of ImageNet's validation images, which lie in one flat folder or tar: whoever ships them ships a list too.

The devkit's list numbers the classes by ILSVRC2012_ID, which is not the order of their wnids: taken for labels, those numbers
make a dataset whose labels are nearly all wrong. Here every list is turned into wnids first.
"""

import csv
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from ioprof.converters.known_archives import DEVKIT
from ioprof.converters.matlab import read_structs
from ioprof.converters.origin import MAX_TEXT_BYTES, class_names_in
from ioprof.dataset import is_plain_name
from ioprof.errors import DatasetError

_META: Final = "data/meta.mat"
_GROUND_TRUTH: Final = "data/ILSVRC2012_validation_ground_truth.txt"
_SYNSETS: Final = "imagenet_2012_validation_synset_labels.txt"
_KAGGLE: Final = "LOC_val_solution.csv"
_LISTS: Final = f"{DEVKIT}.tar.gz, {DEVKIT}/, {_KAGGLE} or {_SYNSETS}"


@dataclass(frozen=True)
class Labels:
    """The class of each validation image."""

    description: str
    """In words, for the manifest."""
    classes: dict[str, str]
    """Name of an image without its suffix → wnid."""
    wnids: tuple[str, ...]
    """All classes, also those of which no image is there."""
    class_names: dict[str, str]

    def wnid_of(self, name: str, where: str) -> str:
        """The class of the image `name`; raises `DatasetError` for an image that the list does not know."""
        wnid = self.classes.get(Path(name).stem)
        if wnid is None:
            raise DatasetError(
                f"{where}: {name} has no label in {self.description}; it is no validation image, or the list is another's"
            )
        return wnid


def required_labels(where: str, *folders: Path) -> Labels:
    """The same as `labels_in`, which there has to be."""
    labels = labels_in(*folders)
    if labels is None:
        raise no_labels(where, folders[0])
    return labels


def no_labels(where: str, folder: Path) -> DatasetError:
    """What to say when images lie in no class folders and there is no list."""
    return DatasetError(f"{where}: holds images without classes; put a list of them into {folder}: {_LISTS}")


def labels_in(*folders: Path) -> Labels | None:
    """The labels from the first list that lies in one of `folders`; raises `DatasetError` for one that is damaged."""
    for folder in folders:
        for name, read in _READERS.items():
            if (folder / name).exists():
                return read(folder / name)
    return None


def _of_devkit_tar(path: Path) -> Labels:
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.removeprefix("./").removeprefix(f"{DEVKIT}/")
                if name in (_META, _GROUND_TRUTH) and member.isreg() and (stream := archive.extractfile(member)):
                    files[name] = _bounded(stream, path)
    except (tarfile.TarError, EOFError, zlib.error, ValueError, OSError) as error:
        raise DatasetError(f"{path}: cannot be read ({error}); get the file again") from None
    return _of_devkit(path, files.get(_META), files.get(_GROUND_TRUTH))


def _of_devkit_folder(path: Path) -> Labels:
    return _of_devkit(path, *(_read(path / name) if (path / name).is_file() else None for name in (_META, _GROUND_TRUTH)))


def _of_devkit(path: Path, meta: bytes | None, truth: bytes | None) -> Labels:
    if meta is None or truth is None:
        raise DatasetError(f"{path}: lacks {_META if meta is None else _GROUND_TRUTH}; get the devkit again")
    leaves = [synset for synset in read_structs(meta, str(path)) if synset.get("num_children") == 0]
    wnid_of = {
        str(int(number)): str(synset["WNID"]) for synset in leaves if isinstance(number := synset.get("ILSVRC2012_ID"), float)
    }
    words = {str(synset["WNID"]): str(synset.get("words") or synset["WNID"]) for synset in leaves if synset.get("WNID")}
    if not wnid_of or len(set(wnid_of.values())) != len(leaves) or not all(map(is_plain_name, wnid_of.values())):
        raise DatasetError(f"{path}: {_META} does not name the classes (synsets with ILSVRC2012_ID and WNID); get the devkit again")
    classes = {}
    for line, number in enumerate(truth.decode(errors="replace").split(), start=1):
        if number not in wnid_of:
            raise DatasetError(
                f"{path}: {_GROUND_TRUTH} has {number[:20]!r} in line {line}, no class of {_META}; get the devkit again"
            )
        classes[f"ILSVRC2012_val_{line:08d}"] = wnid_of[number]
    return Labels(f"{path.name} (by ILSVRC2012_ID)", classes, tuple(sorted(wnid_of.values())), words)


def _of_synset_list(path: Path) -> Labels:
    wnids = _read(path).decode(errors="replace").split()
    classes = {f"ILSVRC2012_val_{line:08d}": _checked(wnid, path, line) for line, wnid in enumerate(wnids, start=1)}
    return Labels(path.name, classes, tuple(sorted(set(wnids))), class_names_in(path.parent))


def _of_kaggle(path: Path) -> Labels:
    rows = list(csv.reader(_read(path).decode(errors="replace").splitlines()))
    if not rows or rows[0][:2] != ["ImageId", "PredictionString"]:
        raise DatasetError(f"{path}: does not begin with the line ImageId,PredictionString; get the file again")
    classes = {}
    for line, row in enumerate(rows[1:], start=2):
        # "wnid x y x y", once per object; all objects of an image are of its class.
        words = row[1].split()[::5] if len(row) == 2 else []
        if len(set(words)) != 1:
            raise DatasetError(f"{path}: line {line} names {len(set(words))} classes, not one; get the file again")
        classes[row[0]] = _checked(words[0], path, line)
    names = class_names_in(path.parent)
    return Labels(path.name, classes, tuple(sorted({*classes.values(), *names})), names)


def _checked(wnid: str, path: Path, line: int) -> str:
    if not is_plain_name(wnid):
        raise DatasetError(f"{path}: line {line} has {wnid[:40]!r}, which cannot be a class; get the file again")
    return wnid


def _read(path: Path) -> bytes:
    with path.open("rb") as stream:
        return _bounded(stream, path)


def _bounded(stream: IO[bytes], path: Path) -> bytes:
    data = stream.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise DatasetError(f"{path}: more than {MAX_TEXT_BYTES} bytes, too large for a list of labels")
    return data


_READERS: Final[dict[str, Callable[[Path], Labels]]] = {
    f"{DEVKIT}.tar.gz": _of_devkit_tar,
    DEVKIT: _of_devkit_folder,
    _KAGGLE: _of_kaggle,
    _SYNSETS: _of_synset_list,
}
