"""ImageNet's tars: for training a tar that contains one tar per class, for validation a flat one.
Nothing is unpacked.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from ioprof.converters.sources import tar_members
from ioprof.converters.sources.listing import ListingWriter
from ioprof.converters.sources.refusals import Refusals
from ioprof.converters.sources.source import Source, is_image, is_usable, make_source, suffix_of
from ioprof.converters.sources.source_image import SourceImage
from ioprof.converters.sources.validation_labels import require_labels
from ioprof.errors import CommandError, DatasetError


def archive_name(split: str) -> str:
    """The file name of a split's tar in ImageNet's distribution."""
    return f"ILSVRC2012_img_{split}.tar"


def open_tar(path: Path, split: str, refusals: Refusals) -> Source | None:
    """The tar `path`, or the tar of `split` in the folder `path`, as a source."""
    file = path / archive_name(split) if path.is_dir() else path
    if not file.exists() or file.suffix == ".parquet":
        return None
    # a named pipe must not block here
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not tar_members.is_tar(descriptor):
            raise CommandError(
                f"{file}: not a tar (a compressed one must be unpacked first: gunzip, unxz, ...)"
            )
        return _source(descriptor, file, status.st_size, refusals)
    finally:
        os.close(descriptor)


def _source(descriptor: int, file: Path, size: int, refusals: Refusals) -> Source:
    where, others = str(file.absolute()), Counter[str]()
    name = file.name.encode(errors="replace").decode()
    members = tar_members.members(descriptor, where, 0, size, refusals.add)
    first = next(members, None)
    if first is None:
        raise DatasetError(f"{file.parent}: no images")
    everything = chain([first], members)
    if first.name.endswith(".tar"):
        images, wnids = _list_nested(descriptor, where, everything, others, refusals)
        return make_source(
            f"{name}, a tar of one tar per class",
            images,
            file.parent,
            file,
            wnids=wnids,
            passed_over=others,
        )
    if not is_image(first.name):
        raise DatasetError(f"{where}: holds {first.name}, where one tar per class is expected")
    found = _list_flat(where, everything, others, refusals)
    labels = require_labels(where, file.parent)
    images = ListingWriter()
    for_labels = [
        (member, wnid)
        for member in found
        if (wnid := labels.known_wnid(member.name, where, refusals))
    ]
    images.add(
        SourceImage(wnid, member.name, where, member.offset, member.size)
        for member, wnid in for_labels
    )
    description = f"{name} with labels of {labels.description}"
    return make_source(
        description,
        images,
        file.parent,
        file,
        wnids=labels.wnids,
        class_names=labels.class_names,
        passed_over=others,
    )


def _list_flat(
    where: str, members: Iterable[tar_members.Member], others: Counter[str], refusals: Refusals
) -> list[tar_members.Member]:
    found: dict[str, tar_members.Member] = {}
    twice: set[str] = set()
    for member in members:
        if not is_usable(member.name, where, refusals):
            continue
        if member.name in found:
            refusals.add(member.name, _duplicate(where, member.name))
            twice.add(member.name)
        elif is_image(member.name):
            found[member.name] = member
        else:
            others[suffix_of(member.name)] += 1
    return [member for name, member in found.items() if name not in twice]


def _list_nested(
    descriptor: int,
    file: str,
    members: Iterable[tar_members.Member],
    others: Counter[str],
    refusals: Refusals,
) -> tuple[ListingWriter, list[str]]:
    """The images, and all classes: one whose images are all left out keeps its label."""
    images = ListingWriter()
    seen: set[str] = set()
    for inner in members:
        if not is_usable(inner.name, file, refusals):
            continue
        wnid = inner.name.removesuffix(".tar")
        if not inner.name.endswith(".tar") or not wnid:
            refusals.add(
                inner.name,
                DatasetError(f"{file}: holds {inner.name}, where one tar per class is expected"),
            )
            continue
        if wnid in seen:
            raise _duplicate(file, inner.name)
        seen.add(wnid)
        where = f"{file} ({inner.name})"
        refused = len(refusals.found)
        inside = tar_members.members(
            descriptor, where, inner.offset, inner.offset + inner.size, refusals.add
        )
        found = _list_flat(where, inside, others, refusals)
        if not found and len(refusals.found) == refused:
            raise DatasetError(
                f"{where}: holds no image; every class is given a label, so a class without images"
                " is refused"
            )
        images.add_class(
            wnid,
            [SourceImage(wnid, member.name, file, member.offset, member.size) for member in found],
        )
    return images, sorted(seen)


def _duplicate(where: str, name: str) -> DatasetError:
    return DatasetError(
        f"{where}: holds {name} twice; it is unknown which of the two is right: get the file again"
    )
