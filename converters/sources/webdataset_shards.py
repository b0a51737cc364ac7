"""Tars of samples, as webdataset writes them, with any names; and tars of class folders.

A sample is the members that share a key, which ends at the first dot after the last slash: an
image, and its label as `.cls` (digits, or the name of the class), `.json` (a key such as `label`),
or `.txt`. Where an image has no such neighbour, its folder is its class.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ioprof.converters.sources import tar_members
from ioprof.converters.sources.foreign_files import find_shards, head_of, shown_name
from ioprof.converters.sources.imagenet_tars import archive_name
from ioprof.converters.sources.record_table import RecordTable
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import IMAGE_SUFFIXES, Source, is_image, suffix_of
from ioprof.errors import CommandError, DatasetError

_SUFFIXES: Final = (".tar",)
_COMPRESSED: Final = (".tar.gz", ".tgz", ".tar.xz", ".tar.zst", ".tar.bz2")
_LABELS: Final = ("cls", "json", "txt", "label", "index")
_KEYS: Final = ("label", "cls", "class", "class_id", "target", "wnid", "synset")
_MAX_LABEL_BYTES: Final = 1 << 20
_LABEL_ORDER: Final = {suffix: rank for rank, suffix in enumerate(_LABELS)}


class _Label(NamedTuple):
    number: int | None
    name: str


def open_webdataset(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The tar `path`, or the tars in the folder `path` that belong to `split`, as a source; None
    for ImageNet's own tars.
    """
    if path.is_dir() and (path / archive_name(split)).exists():
        return None
    files = find_shards(path, split, _SUFFIXES)
    if not files and (packed := find_shards(path, split, _COMPRESSED)):
        raise CommandError(
            f"{packed[0]}: compressed tars cannot be read at random; unpack them first (gunzip,"
            " unxz, zstd -d, ...)"
        )
    if not files or not _is_webdataset(files[0]):
        return None
    table, others = RecordTable("file", refusals), Counter[str]()
    for file in files:
        _add_shard(file, table, others, refusals)
    source = table.finish(f"{len(files)} webdataset tars of {shown_name(path)}", path)
    source.passed_over.update(others.most_common())
    return source


def split_key(name: str) -> tuple[str, str]:
    """Key and extension of a member, as webdataset divides them."""
    folder, slash, base = name.rpartition("/")
    key, _, extension = base.partition(".")
    return folder + slash + key, extension.lower()


def parse_label(extension: str, content: bytes) -> _Label | None:
    """The label in a member of a sample; None if there is none."""
    if extension == "json":
        try:
            keys = json.loads(content)
        except (ValueError, RecursionError):
            return None
        if not isinstance(keys, dict):
            return None
        values = [
            keys[key]
            for key in _KEYS
            if isinstance(keys.get(key), int | str) and not isinstance(keys.get(key), bool)
        ]
        number = next((value for value in values if isinstance(value, int)), None)
        name = next((value for value in values if isinstance(value, str)), "")
        return _Label(number, name) if values else None
    text = content.decode(errors="replace").strip()
    if not text or len(text) > 255:
        return None
    is_number = len(text) < 10 and text.isascii() and text.isdigit()
    return _Label(int(text), "") if is_number else _Label(None, text)


def _is_webdataset(file: Path) -> bool:
    """Whether a tar holds samples or class folders, and not what ImageNet's own tars hold: tars, or
    images alone.
    """
    if not _looks_like_tar(file):
        return False
    with file.open("rb") as stream:
        found = tar_members.members(
            stream.fileno(), str(file), 0, os.fstat(stream.fileno()).st_size, lambda *_: None
        )
        try:
            first, second = next(found, None), next(found, None)
        except DatasetError:
            return False  # the reader of ImageNet's tars says what is wrong
    if first is None or first.name.endswith(".tar"):
        return False
    extension = split_key(first.name)[1]
    if extension.rpartition(".")[2] in _LABELS or (
        "/" in first.name and is_image(first.name.rpartition("/")[2])
    ):
        return True
    return second is not None and split_key(second.name)[0] == split_key(first.name)[0]


def _looks_like_tar(file: Path) -> bool:
    return head_of(file)[257:262] == b"ustar"


def _add_shard(file: Path, table: RecordTable, others: Counter[str], refusals: Refusals) -> None:
    where = str(file.absolute())
    with file.open("rb") as stream:
        descriptor = stream.fileno()
        size = os.fstat(descriptor).st_size
        for key, sample in _samples(tar_members.members(descriptor, where, 0, size, refusals.add)):
            _add_sample(descriptor, where, key, sample, table, others)


def _samples(
    members: Iterator[tar_members.Member],
) -> Iterator[tuple[str, list[tar_members.Member]]]:
    current, sample = "", list[tar_members.Member]()
    for member in members:
        key, _ = split_key(member.name)
        if sample and key != current:
            yield current, sample
            sample = []
        current = key
        sample.append(member)
    if sample:
        yield current, sample


def _add_sample(
    descriptor: int,
    where: str,
    key: str,
    sample: list[tar_members.Member],
    table: RecordTable,
    others: Counter[str],
) -> None:
    images, labels = [], []
    for member in sample:
        extension = split_key(member.name)[1].rpartition(".")[2]
        if f".{extension}" in IMAGE_SUFFIXES:
            images.append((member, extension))
        elif extension in _LABELS:
            labels.append((_LABEL_ORDER[extension], extension, member))
        else:
            others[suffix_of(member.name)] += 1
    if not images:
        return
    found = _Label(None, "")
    for _, extension, member in sorted(labels, key=lambda each: each[0]):
        if member.size <= _MAX_LABEL_BYTES:
            label = parse_label(extension, os.pread(descriptor, member.size, member.offset))
            # A description beside the number may name the class.
            if label is not None:
                found = _Label(
                    label.number if found.number is None else found.number, found.name or label.name
                )
    if found == _Label(None, ""):
        found = _Label(None, key.rpartition("/")[0].rpartition("/")[2])
    image, extension = images[0]
    others.update(suffix_of(member.name) for member, _ in images[1:])
    name = image.name if split_key(image.name)[1] == extension else f"{key}.{extension}"
    table.add(where, image.offset, image.size, name, label=found.number, class_name=found.name)
