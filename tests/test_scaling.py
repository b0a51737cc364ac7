"""Multiples of a dataset: what they may be called, what is in them, that it is really there, and
that interruptions do no harm."""

import os
import subprocess
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import slow_storage
from hypothesis import given
from hypothesis import strategies as st
from made_datasets import folder_bytes, made, records

from ioprof.converters import plan_verification
from ioprof.converters.job.multiples import plan_multiple, stored_labels
from ioprof.errors import CommandError, DatasetError
from ioprof.foreign.tensorprotos import decode
from ioprof.format.dataset import Dataset, RecordDigest, open_environment
from ioprof.jobs.dataset_multiple import multiple_of
from ioprof.loaders.scaling import Scale, balanced_subset
from ioprof.storage.residency import evict, residency
from ioprof.storage.shared_extents import extent_sharing

FORMS = {
    "files": {"layout": "files"},
    "lmdb": {"layout": "lmdb"},
    "lmdb in shards": {"layout": "lmdb", "shards": 3},
    "webdataset": {"layout": "webdataset", "shard_bytes": 1 << 16},
    "parquet": {"layout": "parquet", "shard_bytes": 1 << 16},
    "packed": {"layout": "raw"},
    "rgb256 jpeg": {"layout": "files", "image": "rgb256"},
    "rgb256 png": {"layout": "webdataset", "image": "rgb256", "encoding": "png"},
    "rgb256 raw": {"layout": "lmdb", "image": "rgb256", "encoding": "raw", "size": 16},
}


@pytest.fixture(scope="module")
def datasets(small_tree, tmp_path_factory):
    """36 records of 4 classes in each form; for reading only, and for what is made beside it."""
    folder = tmp_path_factory.mktemp("scaling")
    return {
        form: made(small_tree, folder / form.replace(" ", "-"), **options)
        for form, options in FORMS.items()
    }


@pytest.fixture(params=FORMS)
def dataset(request, datasets):
    return datasets[request.param]


@pytest.mark.parametrize(
    ("text", "copies", "fraction", "shown"),
    [
        ("2x", 2, 0, "2x"),
        ("0.5x", 0, Fraction(1, 2), "0.5x"),
        ("50%", 0, Fraction(1, 2), "0.5x"),
        ("150%", 1, Fraction(1, 2), "1.5x"),
        ("0.1x", 0, Fraction(1, 10), "0.1x"),
        (" 4x ", 4, 0, "4x"),
        ("100%", 1, 0, "1x"),
    ],
)
def test_a_scale_is_a_multiple_or_a_percentage(text, copies, fraction, shown):
    """Whole copies, and exactly what remains: 0.1x is a tenth."""
    scale = Scale.parse(text)
    assert (copies, fraction, shown, copies == 1 and not fraction) == (
        scale.copies,
        scale.fraction,
        str(scale),
        scale.is_one,
    )


@pytest.mark.parametrize(
    "text",
    ["", "x", "2", "0x", "0%", "-1x", "2X", "1e3x", "nanx", "10001x", "2x2x", "٢x", "1.x", "1,5x"],
)
def test_a_bad_scale_is_one_clear_line(text):
    """The value as it was given, and what to give instead."""
    with pytest.raises(CommandError) as found:
        Scale.parse(text)
    assert (True, True, False) == (
        repr(text) in str(found.value),
        "50%" in str(found.value),
        "\n" in str(found.value),
    )


# --------------------------------------------------------------------------------------- a fraction


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200), st.integers(1, 99), st.integers(0, 5))
def test_a_subset_keeps_each_class_its_share(labels, percent, seed):
    """Law: round(f · N) records, ascending, no index twice, and of each class f of it to within one
    record."""
    fraction = Fraction(percent, 100)
    chosen = balanced_subset(labels, fraction, seed)

    assert max(1, round(float(fraction) * len(labels))) == len(chosen)
    assert sorted(set(chosen.tolist())) == chosen.tolist()
    before, after = Counter(labels), Counter(labels[index] for index in chosen)
    share = len(chosen) / len(labels)
    assert all(abs(after[label] - share * count) < 1 for label, count in before.items())


@given(st.lists(st.integers(0, 3), min_size=8, max_size=50), st.integers(0, 100))
def test_a_subset_is_decided_by_labels_and_seed(labels, seed):
    """The same seed chooses the same records, on any machine and in any layout; the choice does not
    follow the order."""
    chosen = balanced_subset(labels, 0.5, seed)
    assert (
        chosen.tolist()
        == balanced_subset(np.array(labels, np.int32), Fraction(1, 2), seed).tolist()
    )


def test_another_seed_chooses_others():
    """A subset is no prefix."""
    found = {tuple(balanced_subset([0] * 40, 0.5, seed).tolist()) for seed in range(10)}
    assert 10 == len(found)
    assert tuple(range(20)) not in found


def test_labels_are_the_same_in_every_form(datasets):
    """Read from index, values and tars alike."""
    assert 1 == len(
        {tuple(stored_labels(dataset, workers=1).tolist()) for dataset in datasets.values()}
    )


# ------------------------------------------------------------------------------------- what is made


@pytest.mark.parametrize("text", ["2x", "1.5x", "0.5x"])
def test_a_multiple_holds_the_records_that_often(dataset, text):
    """Law: N whole copies in order, then the class-balanced rest, every image byte and label as
    before, every key or path new."""
    scale = Scale.parse(text)
    found = multiple_of(dataset, scale)

    before, after = stored(dataset), stored(found)
    rest = (
        balanced_subset([label for _, label, _ in before], scale.fraction, dataset.shuffle_seed)
        if scale.fraction
        else []
    )
    expected = [
        record[1:] for record in [*before * scale.copies, *(before[index] for index in rest)]
    ]
    assert expected == [record[1:] for record in after]
    places = [str(path) for path in sorted(found.path.rglob("*"))]
    assert len(places) == len(set(places))
    assert (float(scale.factor), len(expected), sum(len(data) for _, data in expected)) == (
        found.scale,
        found.records,
        found.bytes,
    )


@pytest.mark.parametrize("text", ["2x", "1.5x", "0.5x"])
def test_a_multiple_is_a_dataset_like_any_other(dataset, text):
    """`verify --deep` finds nothing wrong with it: counts, bytes, digest, names, and every image
    decodes."""
    found = multiple_of(dataset, Scale.parse(text))
    verified = plan_verification(found.path, deep=True, workers=1).run()
    assert [] == verified.problems
    for key in ("split", "layout", "image", "classes", "label_convention", "shuffle_seed"):
        assert getattr(dataset, key) == getattr(found, key), key


def test_the_digest_of_a_multiple_is_that_of_its_records(datasets):
    """Equal in every layout of the same images, and computed here from the records of the original
    alone."""
    originals = [
        datasets[form]
        for form in ("files", "lmdb", "lmdb in shards", "webdataset", "parquet", "packed")
    ]
    expected = RecordDigest()
    for _, label, data in records(originals[0]) * 2:
        expected.add(label, data)
    assert {expected.text()} == {
        multiple_of(dataset, Scale.parse("2x")).digest for dataset in originals
    }
    assert 1 == len({multiple_of(dataset, Scale.parse("0.5x")).digest for dataset in originals})


def test_copies_take_their_own_place_on_the_disk(datasets):
    """No link, no shared extent, no hole: twice the blocks; and a copy is cold when the original is
    warm."""
    for dataset in (datasets["files"], datasets["lmdb"], datasets["webdataset"]):
        found = multiple_of(dataset, Scale.parse("2x"))
        files = [path for path in found.path.rglob("*") if path.is_file()]
        assert all(path.stat().st_nlink == 1 and not path.is_symlink() for path in files)
        inodes = {
            path.stat().st_ino
            for path in (*files, *(path for path in dataset.path.rglob("*") if path.is_file()))
        }
        assert len(inodes) == len(files) + sum(path.is_file() for path in dataset.path.rglob("*"))
        assert found.bytes <= sum(512 * path.stat().st_blocks for path in files)
        if residency([str(path) for path in files]).ratio:
            evict([str(path) for path in files])
        data = next(
            str(path)
            for path in dataset.path.rglob("*")
            if path.suffix in (".JPEG", ".mdb", ".tar")
        )
        with open(data, "rb") as stream:
            stream.read()
        assert (1.0, 0.0) == (
            residency([data]).ratio,
            residency([str(path) for path in files]).ratio,
        )


def test_half_of_a_files_dataset_needs_no_copy(datasets):
    """An index and a link: no record's bytes are on the disk twice, and every reader of the folder
    finds the chosen ones."""
    found = multiple_of(datasets["files"], Scale.parse("0.5x"))
    assert ["dataset.json", "train", "train.txt"] == sorted(
        path.name for path in found.path.iterdir()
    )
    assert (True, datasets["files"].data_path.resolve()) == (
        found.data_path.is_symlink(),
        found.data_path.resolve(),
    )
    # both folders together, as a user moves them
    moved = found.path.parent.rename(found.path.parent.with_name("moved"))
    try:
        assert 18 == len(records(Dataset.load(moved / found.path.name)))
    finally:
        moved.rename(found.path.parent)


def test_the_second_time_it_is_there(datasets):
    """Nothing is written again; what lies there and is something else is neither used nor
    replaced."""
    dataset = datasets["lmdb"]
    found = multiple_of(dataset, Scale.parse("2x"))
    before = (found.path / "dataset.json").stat()
    assert found == multiple_of(dataset, Scale.parse("200%"))
    assert before == (found.path / "dataset.json").stat()

    changed = replace(dataset, digest="sha256:" + "0" * 64)
    with pytest.raises(CommandError, match=r"lmdb-2x: is not 2x of lmdb .*; move it, or remove it"):
        multiple_of(changed, Scale.parse("2x"))


def test_a_multiple_of_a_multiple_is_refused(datasets):
    """Its copies would count as records of their own; the error names what to give."""
    with pytest.raises(CommandError, match="is itself 2x of another dataset"):
        multiple_of(multiple_of(datasets["files"], Scale.parse("2x")), Scale.parse("2x"))


def test_less_than_a_record_is_refused(datasets):
    """0.01 of 36 records is none."""
    with pytest.raises(CommandError, match="less than one of the 36 records"):
        multiple_of(datasets["files"], Scale.parse("0.01x"))


# -------------------------------------------------------------------------------- what can go wrong


@pytest.mark.system
def test_a_full_disk_is_found_before_anything_is_written(small_tree, tmp_path, small_disk):
    """The free space is looked at first; the error says how much is needed, and nothing is left."""
    disk = small_disk(1 << 20)
    dataset = made(small_tree, disk / "data", layout="lmdb")
    with pytest.raises(
        CommandError, match=r"data-50x: needs about 0\.00\d GB, .* has 0\.00\d GB free"
    ):
        multiple_of(dataset, Scale.parse("50x"))
    assert ["data"] == [path.name for path in disk.iterdir()]


@pytest.mark.job
def test_an_interrupted_copy_goes_on(small_tree, tmp_path):
    """What was written before an interrupt is not written again, and the bytes are those of one
    that was not interrupted."""
    for layout in ("files", "lmdb", "webdataset"):
        dataset = made(small_tree, tmp_path / layout, layout=layout)
        whole = folder_bytes(multiple_of(dataset, Scale.parse("3x")).path)
        subprocess.run(["rm", "-r", tmp_path / f"{layout}-3x"], check=True)
        multiple = planned_multiple(dataset, "3x")
        with pytest.raises(KeyboardInterrupt):
            multiple.run(interrupt_after(50))

        again = planned_multiple(dataset, "3x")
        assert 50 <= again.done() < 108
        seen = []
        again.run(seen.append)

        assert (108, whole) == (sum(seen), folder_bytes(tmp_path / f"{layout}-3x"))
        assert sorted(["dataset.json"]) == sorted(
            path.name for path in (tmp_path / f"{layout}-3x").glob("*.json")
        )
        assert [] == list(tmp_path.glob(".*"))


def test_a_dataset_that_is_not_its_manifest_is_not_multiplied(small_tree, tmp_path):
    """Copying a damaged dataset would make a whole one of it: the records are compared with the
    digest on the way."""
    dataset = made(small_tree, tmp_path / "data", layout="files")
    victim = next(dataset.data_path.rglob("*.JPEG"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")
    with pytest.raises(DatasetError, match="its records differ from its manifest"):
        multiple_of(dataset, Scale.parse("2x"))
    assert not (tmp_path / "data-2x").exists()


@pytest.mark.job
def test_copies_never_bear_the_name_of_another_record(small_tree, tmp_path):
    """A record may already be called as a copy would be: then the copies are called otherwise."""
    tree = tmp_path / "tree"
    subprocess.run(["cp", "-r", small_tree, tree], check=True)
    first = next(tree.rglob("*_0.JPEG"))
    first.with_name(first.name.replace(".JPEG", ".x2.JPEG")).write_bytes(first.read_bytes())
    found = multiple_of(made(tree, tmp_path / "data", layout="files"), Scale.parse("2x"))
    assert (74, 74) == (
        found.records,
        sum(1 for path in found.data_path.rglob("*.JPEG") if path.is_file()),
    )


@pytest.mark.system
def test_a_folder_that_may_not_be_written_is_one_line(datasets, tmp_path):
    """A dataset on a read-only file system has no room beside it."""
    if os.geteuid() == 0:
        dataset = replace(datasets["lmdb"], path=tmp_path / "readonly" / "data")
        (tmp_path / "readonly").mkdir()
        subprocess.run(["cp", "-r", datasets["lmdb"].path, dataset.path], check=True)
        if subprocess.run(
            ["mount", "--bind", "-o", "ro", tmp_path / "readonly", tmp_path / "readonly"],
            check=False,
        ).returncode:
            pytest.skip("a read-only mount is not permitted")
        subprocess.run(["mount", "-o", "remount,bind,ro", tmp_path / "readonly"], check=True)
        try:
            with pytest.raises(CommandError, match="cannot be written"):
                multiple_of(dataset, Scale.parse("2x"))
        finally:
            subprocess.run(["umount", tmp_path / "readonly"], check=True)
    else:
        pytest.skip("a read-only mount needs root")


def test_a_record_with_a_hostile_name_is_refused(small_tree, tmp_path):
    """Keys of an LMDB are untrusted: a name that is no file's name, and a label that is no class's,
    end in one line."""
    dataset = made(small_tree, tmp_path / "data", layout="lmdb")
    with pytest.raises(DatasetError, match="not a valid file name"):
        planned_multiple(hostile(dataset, b"00000035_../../x"), "2x").run()


def stored(dataset):
    """Name, label and bytes of all records, in order, those of an LMDB in shards, too."""
    if dataset.layout != "lmdb":
        return records(dataset)
    found = []
    for folder in dataset.shard_paths():
        environment = open_environment(folder)
        with environment, environment.begin() as transaction:
            found += [(key.decode()[9:], *decoded(value)) for key, value in transaction.cursor()]
    return found


def decoded(value):
    image, _, label = decode(value)
    return label, bytes(image)


def hostile(dataset, key):
    """The dataset with its last record under another key."""
    import lmdb

    last = f"{dataset.records - 1:08d}".encode()
    with (
        lmdb.open(str(dataset.data_path), lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        cursor = transaction.cursor()
        cursor.set_range(last)
        value = bytes(cursor.value())
        transaction.delete(bytes(cursor.key()))
        transaction.put(key, value)
    open_environment(dataset.data_path).close()
    return dataset


def planned_multiple(dataset, text):
    scale = Scale.parse(text)
    nothing = np.empty(0, np.int64)
    return plan_multiple(
        dataset,
        scale.beside(dataset.path),
        scale.copies,
        nothing,
        float(scale.factor),
        scale.source(dataset),
        workers=1,
    )


def interrupt_after(count):
    done = []

    def advance(number):
        done.append(number)
        if sum(done) >= count:
            raise KeyboardInterrupt

    return advance


# ------------------------------------------------------------------------ whether copies are copies


@pytest.mark.system
def test_a_linked_extent_is_no_second_copy(tmp_path):
    """On xfs a reflink shares its extents with the original, a copy that was written does not."""
    with slow_storage.throttled_disk(tmp_path, file_system="xfs") as disk:
        original, copied, linked = (disk.path / name for name in ("original", "copied", "linked"))
        original.write_bytes(os.urandom(3 << 20))
        copied.write_bytes(original.read_bytes())
        assert (3 << 20, 0) == seen([original, copied])
        if subprocess.run(
            ["cp", "--reflink=always", original, linked], capture_output=True, check=False
        ).returncode:
            pytest.skip("this xfs has no reflinks")
        assert (6 << 20, 6 << 20) == (
            2 * seen([original])[0],
            sum(seen([path])[1] for path in (original, linked)),
        )
        assert (3 << 20, 0) == seen([copied])


def seen(paths):
    found = extent_sharing([str(path) for path in paths], "xfs")
    return found.bytes // len(paths), found.shared_bytes


@pytest.mark.system
def test_where_it_cannot_be_seen_it_is_not_said(tmp_path, small_disk):
    """tmpfs has no extents; ZFS may fold blocks below them: null, with the reason."""
    file = small_disk(1 << 20) / "file"
    file.write_bytes(bytes(9000))
    found = extent_sharing([str(file)], "tmpfs")
    assert (None, "tmpfs does not report the extents of its files (Operation not supported)") == (
        found.shared_bytes,
        found.reason,
    )
    (tmp_path / "file").write_bytes(bytes(9000))
    found = extent_sharing([str(tmp_path / "file")], "zfs")
    assert (None, True) == (found.shared_bytes, "zfs get dedup" in found.reason)
