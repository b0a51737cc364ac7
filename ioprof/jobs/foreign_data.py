"""Data that ioprof did not convert, read where it is: an index of it, made once in the user's cache
folder.

Nothing of the data is copied, and its images are not read. A tree of class folders gets an index of
the layout `files`, with a link to the folder; everything else whose records lie whole in files gets
one of the layout `indexed`.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from ioprof import __version__
from ioprof.errors import CommandError, DatasetError
from ioprof.files import cache_folder, remove_own
from ioprof.format.dataset import (
    INDEX_DIGEST,
    MANIFEST_NAME,
    Dataset,
    ImageClass,
    ImageFormat,
    quantiles_of,
)
from ioprof.format.listed_files import KINDS, Stamp
from ioprof.format.record_index import ENTRY
from ioprof.reporter import Reporter

if TYPE_CHECKING:
    from ioprof.converters.sources.source import Source

_SPLIT: Final = "train"
_LARGEST_RECORD: Final = 2**32 - 1
_STAMPS: Final = "stamps.json"
_OWN: Final = re.compile(
    rf"{re.escape(MANIFEST_NAME)}|{re.escape(_STAMPS)}|{_SPLIT}(\.(txt|index|names|files))?"
)
"""What is in the folder of an index; the folder of class folders is a link."""


@dataclass(frozen=True)
class _Records:
    """Where each record lies, (records,) each, and its name."""

    entries: "np.ndarray[tuple[int], np.dtype[np.void]]"
    names: list[str]
    files: list[str]


def open_data(path: Path, environment: Mapping[str, str], reporter: Reporter) -> Dataset:
    """The dataset at `path`, or one that reads the data of another program there where it is.

    Raises `DatasetError` if it is neither, and `CommandError` with the command to convert it if it
    cannot be read at random.
    """
    if (path / MANIFEST_NAME).exists() or not path.exists():
        return Dataset.load(path)
    folder = _cache_folder(path, environment)
    if (known := _known(folder)) is not None:
        reporter.say(f"{path}: read where it is, by the index in {folder}")
        return known
    # most runs have a dataset, and need not load what lists others
    from ioprof.converters.sources.source_kinds import (
        UnknownSourceError,
        detect,
    )

    try:
        kind, source = detect(path, _SPLIT, on_error="quarantine")
    except UnknownSourceError:
        return Dataset.load(path)  # which says what a dataset is
    if source.images.kind not in KINDS:  # the others cannot be read one by one
        raise CommandError(
            f"{path}: {source.description}, which cannot be read at random; convert it: ioprof"
            f" convert imagenet {path} {path.resolve().name}-dataset --layout"
            f" {'parquet' if kind == 'parquet' else 'raw'}"
        )
    reporter.say(
        f"{path}: {source.description}: no dataset of ioprof; making an index of it in {folder}"
        " (once)"
    )
    for name, reason in source.refused[:1]:
        reporter.say(
            f"{path}: {len(source.refused)} files or records are left out; the first: {name}:"
            f" {reason}"
        )
    return _make_index(folder, kind, source, path, reporter)


def _cache_folder(path: Path, environment: Mapping[str, str]) -> Path:
    base = cache_folder(environment)
    real = os.path.realpath(path)
    return base / f"index-{hashlib.sha256(os.fsencode(real)).hexdigest()[:16]}"


def _known(folder: Path) -> Dataset | None:
    """The index that was made before, if nothing of what it lists has changed since."""
    try:
        stamps = [Stamp(*stamp) for stamp in json.loads((folder / _STAMPS).read_bytes())]
        return (
            Dataset.load(folder) if all(Stamp.of(stamp.path) == stamp for stamp in stamps) else None
        )
    except (OSError, ValueError, TypeError, DatasetError):
        return None


def _make_index(
    folder: Path, kind: str, source: "Source", path: Path, reporter: Reporter
) -> Dataset:
    from ioprof.converters.job.destination import new_folder

    with reporter.progress("index", len(source.images)) as advance:
        found = _list_records(source)
        advance(len(source.images))
    root = f"{source.root.absolute()}/"
    # else a flat folder with a list
    is_tree = kind == "tree" and all(place.startswith(root) for place in source.images.places)
    left = remove_own(folder, _OWN.fullmatch) if folder.exists() else []
    if left:
        raise CommandError(
            f"{folder / left[0]}: is no file of an index of ioprof, and the index is made there;"
            " move it elsewhere"
        )
    with new_folder(folder) as made:
        dataset = _manifest(made, "files" if is_tree else "indexed", source, found, path)
        if is_tree:
            _write_tree_index(dataset, source, found)
        else:
            found.entries.tofile(dataset.index_path)
            dataset.names_path.write_text(
                "".join(f"{name}\n" for name in found.names), encoding="utf-8", newline="\n"
            )
            files = [
                (stamp.path, stamp.size, stamp.modified_ns) for stamp in map(Stamp.of, found.files)
            ]
            dataset.files_path.write_text(json.dumps({"kind": source.images.kind, "files": files}))
        # Folders too: what is added to one changes its time.
        listed = dict.fromkeys(
            [str(path.absolute()), str(source.root.absolute()), *source.images.places]
        )
        (made / _STAMPS).write_text(
            json.dumps(
                [(stamp.path, stamp.size, stamp.modified_ns) for stamp in map(Stamp.of, listed)]
            )
        )
        dataset.save()
    return Dataset.load(folder)


def _list_records(source: "Source") -> _Records:
    labels = {wnid: label for label, wnid in enumerate(source.wnids)}
    entries = np.zeros(len(source.images), ENTRY)
    names: list[str] = []
    numbers: dict[str, int] = {}
    for place, image in enumerate(source.images):
        size = os.stat(image.file).st_size if image.size is None else image.size
        if size > _LARGEST_RECORD:
            raise DatasetError(f"{image}: {size} bytes, too large for an image")
        file = numbers.setdefault(image.file, len(numbers))
        entries[place] = (
            0 if image.size is None else image.offset,
            size,
            labels[image.wnid],
            file,
            0,
        )
        names.append(image.name)
    return _Records(entries, names, list(numbers))


def _manifest(folder: Path, layout: str, source: "Source", found: _Records, path: Path) -> Dataset:
    digest = hashlib.sha256(json.dumps(found.files).encode(errors="surrogateescape"))
    digest.update(found.entries.tobytes())
    lengths = found.entries["length"].astype(np.int64)
    return Dataset(
        path=folder,
        name=path.resolve().name.encode(errors="replace").decode(),
        split=_SPLIT,
        layout=layout,
        image=ImageFormat("original", "source"),
        records=len(lengths),
        bytes=max(1, int(lengths.sum())),
        classes=tuple(
            ImageClass(wnid, source.class_names.get(wnid, wnid)) for wnid in source.wnids
        ),
        label_convention="sorted_wnid",
        record_bytes_quantiles=quantiles_of(lengths.tolist()),
        digest=f"{INDEX_DIGEST}{digest.hexdigest()}",
        source=f"{source.description}, read where it is",
        version=__version__,
        shuffle_seed=0,
        quarantined=tuple(each._asdict() for each in source.refused),
    )


def _write_tree_index(dataset: Dataset, source: "Source", found: _Records) -> None:
    labelled = zip(found.names, found.entries["label"].tolist(), strict=True)
    lines = (f"{_SPLIT}/{source.wnids[label]}/{name} {label}\n" for name, label in labelled)
    dataset.index_path.write_text("".join(lines), encoding="utf-8", newline="\n")
    (dataset.path / _SPLIT).symlink_to(source.root.absolute())
