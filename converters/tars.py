"""The tars of ImageNet: one of one tar per class for training, a flat one for validation. Nothing is unpacked."""

import os
import stat
from collections import Counter
from itertools import chain
from pathlib import Path

from ioprof.converters import archive
from ioprof.converters.listing import ListingWriter
from ioprof.converters.origin import Source, checked_name, is_image, made_source, suffix_of
from ioprof.converters.source_image import SourceImage
from ioprof.converters.validation import required_labels
from ioprof.errors import CommandError, DatasetError


def archive_name(split: str) -> str:
    """What ImageNet calls the tar of a split."""
    return f"ILSVRC2012_img_{split}.tar"


def open_tar(path: Path, split: str) -> Source | None:
    """The source that is the tar `path`, or the tar of `split` in the folder `path`."""
    file = path / archive_name(split) if path.is_dir() else path
    if not file.exists() or file.suffix == ".parquet":
        return None
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a named pipe must not block here
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not archive.is_tar(descriptor):
            raise CommandError(f"{file}: not a tar (a compressed one must be unpacked first: gunzip, unxz, ...)")
        return _source(descriptor, file, status.st_size)
    finally:
        os.close(descriptor)


def _source(descriptor: int, file: Path, size: int) -> Source:
    where, others = str(file.absolute()), Counter[str]()
    name = file.name.encode(errors="replace").decode()
    members = archive.members(descriptor, where, 0, size)
    first = next(members, None)
    if first is None:
        raise DatasetError(f"{file.parent}: no images")
    everything = chain([first], members)
    if first.name.endswith(".tar"):
        images = _nested(descriptor, where, everything, others)
        return made_source(f"{name}, a tar of one tar per class", images, file.parent, file, passed_over=others)
    if not is_image(first.name):
        raise DatasetError(f"{where}: holds {first.name}, where one tar per class is expected")
    found = list(_flat(where, everything, others))
    labels = required_labels(where, file.parent)
    images = ListingWriter()
    images.add(SourceImage(labels.wnid_of(member.name, where), member.name, where, member.offset, member.size) for member in found)
    description = f"{name} with labels of {labels.description}"
    return made_source(
        description, images, file.parent, file, wnids=labels.wnids, class_names=labels.class_names, passed_over=others
    )


def _flat(where: str, members: chain[archive.Member], others: Counter[str]) -> list[archive.Member]:
    found: dict[str, archive.Member] = {}
    for member in members:
        name = checked_name(member.name, where)
        if name in found:
            raise _twice(where, name)
        if is_image(name):
            found[name] = member
        else:
            others[suffix_of(name)] += 1
    return list(found.values())


def _nested(descriptor: int, file: str, members: chain[archive.Member], others: Counter[str]) -> ListingWriter:
    images = ListingWriter()
    seen: set[str] = set()
    for inner in members:
        checked_name(inner.name, file)
        wnid = inner.name.removesuffix(".tar")
        if not inner.name.endswith(".tar") or not wnid:
            raise DatasetError(f"{file}: holds {inner.name}, where one tar per class is expected")
        if wnid in seen:
            raise _twice(file, inner.name)
        seen.add(wnid)
        where = f"{file} ({inner.name})"
        found = _flat(where, chain(archive.members(descriptor, where, inner.offset, inner.offset + inner.size)), others)
        if not found:
            raise DatasetError(f"{where}: holds no image; every class takes a label, so a class without images is refused")
        images.add_class(wnid, [SourceImage(wnid, member.name, file, member.offset, member.size) for member in found])
    return images


def _twice(where: str, name: str) -> DatasetError:
    return DatasetError(f"{where}: holds {name} twice; which of the two is meant cannot be known")
