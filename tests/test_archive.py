"""ImageNet's tar of tars: the same records as from class folders, and protection against hostile
tars."""

import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import jpeg
from strategies import examples

from ioprof.converters import ConvertOptions, convert
from ioprof.converters.sources.source_kinds import open_source
from ioprof.errors import DatasetError, IoprofError

TAR_NAME = "ILSVRC2012_img_train.tar"
Member = tuple[str, bytes] | tarfile.TarInfo


def tar(members: list[Member], form: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar of these files (name and bytes) and special members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            header = tarfile.TarInfo(member[0])
            header.size = len(member[1])
            archive.addfile(header, io.BytesIO(member[1]))
    return stream.getvalue()


def special(name: str, kind: bytes, target: str = "/etc/passwd") -> tarfile.TarInfo:
    """A member that is no file."""
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, target
    return header


def inner(*more: Member) -> bytes:
    return tar([("n01_0.JPEG", jpeg()), *more])


def tars_of(tree: Path, form: int) -> bytes:
    """What the tree would be as a tar of tars."""
    return tar(
        [
            (
                f"{wnid.name}.tar",
                tar([(path.name, path.read_bytes()) for path in sorted(wnid.iterdir())], form),
            )
            for wnid in sorted(tree.iterdir(), reverse=True)
        ],
        form,
    )


@pytest.mark.job
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tars_give_what_the_tree_gives(small_tree, tmp_path, form):
    """For each tar format and order of members, given the file or its folder."""
    (tmp_path / TAR_NAME).write_bytes(tars_of(small_tree, form))
    options = ConvertOptions(workers=1)
    expected = convert(small_tree, tmp_path / "tree", options)
    for source in (tmp_path, tmp_path / TAR_NAME):
        found = convert(source, tmp_path.parent / "tars", ConvertOptions(workers=2, force=True))
        assert (expected.digest, expected.classes) == (found.digest, found.classes), source


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_folders_are_understood(tmp_path, form):
    """GNU and pax each have their own way to write a name of more than 100 bytes; `./` and folders
    say nothing."""
    name = "ü" * 60 + ".JPEG"
    members: list[Member] = [
        special(".", tarfile.DIRTYPE),
        ("./" + name, jpeg()),
        ("b.JPEG", jpeg(seed=1)),
        ("notes.txt", b""),
    ]
    (tmp_path / TAR_NAME).write_bytes(tar([("./n01.tar", tar(members, form))], form))
    assert ["b.JPEG", name] == [image.name for image in open_source(tmp_path, "train").images]


HOSTILE: dict[str, tuple[list[Member], str]] = {
    "a symbolic link": (
        [("n01.tar", inner(special("x.JPEG", tarfile.SYMTYPE)))],
        "x.JPEG is a symbolic link",
    ),
    "a hard link": (
        [("n01.tar", inner(special("x.JPEG", tarfile.LNKTYPE)))],
        "x.JPEG is a hard link",
    ),
    "a device": ([("n01.tar", inner(special("x.JPEG", tarfile.CHRTYPE)))], "x.JPEG is a device"),
    "a pipe": ([("n01.tar", inner(special("x.JPEG", tarfile.FIFOTYPE)))], "x.JPEG is a named pipe"),
    "an outer link": ([special("n01.tar", tarfile.SYMTYPE)], "n01.tar is a symbolic link"),
    "a way out": ([("n01.tar", inner(("../x.JPEG", b"x")))], "'../x.JPEG' cannot be used"),
    "an absolute name": (
        [("n01.tar", inner(("/etc/x.JPEG", b"x")))],
        "'/etc/x.JPEG' cannot be used",
    ),
    "an outer way out": ([("../n01.tar", inner())], "'../n01.tar' cannot be used"),
    "a line break": ([("n01.tar", inner(("a\nb.JPEG", b"x")))], "cannot be used"),
    "an image twice": ([("n01.tar", inner(("n01_0.JPEG", b"x")))], "n01_0.JPEG twice"),
    "a class twice": ([("n01.tar", inner()), ("n01.tar", inner())], "n01.tar twice"),
    "no tar inside": ([("n01.tar", jpeg())], "n01.tar"),
    "images outside": ([("n01.tar", inner()), ("x.JPEG", jpeg())], "one tar per class"),
    "images without classes": ([("x.JPEG", jpeg())], "holds images without classes"),
    "an empty class": ([("n01.tar", inner()), ("n02.tar", tar([]))], "holds no image"),
    "nothing": ([("n01.tar", tar([]))], "holds no image"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tar_is_refused(tmp_path, name):
    """One line that names the member; bad input is exit code 2; nothing is written."""
    members, words = HOSTILE[name]
    (tmp_path / TAR_NAME).write_bytes(tar(members))
    with pytest.raises(DatasetError) as refusal:
        convert(tmp_path / TAR_NAME, tmp_path / "dataset", ConvertOptions(workers=1))
    assert words in str(refusal.value)
    assert [TAR_NAME] == [path.name for path in tmp_path.iterdir()]


def test_a_tar_that_was_cut_is_refused(tmp_path):
    """Wherever: a cut between two members looks like an end to most readers, and would lose images
    without a word."""
    whole = tar([("n01.tar", inner()), ("n02.tar", inner())])
    ends = whole.rstrip(b"\0")
    for length in range(512, len(ends), 512):
        (tmp_path / TAR_NAME).write_bytes(whole[:length])
        with pytest.raises(DatasetError, match=r"cut short|damaged"):
            open_source(tmp_path, "train")


@settings(max_examples=examples(200))
@given(
    place=st.integers(0, 4095),
    value=st.binary(min_size=1, max_size=16),
    form=st.sampled_from([0, 1, 2]),
)
def test_a_damaged_tar_is_read_or_refused(tmp_path_factory, place, value, form):
    """Any bytes anywhere: images within the file, or an error of ioprof; no other exception."""
    data = bytearray(tar([("n01.tar", inner(("long" * 40 + ".JPEG", b"x" * 700)))], form))
    data[place : place + len(value)] = value
    folder = tmp_path_factory.mktemp("tars")
    (folder / TAR_NAME).write_bytes(data)
    try:
        source = open_source(folder, "train")
    except IoprofError:
        return
    for image in source.images:
        assert image.size is not None
        assert 0 <= image.offset <= image.offset + image.size <= len(data)
