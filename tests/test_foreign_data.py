"""Data of other programs: listed, inspected, converted, and read where it is, with the bytes and
labels that were written."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_data import DATA, WNIDS, WRITERS, samples
from fuzzing import OWN, fuzz
from made_datasets import made, tree
from PIL import Image

from ioprof._checksum import crc32c
from ioprof.converters import (
    ConvertOptions,
    LayoutOptions,
    Part,
    detect,
    plan_verification,
    run_conversion,
    run_merge,
    run_relayout,
)
from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import Dataset, RecordDigest
from ioprof.jobs.foreign_data import open_data
from ioprof.loaders import check_loader, make_loader, open_records
from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.tar_index import check_tar_index
from ioprof.reporter import SILENT

SAMPLES = samples()
RECORDIO = DATA / "recordio"
"""Six images by MXNet 1.9.1: one holds its magic number twice, one has two labels."""
FUZZ_CASES = 40


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every form whose library is installed; for reading only."""
    root, found = tmp_path_factory.mktemp("forms"), {}
    for form, write in WRITERS.items():
        folder = root / form.replace(" ", "-")
        folder.mkdir()
        try:
            write(folder, SAMPLES)
        except pytest.skip.Exception:
            continue
        found[form] = folder
    return found


def folder_of(form: str, forms: dict[str, Path]) -> Path:
    if form not in forms:
        pytest.skip(f"the library that writes {form} is not installed (see .ci/run)")
    return forms[form]


every_form = pytest.mark.parametrize("form", WRITERS)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the same images as a tree of class folders."""
    root = tmp_path_factory.mktemp("tree")
    images = {f"{WNIDS[label]}/{name}": data for name, label, data in SAMPLES}
    return made(tree(root / "tree", images), root / "dataset").digest


def contents(dataset: Dataset) -> list[tuple[int, bytes]]:
    """Label and bytes of every record, sorted, by its loader."""
    found = open_records(dataset.layout, dataset)
    return sorted(
        (record.label, bytes(record.data)) for record in map(found.read, range(dataset.records))
    )


@every_form
def test_a_foreign_form_is_read_with_its_bytes_and_labels(form, forms, tmp_path):
    """Listed, converted and verified against where it came from: count, labels, wnids and bytes are
    those that were written."""
    folder = folder_of(form, forms)
    _, source = detect(folder, "train")
    assert len(SAMPLES) == len(source.images)
    assert () == source.refused
    wnids = ("0", "1", "2") if form == "litdata" else WNIDS  # its samples have no names
    assert wnids == source.wnids
    dataset = made(folder, tmp_path / "dataset", layout="lmdb")
    assert sorted((label, data) for _, label, data in SAMPLES) == contents(dataset)
    assert [] == plan_verification(dataset.path, source=folder, workers=1).run().problems


@every_form
def test_back_and_forth_the_digest_stays(form, forms, tmp_path):
    """Through all layouts and back to files, which then are those of the first conversion."""
    first = made(folder_of(form, forms), tmp_path / "files")
    source = first.path
    for layout in ("raw", "lmdb", "parquet", "webdataset", "files"):
        done = run_relayout(
            source, tmp_path / f"as-{layout}", LayoutOptions(layout=layout, workers=1)
        )
        assert first.digest == done.dataset.digest
        assert [] == plan_verification(done.path, workers=1).run().problems
        source = done.path
    assert (first.path / "train.txt").read_bytes() == (source / "train.txt").read_bytes()


@pytest.mark.parametrize(
    "form",
    ["tfrecord", "arrow", "parquet", "caffe", "caffe2", "mds", "tar of folders", "webdataset"],
)
def test_every_form_of_the_same_images_is_the_same_dataset(form, forms, tmp_path, expected):
    """Records are in the order of names, so the digest is that of the tree; Parquet keeps its row
    groups together."""
    dataset = made(folder_of(form, forms), tmp_path / "dataset", limit=None)
    if form != "parquet":
        assert expected == dataset.digest


@every_form
def test_a_job_reads_it_where_it_is(form, forms, tmp_path):
    """By an index in the cache folder: no byte is copied; a change of the data makes a new index.
    Parquet says what to type."""
    folder = tmp_path / "data"
    shutil.copytree(folder_of(form, forms), folder)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    if form == "parquet":
        with pytest.raises(
            CommandError,
            match=(
                r"cannot be read at random; convert it: ioprof convert imagenet .*--layout parquet"
            ),
        ):
            open_data(folder, environment, SILENT)
        return
    dataset = open_data(folder, environment, SILENT)
    assert "indexed" == dataset.layout
    assert not dataset.is_read
    assert sorted((label, data) for _, label, data in SAMPLES) == contents(dataset)
    options = LoaderOptions(batch_size=5, num_batches=4, workers=0, crop=16)
    check_loader("indexed", dataset, options)
    labels = [
        label
        for batch in make_loader("indexed", dataset, options)
        for label in batch.labels.tolist()
    ]
    assert sorted(sample.label for sample in SAMPLES) == sorted(labels)
    assert [] == plan_verification(dataset.path, workers=1).run().problems
    assert dataset == open_data(folder, environment, SILENT)
    victim = Path(dataset.record_files()[0])
    victim.write_bytes(victim.read_bytes() + b"\0" * 4)
    with pytest.raises(DatasetError, match="has changed since it was listed"):
        check_loader("indexed", dataset, options)


def test_a_tree_is_read_by_the_loader_of_files(tmp_path):
    """Its index has a link to the folder, so the reads are those of the tree."""
    images = {f"{WNIDS[label]}/{name}": data for name, label, data in SAMPLES}
    folder = tree(tmp_path / "tree", images)
    dataset = open_data(folder, {"XDG_CACHE_HOME": str(tmp_path / "cache")}, SILENT)
    assert "files" == dataset.layout
    assert sorted((label, data) for _, label, data in SAMPLES) == contents(dataset)


def test_mxnets_records_are_read(tmp_path):
    """A record in several frames is put together, the first of several labels counts, and the file
    stays as it is."""
    dataset = made(RECORDIO, tmp_path / "dataset")
    found = contents(dataset)
    assert [0, 0, 1, 1, 2, 2] == [label for label, _ in found]
    assert all(Image.open(io.BytesIO(data)).size == (64, 48) for _, data in found)
    assert 1 == sum(data.count(b"\x0a\x23\xd7\xce" * 2) for _, data in found)
    direct = open_data(RECORDIO, {"XDG_CACHE_HOME": str(tmp_path / "cache")}, SILENT)
    assert found == contents(direct)


def test_a_damaged_tfrecord_is_a_bad_image(forms, tmp_path):
    """One changed byte of an image changes its checksum: the record is quarantined, the others
    stay."""
    folder = tmp_path / "data"
    shutil.copytree(folder_of("tfrecord", forms), folder)
    file = folder / "train-00000-of-00002"
    content = bytearray(file.read_bytes())
    content[content.index(b"\xff\xd8\xff") + 300] ^= 1
    file.write_bytes(content)
    with pytest.raises(CommandError, match="checksum"):
        made(folder, tmp_path / "dataset")
    dataset = made(folder, tmp_path / "dataset", on_error="quarantine", force=True)
    assert len(SAMPLES) - 1 == dataset.records
    assert ["checksum" in entry["reason"] for entry in dataset.quarantined] == [True]


def test_a_parquet_file_with_names_that_are_no_text_is_refused(tmp_path):
    """pyarrow does not look at the text of a column when it reads it."""
    pyarrow = pytest.importorskip("pyarrow")
    names = pyarrow.array([b"\xff\x80.jpg"], pyarrow.binary())
    texts = pyarrow.Array.from_buffers(pyarrow.string(), 1, names.buffers())
    image = pyarrow.StructArray.from_arrays(
        [pyarrow.array([b"\xff\xd8\xff"], pyarrow.binary()), texts], ["bytes", "path"]
    )
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "train-00000-of-00001.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(
        pyarrow.table({"image": image, "label": [0]}), file
    )
    with pytest.raises(
        DatasetError,
        match=(
            r"train-00000-of-00001.parquet: row group 0 has values that cannot be read .*get the"
            r" file again"
        ),
    ):
        list(detect(tmp_path / "data", "train")[1].images)


def test_pixels_of_caffe_become_an_image(tmp_path):
    """Blue first, in planes: a PNG of the same pixels, as RGB."""
    import lmdb
    from foreign_data import _caffe_messages

    datum, _ = _caffe_messages()
    pixels = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    planes = pixels[:, :, ::-1].transpose(2, 0, 1).tobytes()
    with (
        lmdb.open(str(tmp_path / "data"), map_size=1 << 20) as environment,
        environment.begin(write=True) as transaction,
    ):
        transaction.put(
            b"00000000_a",
            datum(channels=3, height=6, width=5, data=planes, label=0).SerializeToString(),
        )
    dataset = made(tmp_path / "data", tmp_path / "dataset")
    ((_, data),) = contents(dataset)
    assert (pixels == np.asarray(Image.open(io.BytesIO(data)))).all()


def test_the_checksum_is_castagnolis():
    """That of another library, for all lengths around the word of the C loop."""
    reference = pytest.importorskip("crc32c", reason="crc32c is not installed (pip install crc32c)")
    random = np.random.default_rng(0)
    for length in (*range(20), 1000):
        data = random.bytes(length)
        assert reference.crc32c(data) == crc32c(data)


@pytest.mark.parametrize("form", [*WRITERS, "recordio"])
def test_damaged_files_raise_our_own_errors(form, forms, tmp_path):
    """Some dozens of damages of each form; `benchmarks/fuzz_readers.py` makes ten thousand of each
    form."""
    folder = RECORDIO if form == "recordio" else folder_of(form, forms)
    found = fuzz(folder, tmp_path / "work", FUZZ_CASES, seed=1)
    assert [] == found.wrong
    assert FUZZ_CASES == found.cases


@pytest.mark.job
@pytest.mark.parametrize("form", OWN)
def test_damages_of_our_own_files_raise_our_own_errors(form, tmp_path):
    """Datasets, parts and what an interrupted conversion leaves, with quarantined images in their
    manifests and journals."""
    write, pattern = OWN[form]
    read = write(DATA / "images", tmp_path / "data")
    found = fuzz(tmp_path / "data", tmp_path / "work", FUZZ_CASES, 1, read, pattern)
    assert [] == found.wrong
    assert FUZZ_CASES == found.cases


def test_parts_with_options_of_other_types_are_refused(tmp_path):
    """What the fuzzer found: values of a type that no option has, classes that differ, and a
    journal with a label too large."""
    tree(tmp_path, {f"tree/n0000000{number}/a.JPEG": SAMPLES[number].data for number in range(4)})
    for part in ("1/2", "2/2"):
        run_conversion(
            tmp_path / "tree", tmp_path / "dataset", ConvertOptions(workers=1), Part.parse(part)
        )
    manifest = tmp_path / "dataset.part-2-of-2" / "part.json"
    good = json.loads(manifest.read_text())
    layouts = ("x", {"name": 1}, None)
    for change in (
        {"options": 3},
        *({"options": {**good["options"], "layout": layout}} for layout in layouts),
        {"options": {"y": 1}},
    ):
        manifest.write_text(json.dumps({**good, **change}))
        with pytest.raises(DatasetError, match="remove it and convert this part again"):
            run_merge(tmp_path / "dataset", workers=1)
    manifest.write_text(json.dumps({**good, "classes": good["classes"][::-1]}))
    with pytest.raises(CommandError, match="differs from part 1/2 in classes; convert it again"):
        run_merge(tmp_path / "dataset", workers=1)
    for part in (1, 2):
        path = tmp_path / f"dataset.part-{part}-of-2" / "part.json"
        path.write_text(
            json.dumps({**json.loads(path.read_text()), "classes": good["classes"][:1]})
        )
    with pytest.raises(
        DatasetError, match=r"has the label [123], and there are 1 classes; remove it"
    ):
        run_merge(tmp_path / "dataset", workers=1)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"layout": "lmdb"}, "layout"),
        ({"limit": 3}, "limit"),
        ({"shuffle_seed": 4}, "shuffle_seed"),
    ],
)
def test_the_same_command_again_is_done_already(small_tree, tmp_path, option, said):
    """Nothing is written, and the dataset is returned; with other settings the error names them."""
    options = ConvertOptions(workers=1)
    first = run_conversion(small_tree, tmp_path / "dataset", options)
    before = (tmp_path / "dataset" / "dataset.json").stat()
    again = run_conversion(small_tree, tmp_path / "dataset", options)
    assert (False, True) == (first.was_done, again.was_done)
    assert first.dataset == again.dataset
    assert before == (tmp_path / "dataset" / "dataset.json").stat()
    with pytest.raises(
        CommandError,
        match=rf"exists; replace it with --force; it was made with other settings \({said}\)",
    ):
        run_conversion(small_tree, tmp_path / "dataset", ConvertOptions(workers=1, **option))
    if said != "limit":
        return
    for part in ("1/2", "2/2", "2/2"):
        last = run_conversion(small_tree, tmp_path / "whole", options, Part.parse(part))
    assert last.was_done
    assert [False, True] == [run_merge(tmp_path / "whole", workers=1).was_done for _ in range(2)]


def test_a_bad_name_is_quarantined(tmp_path):
    """A name that no file may have, in a tree and in a tar, costs that image only; without
    quarantine it stops the work."""
    import tarfile

    images = {f"{WNIDS[label]}/{name}": data for name, label, data in SAMPLES}
    folder = tree(tmp_path / "tree", {**images, f"{WNIDS[0]}/two\nlines.JPEG": SAMPLES[0].data})
    with pytest.raises(DatasetError, match="cannot be used"):
        made(folder, tmp_path / "dataset")
    dataset = made(folder, tmp_path / "dataset", on_error="quarantine")
    assert len(SAMPLES) == dataset.records
    assert ["two\\nlines.JPEG"] == [entry["name"] for entry in dataset.quarantined]
    assert [] == plan_verification(dataset.path, source=folder, workers=1).run().problems

    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as tar:
        for name, kind in (
            ("a.JPEG", tarfile.REGTYPE),
            ("link.JPEG", tarfile.SYMTYPE),
            ("a.JPEG", tarfile.REGTYPE),
            ("b.JPEG", tarfile.REGTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(SAMPLES[0].data) if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(SAMPLES[0].data))
    with tarfile.open(tmp_path / "ILSVRC2012_img_train.tar", "w") as tar:
        member = tarfile.TarInfo("n01440764.tar")
        member.size = len(inner.getvalue())
        tar.addfile(member, io.BytesIO(inner.getvalue()))
    dataset = made(
        tmp_path / "ILSVRC2012_img_train.tar", tmp_path / "from-tar", on_error="quarantine"
    )
    assert 1 == dataset.records
    assert ["link.JPEG", "a.JPEG"] == [entry["name"] for entry in dataset.quarantined]


def test_the_strict_square_does_not_look_outside(tmp_path):
    """As ImageMagick's -crop before -resize: what lies around the square changes no pixel."""
    pixels = np.random.default_rng(0).integers(0, 256, (300, 500, 3), dtype=np.uint8)
    other = pixels.copy()
    other[:, :100], other[:, 400:] = 0, 255
    found: dict[tuple[str, int], bytes] = {}
    for number, content in enumerate((pixels, other)):
        folder = tmp_path / f"tree{number}" / "n01"
        folder.mkdir(parents=True)
        Image.fromarray(content).save(folder / "a.png")
        for crop in ("wide", "strict"):
            options: dict[str, Any] = {"image": "rgb256", "encoding": "raw", "crop": crop}
            dataset = made(folder.parent, tmp_path / f"{crop}{number}", **options)
            assert ("strict" if crop == "strict" else "square") == Dataset.load(
                dataset.path
            ).image.resize
            found[crop, number] = next(dataset.path.glob("train/n01/*")).read_bytes()
    assert found["strict", 0] == found["strict", 1]
    assert found["wide", 0] != found["wide", 1]
    square = Image.fromarray(pixels[:, 100:400]).resize((256, 256), Image.Resampling.BICUBIC)
    assert (
        np.abs(
            np.asarray(square).astype(int)
            - np.frombuffer(found["strict", 0], np.uint8).reshape(256, 256, 3)
        ).max()
        <= 1
    )


@pytest.mark.job
def test_tars_have_dalis_index(small_tree, tmp_path):
    """The same bytes as NVIDIA's wds2idx writes; also where a conversion was interrupted within a
    tar."""
    wds2idx = pytest.importorskip(
        "wds2idx", reason="DALI is not installed (pip install ioprof[dali])"
    )
    dataset = made(small_tree, tmp_path / "dataset", layout="webdataset", shard_bytes=1 << 16)
    assert len(dataset.shard_paths()) > 1
    for shard in dataset.shard_paths():
        with wds2idx.IndexCreator(
            str(shard), str(tmp_path / "theirs.idx"), verbose=False
        ) as creator:
            creator.create_index()
        assert (tmp_path / "theirs.idx").read_bytes() == shard.with_suffix(".idx").read_bytes()


def test_hugging_face_reads_the_layout_parquet(small_tree, tmp_path):
    """Images, labels and names of classes, by its own library."""
    datasets = pytest.importorskip(
        "datasets", reason="datasets is not installed (pip install datasets)"
    )
    dataset = made(small_tree, tmp_path / "dataset", layout="parquet", shard_bytes=1 << 16)
    found = datasets.load_dataset(
        str(dataset.path), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert dataset.records == len(found)
    assert [entry.wnid for entry in dataset.classes] == found.features["label"].names
    digest = RecordDigest()
    for row in found.cast_column("image", datasets.Image(decode=False)):
        digest.add(row["label"], row["image"]["bytes"])
    assert dataset.digest == digest.text()
    assert found[0]["image"].size


def test_an_index_of_another_tar_is_refused(small_tree, tmp_path):
    """DALI trusts its numbers, and a wrong one can crash the process; without the file it looks
    through the tar."""
    for image, encoding in (("original", None), ("rgb256", "raw"), ("rgb256", "png")):
        options: dict[str, Any] = {"image": image, "encoding": encoding}
        dataset = made(
            small_tree,
            tmp_path / f"{image}{encoding}",
            layout="webdataset",
            shard_bytes=1 << 16,
            **options,
        )
        for tar in dataset.shard_paths():
            check_tar_index(tar)
    first, second = dataset.shard_paths()[:2]
    index = first.with_suffix(".idx")
    good = index.read_text()
    head, line, *rest = good.splitlines()
    shorter = f"v1.2 {len(rest)}\n" + "".join(f"{each}\n" for each in rest)
    words = line.split(" ")
    larger = good.replace(line, " ".join([*words[:2], str(int(words[2]) + 600), *words[3:]]))
    for text in (
        shorter,
        larger,
        good[:-1],
        good.replace("cls", "jpg"),
        second.with_suffix(".idx").read_text(),
        "",
        f"{head}\n",
        "\xff",
    ):
        index.write_text(text)
        with pytest.raises(
            DatasetError, match=r"is not what belongs to this tar; remove .*\.idx, and DALI looks"
        ):
            check_tar_index(first)
    index.unlink()
    check_tar_index(first)
