"""The manifest, the index and the LMDB value: what is written is read back, and nothing hostile
gets through."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ioprof.errors import DatasetError
from ioprof.foreign.tensorprotos import MAX_LABEL, decode, encode_image
from ioprof.format.dataset import (
    Dataset,
    ImageClass,
    ImageFormat,
    RecordDigest,
    is_plain_name,
    quantiles_of,
    read_index,
)

FUZZED = settings(max_examples=int(os.environ.get("IOPROF_FUZZED", "100")))


def a_dataset(path: Path, **changes: Any) -> Dataset:
    """A manifest of three records in two classes."""
    dataset = Dataset(
        path=path,
        name="small",
        split="train",
        layout="files",
        image=ImageFormat("original", "source"),
        records=3,
        bytes=60,
        classes=(ImageClass("n01", "tench"), ImageClass("n02", "gold fish")),
        label_convention="sorted_wnid",
        record_bytes_quantiles=quantiles_of([10, 20, 30]),
        digest=RecordDigest().text(),
        source="nowhere",
        version="0",
        shuffle_seed=0,
        quarantined=({"name": "n01/x.JPEG", "reason": "empty file"},),
    )
    return replace(dataset, **changes)


# ------------------------------------------------------------------------------------- the manifest


def test_a_manifest_is_read_back_as_it_was_saved(tmp_path):
    """Saving and loading change nothing."""
    dataset = a_dataset(tmp_path)
    dataset.save()
    assert dataset == Dataset.load(tmp_path)
    assert ["dataset.json"] == [path.name for path in tmp_path.iterdir()]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@FUZZED
@given(data=st.data())
def test_a_manifest_with_any_other_value_is_loaded_or_refused(tmp_path_factory, data):
    """Whatever stands at any place of the manifest: a Dataset of the declared types, or a
    DatasetError that names the file."""
    folder = tmp_path_factory.mktemp("manifest")
    a_dataset(folder).save()
    keys = json.loads((folder / "dataset.json").read_text())
    place = data.draw(st.sampled_from([None, *keys]))
    value = data.draw(JSON)
    keys = value if place is None else {**keys, place: value}
    (folder / "dataset.json").write_text(json.dumps(keys))
    try:
        loaded = Dataset.load(folder)
    except DatasetError as error:
        assert "dataset.json" in str(error)  # noqa: PT017
    else:
        assert isinstance(loaded.records, int)
        assert is_plain_name(loaded.split)
        assert all(is_plain_name(entry.wnid) for entry in loaded.classes)


def test_half_of_a_surrogate_pair_is_refused(tmp_path):
    """It could not be stored again; a whole pair is one character."""
    for text, is_good in (("\\ud83d\\ude00", True), ("\\ud83d", False), ("\\uD83D x", False)):
        a_dataset(tmp_path).save()
        path = tmp_path / "dataset.json"
        path.write_text(path.read_text().replace("nowhere", text))
        if is_good:
            assert Dataset.load(tmp_path).source.encode() == b"\xf0\x9f\x98\x80"
            continue
        with pytest.raises(DatasetError, match=r"dataset\.json: not JSON .*surrogates not allowed"):
            Dataset.load(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b"1" * 5000, b"null", b"{}"]
)
def test_what_is_no_manifest_is_refused(tmp_path, content):
    """Cut, binary, nested without end, a number without end, or something else altogether."""
    (tmp_path / "dataset.json").write_bytes(content)
    with pytest.raises(DatasetError, match=r"dataset\.json"):
        Dataset.load(tmp_path)


def test_what_is_no_dataset_folder_says_what_to_type(tmp_path):
    """A missing folder, a file, and a folder of something else."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match=r"no such folder.*ioprof convert imagenet"):
        Dataset.load(tmp_path / "missing")
    with pytest.raises(DatasetError, match="not a folder"):
        Dataset.load(tmp_path / "file")
    with pytest.raises(DatasetError, match=r"no dataset\.json.*ioprof convert imagenet"):
        Dataset.load(tmp_path)


@given(st.text(max_size=300))
def test_a_plain_name_stays_in_its_folder(text):
    """A name that passes is one path component, one line, and valid UTF-8 of at most 255 bytes."""
    if is_plain_name(text):
        assert (Path("/folder") / text).parent == Path("/folder")
        assert text not in (".", "..")
        assert [text] == text.splitlines()
        assert len(text.encode()) <= 255


# ---------------------------------------------------------------------------------------- the index


GOOD = "train/n01/a.JPEG 0\ntrain/n02/with space.JPEG 1\ntrain/n01/c.JPEG 0\n"


def test_an_index_gives_paths_and_labels(tmp_path):
    """In order, and a name may hold spaces."""
    dataset = a_dataset(tmp_path)
    dataset.index_path.write_text(GOOD)
    assert (
        ["train/n01/a.JPEG", "train/n02/with space.JPEG", "train/n01/c.JPEG"],
        [0, 1, 0],
    ) == read_index(dataset)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train/n01/../../../etc/passwd 0", "line 3"),
        ("/etc/passwd 0", "line 3"),
        ("train/n01/.. 0", "line 3"),
        ("train/n01/ 0", "line 3"),
        ("train/n01/a\0b 0", "line 3"),
        ("train/n01/c.JPEG 1", "no file of train/n02/"),
        ("train/n01/c.JPEG 2", "label '2', not 0 to 1"),
        ("train/n01/c.JPEG -1", "label"),
        ("train/n01/c.JPEG ²", "label"),
        ("train/n01/c.JPEG " + "9" * 500, "label"),
        ("train/n01/c.JPEG", "label"),
        ("", "label"),
        ("train/n01/c.JPEG 0\ntrain/n01/d.JPEG 0", "4 whole lines for 3 records"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path, line, words):
    """Paths that leave their class folder, labels out of range, a line too many."""
    dataset = a_dataset(tmp_path)
    dataset.index_path.write_text(GOOD.replace("train/n01/c.JPEG 0", line))
    with pytest.raises(DatasetError) as refusal:
        read_index(dataset)
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "content", [b"", GOOD[:-1].encode(), GOOD[:20].encode(), b"\xff" + GOOD.encode(), b"x" * 10_000]
)
def test_a_cut_or_foreign_index_is_refused(tmp_path, content):
    """Also one that is far too large for its records, before it is read."""
    dataset = a_dataset(tmp_path)
    dataset.index_path.write_bytes(content)
    with pytest.raises(DatasetError):
        read_index(dataset)


def test_a_missing_index_is_refused(tmp_path):
    """By name."""
    with pytest.raises(DatasetError, match=r"train\.txt"):
        read_index(a_dataset(tmp_path))


# -------------------------------------------------------------------------------------- LMDB values


@given(st.binary(max_size=300), st.integers(0, MAX_LABEL))
def test_an_encoded_image_comes_back(data, label):
    """Decoding inverts encoding."""
    image, shape, found = decode(encode_image(data, label))
    assert (data, None, label) == (bytes(image), shape, found)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, MAX_LABEL))
def test_a_raw_image_comes_back(height, width, channels, label):
    """With its shape."""
    data = bytes(range(height * width * channels % 256)) or b"\1"
    data = (data * (height * width * channels))[: height * width * channels]
    image, shape, found = decode(encode_image(data, label, (height, width, channels)))
    assert (data, (height, width, channels), label) == (bytes(image), shape, found)


def test_the_bytes_are_those_of_caffe2():
    """The two values worked out by hand from caffe2.proto."""
    assert bytes.fromhex("0a0a 0801 1004 3204") + b"JPEG" + bytes.fromhex(
        "0a08 0801 1002 2202 e707"
    ) == encode_image(b"JPEG", 999)
    raw = (
        bytes.fromhex("0a16 0802 0802 0803 1003 2a0c")
        + bytes(12)
        + bytes.fromhex("0a08 0801 1002 2202 e707")
    )
    assert raw == encode_image(bytes(12), 999, (2, 2, 3))
    assert encode_image(b"J", 0).endswith(bytes.fromhex("0a07 0801 1002 2201 00"))


def test_decoding_copies_nothing():
    """The image is a view into the value."""
    value = bytearray(encode_image(b"JPEG", 1))
    image, _, _ = decode(memoryview(value))
    value[value.index(b"JPEG")] = ord("X")
    assert b"XPEG" == bytes(image)


def test_what_cannot_be_encoded_is_refused():
    """A label that is no 32-bit count, and a shape that does not fit."""
    for arguments in ((b"x", -1), (b"x", MAX_LABEL + 1), (b"x", 0, (1, 1, 3)), (b"", 0, (0, 1, 3))):
        with pytest.raises(DatasetError):
            encode_image(*arguments)


def refuses_or_decodes(value: bytes) -> None:
    try:
        image, shape, label = decode(value)
    except DatasetError:
        return
    assert bytes(image) in value
    assert shape is None or shape[0] * shape[1] * shape[2] == len(image)
    assert 0 <= label <= MAX_LABEL


@FUZZED
@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(value):
    """Nothing but DatasetError is ever raised."""
    refuses_or_decodes(value)


@FUZZED
@given(st.binary(max_size=20), st.integers(0, 1 << 20), st.data())
def test_damaged_values_are_decoded_or_refused(data, label, draw):
    """Cut anywhere, or with any byte changed."""
    value = bytearray(
        encode_image(data * 3, label, (1, len(data), 3) if data and label % 2 else None)
    )
    place = draw.draw(st.integers(0, len(value) - 1))
    refuses_or_decodes(bytes(value[:place]))
    value[place] = draw.draw(st.integers(0, 255))
    refuses_or_decodes(bytes(value))
