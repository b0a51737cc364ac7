"""What every loader must do, with every layout that it reads. `LOADERS` is walked through: whatever
is in it is tested.

Images tell which record they are: each has a colour of its own, which no crop, flip or resize
changes.
"""

import hashlib
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch
from made_datasets import made
from PIL import Image
from scipy import stats

from ioprof.errors import CommandError, DatasetError
from ioprof.format.dataset import Dataset
from ioprof.loaders import LOADERS, backend_kind, check_loader, make_loader
from ioprof.loaders.base import LMDB_READS, Batch, LoaderOptions
from ioprof.loaders.crops import crop_box, sample_random
from ioprof.loaders.dali_parts import ListedPart
from ioprof.loaders.dali_pipelines import is_installed
from ioprof.loaders.order import batches_per_epoch

# DALI's own, on machines without a GPU
pytestmark = pytest.mark.filterwarnings("default:.*CUDA.*", "default:.*NVML.*")

RECORDS: Final = 41
JOBS: Final = [(1, 4), (3, 4), (4, 5)]
"""Ranks and batch size: an epoch's last batch is smaller; it is shared unevenly; it is joined to
the one before."""
LAYOUTS: Final = {
    "files": {"layout": "files"},
    "lmdb": {"layout": "lmdb"},
    "lmdb shards": {"layout": "lmdb", "shards": 3},
    "webdataset": {"layout": "webdataset", "shard_bytes": 1 << 16},
    "parquet": {"layout": "parquet", "shard_bytes": 1 << 16},
    "raw": {"layout": "raw"},
}
ENCODINGS: Final = {
    "original": {},
    "raw": {"image": "rgb256", "encoding": "raw", "size": 32},
    "png": {"image": "rgb256", "encoding": "png"},
}


def pairs() -> Iterator[Any]:
    """Every loader that reads a dataset, with each of its layouts, and LMDB in both ways."""
    for name in LOADERS:
        missing = name == "dali" and not is_installed()
        marks = (
            [pytest.mark.skip(reason="DALI is not installed (pip install ioprof[dali])")]
            if missing
            else []
        )
        for layout, options in LAYOUTS.items():
            for read in LMDB_READS if name in ("lmdb", "raw") else LMDB_READS[:1]:
                if options["layout"] in backend_kind(name).layouts:
                    yield pytest.param(
                        name,
                        layout,
                        read,
                        marks=marks,
                        id=f"{name} {layout} {read}"
                        if name in ("lmdb", "raw")
                        else f"{name} {layout}",
                    )


every_loader = pytest.mark.parametrize(("name", "layout", "read"), list(pairs()))


def colour(record: int) -> tuple[int, int, int]:
    """Far enough from every other record's for a JPEG to keep them apart."""
    return 40 + 60 * (record % 4), 40 + 60 * (record // 4 % 4), 40 + 60 * (record // 16)


def record_of(image: torch.Tensor) -> int:
    red, green, blue = (
        round((int(level) - 40) / 60) for level in image.float().mean(dim=(1, 2)).round()
    )
    return red + 4 * green + 16 * blue


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of 41 images of one colour each, of several sizes, in three classes."""
    root = tmp_path_factory.mktemp("colours")
    for record in range(RECORDS):
        folder = root / f"n{record % 3:08d}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (40 + record, 90 - record), colour(record)).save(
            folder / f"{record}.JPEG", quality=95
        )
    return root


@pytest.fixture(scope="module")
def datasets(
    colours: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], Dataset]:
    """The tree in every layout and encoding; for reading only."""
    root = tmp_path_factory.mktemp("datasets")
    return {
        (layout, encoding): made(
            colours, root / f"{layout} {encoding}", **LAYOUTS[layout], **ENCODINGS[encoding]
        )
        for layout in LAYOUTS
        for encoding in ENCODINGS
    }


def batches(name: str, dataset: Dataset, read: str, **options: Any) -> list[Batch]:
    """All batches of a rank."""
    chosen = LoaderOptions(
        **{
            "batch_size": 4,
            "workers": 0,
            "crop": 16,
            "shuffle_buffer": 7,
            "lmdb_read": read,
            **options,
        }
    )
    check_loader(name, dataset, chosen)
    return list(make_loader(name, dataset, chosen))


def digest(made_batches: list[Batch]) -> str:
    """Of everything that a job sees: number, pixels and labels, in order."""
    found = hashlib.sha256()
    for batch in made_batches:
        found.update(f"{batch.number} {batch.labels.tolist()} {tuple(batch.images.shape)}".encode())
        found.update(batch.images.contiguous().numpy().tobytes())
    return found.hexdigest()


def per_epoch(ranks: int, batch_size: int) -> int:
    return batches_per_epoch(RECORDS, LoaderOptions(batch_size, 1, 0, ranks))


@pytest.mark.job
@pytest.mark.parametrize(
    ("ranks", "batch_size", "workers"), [*((*job, 0) for job in JOBS), (*JOBS[1], 2)]
)
@every_loader
def test_every_sample_comes_once_per_epoch(
    datasets, name, layout, read, ranks, batch_size, workers
):
    """The ranks' batches are disjoint and complete in each of three epochs, and each image has its
    own label."""
    steps = per_epoch(ranks, batch_size)
    options = {
        "batch_size": batch_size,
        "num_ranks": ranks,
        "num_batches": 3 * steps,
        "workers": workers,
    }
    shards = [
        batches(name, datasets[layout, "original"], read, rank=rank, **options)
        for rank in range(ranks)
    ]
    for epoch in range(3):
        part = [batch for shard in shards for batch in shard[epoch * steps : (epoch + 1) * steps]]
        seen = [
            (record_of(image), int(label))
            for batch in part
            for image, label in zip(batch.images, batch.labels, strict=True)
        ]
        assert [(record, record % 3) for record in range(RECORDS)] == sorted(seen)


@pytest.mark.parametrize(("ranks", "batch_size"), JOBS)
@every_loader
def test_batches_are_full_but_for_an_epochs_last(datasets, name, layout, read, ranks, batch_size):
    """Numbers count on through the epochs; every batch but an epoch's last has its size, and that
    one is never empty."""
    steps = per_epoch(ranks, batch_size)
    for rank in range(ranks):
        options = {
            "batch_size": batch_size,
            "num_ranks": ranks,
            "rank": rank,
            "num_batches": 2 * steps,
        }
        found = batches(name, datasets[layout, "original"], read, **options)
        assert list(range(2 * steps)) == [batch.number for batch in found]
        sizes = np.array([len(batch.labels) for batch in found]).reshape(2, steps)
        assert (sizes[:, :-1] == batch_size).all()
        assert ((sizes[:, -1] >= 1) & (sizes[:, -1] <= batch_size + 1)).all()
        assert [(size, 3, 16, 16) for size in sizes.ravel()] == [
            tuple(batch.images.shape) for batch in found
        ]
        assert {(torch.uint8, torch.int64)} == {
            (batch.images.dtype, batch.labels.dtype) for batch in found
        }


@every_loader
def test_one_seed_is_one_order_and_one_augmentation(datasets, name, layout, read):
    """The same batches to the byte, again and again; others for another seed, rank or epoch."""
    options = {"num_ranks": 2, "num_batches": 2 * per_epoch(2, 4)}
    dataset = datasets[layout, "original"]
    once = batches(name, dataset, read, seed=3, **options)
    assert digest(once) == digest(batches(name, dataset, read, seed=3, **options))
    others = [
        batches(name, dataset, read, seed=4, **options),
        batches(name, dataset, read, seed=3, rank=1, **options),
    ]
    assert 3 == len({digest(found) for found in (once, *others)})
    records = [record_of(image) for batch in once for image in batch.images]
    assert records[: len(records) // 2] != records[len(records) // 2 :]


@pytest.mark.job
def test_loaders_of_one_order_agree_on_it(datasets):
    """`files` and `lmdb`, however read and with however many workers; `dali` on files has the same
    records in the same batches."""
    chosen = {"num_ranks": 2, "rank": 1, "num_batches": 9, "seed": 5}
    kinds = [
        ("files", "files", 0),
        ("files", "files", 2),
        ("lmdb", "lmdb", 0),
        ("lmdb", "lmdb shards", 1),
    ]
    found = {
        digest(batches(name, datasets[layout, "original"], read, workers=workers, **chosen))
        for name, layout, workers in kinds
        for read in (LMDB_READS if name == "lmdb" else LMDB_READS[:1])
    }
    assert 1 == len(found)
    if is_installed():
        ours, theirs = (
            batches(name, datasets["files", "original"], "mmap", **chosen)
            for name in ("files", "dali")
        )
        assert [[record_of(image) for image in batch.images] for batch in ours] == [
            [record_of(image) for image in batch.images] for batch in theirs
        ]


@pytest.mark.job
@pytest.mark.parametrize("workers", [0, 2])
@every_loader
def test_a_resumed_run_is_the_tail_of_the_whole_one(datasets, name, layout, read, workers):
    """From a first batch, one within an epoch, and the first of the next: the same batches to the
    byte."""
    steps = per_epoch(2, 4)
    options = {"num_ranks": 2, "rank": 1, "workers": workers, "num_batches": 2 * steps + 1}
    whole = batches(name, datasets[layout, "original"], read, **options)
    for first in (1, steps - 1, steps, steps + 2):
        assert digest(whole[first:]) == digest(
            batches(name, datasets[layout, "original"], read, first_batch=first, **options)
        ), first


@pytest.mark.parametrize("encoding", ["raw", "png"])
@every_loader
def test_every_encoding_is_read(datasets, name, layout, read, encoding):
    """Raw pixels and PNGs give the colours that JPEGs give, and those exactly."""
    found = batches(name, datasets[layout, encoding], read, num_batches=per_epoch(1, 4))
    levels = [
        tuple(int(level) for level in image.float().mean(dim=(1, 2)).round())
        for batch in found
        for image in batch.images
    ]
    near = [
        record
        for record in range(RECORDS)
        for level in levels
        if np.abs(np.subtract(level, colour(record))).max() <= 3
    ]
    assert list(range(RECORDS)) == sorted(near)


# ------------------------------------------------------------------------------------- augmentation

WIDTH, HEIGHT, CROPS = 400, 300, 512


@pytest.fixture(scope="module")
def gradient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 times an image whose red and green say where in it a pixel lies."""
    root = tmp_path_factory.mktemp("gradient")
    (root / "n00000000").mkdir()
    across, down = np.meshgrid(np.linspace(0, 255, WIDTH), np.linspace(0, 255, HEIGHT))
    pixels = np.stack([across, down, np.full_like(across, 128)], axis=2).round().astype(np.uint8)
    for number in range(64):
        Image.fromarray(pixels).save(
            root / "n00000000" / f"{number}.JPEG", quality=98, subsampling=0
        )
    return root


def crops_in(images: torch.Tensor) -> np.ndarray:
    """Of each image: the crop's share of the area, the logarithm of its aspect, the middle's place,
    and whether it was flipped."""
    red, green = images[:, 0].float().mean(dim=1), images[:, 1].float().mean(dim=2)
    side = red.shape[1]
    first, last = side // 8, side - 1 - side // 8
    slopes = [
        (level[:, last] - level[:, first]) * side / (last - first) / 255 for level in (red, green)
    ]
    width, height = slopes[0].abs(), slopes[1].abs()
    area, aspect = width * height, torch.log(width * WIDTH / (height * HEIGHT))
    return torch.stack(
        [area, aspect, red.mean(dim=1), green.mean(dim=1), (slopes[0] < 0).float()], dim=1
    ).numpy()


@cache
def expected_crops() -> np.ndarray:
    """What `crop_box` draws, many times over, in the same terms; it is the recipe's own text, and
    tested by itself."""
    found = []
    for number in range(20_000):
        choice = sample_random(99, 0, number)
        left, top, right, bottom = crop_box(WIDTH, HEIGHT, choice)
        width, height = (right - left) / WIDTH, (bottom - top) / HEIGHT
        middle = (left + right) / 2 / WIDTH * 255, (top + bottom) / 2 / HEIGHT * 255
        found.append(
            (
                width * height,
                np.log(width * WIDTH / (height * HEIGHT)),
                *middle,
                choice.random() < 0.5,
            )
        )
    return np.array(found, dtype=float)


@every_loader
def test_crops_are_drawn_alike(gradient, tmp_path, name, layout, read):
    """512 crops of each loader have the area, aspect, place and flips of the recipe
    (Kolmogorov-Smirnov; the seed is fixed)."""
    dataset = made(gradient, tmp_path / "data", **LAYOUTS[layout])
    options = {"batch_size": 64, "crop": 64, "num_batches": CROPS // 64, "workers": 0, "seed": 1}
    found = np.concatenate(
        [crops_in(batch.images) for batch in batches(name, dataset, read, **options)]
    )
    expected = expected_crops()
    unlikely = {
        what: stats.ks_2samp(found[:, place], expected[:, place]).pvalue
        for place, what in enumerate(("area", "aspect", "across", "down"))
    }
    assert {} == {what: value for what, value in unlikely.items() if value < 0.01}
    assert abs(found[:, 4].mean() - 0.5) < 4 * 0.5 / CROPS**0.5


# ---------------------------------------------------------------------------------- what goes wrong


def spoiled(dataset: Dataset, folder: Path) -> tuple[Dataset, str]:
    """A copy of the dataset whose record 17 holds no image, and the words that must name it."""
    copy = Dataset.load(shutil.copytree(dataset.path, folder))
    if dataset.layout == "files":
        path = copy.path / copy.index_path.read_text().splitlines()[17].rpartition(" ")[0]
        path.write_bytes(b"no image" * 40)
        return copy, path.name
    image = (
        (dataset.path.parent / "files original" / "train.txt")
        .read_text()
        .splitlines()[17]
        .rpartition(" ")[0]
    )
    content = (dataset.path.parent / "files original" / image).read_bytes()
    for path in map(Path, copy.record_files()):
        data = path.read_bytes()
        if content in data:
            path.write_bytes(data.replace(content, (b"no image" * len(content))[: len(content)]))
    return copy, "00000017"


@pytest.mark.job
@pytest.mark.parametrize("workers", [0, 2])
@every_loader
def test_a_bad_image_is_named(datasets, tmp_path, name, layout, read, workers):
    """The file, or the shard and the number, in one line that says what is wrong with it."""
    dataset, words = spoiled(datasets[layout, "original"], tmp_path / "data")
    try:  # pytest.raises would keep the traceback, and with it the workers
        batches(name, dataset, read, num_batches=per_epoch(1, 4), workers=workers)
    except DatasetError as error:
        said = str(error)
    else:
        pytest.fail("every batch was made")
    assert words in said
    assert "cannot be decoded" in said
    assert [] == said.splitlines()[1:]


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_says_which_layouts_it_reads(datasets, name):
    """Another layout, no dataset, or more ranks than records: refused before the job, with what to
    type."""
    kind = backend_kind(name)
    options = LoaderOptions(4, 1)
    if not kind.layouts:
        check_loader(name, None, options)
        return
    with pytest.raises(CommandError, match="needs a dataset; make one with: ioprof convert"):
        check_loader(name, None, options)
    for (layout, _), dataset in datasets.items():
        if dataset.layout not in kind.layouts:
            with pytest.raises(
                CommandError, match=f"whose layout is {LAYOUTS[layout]['layout']}; use --loader"
            ):
                check_loader(name, dataset, options)
        else:
            with pytest.raises(CommandError, match="too few for 42 ranks"):
                check_loader(name, dataset, LoaderOptions(4, 1, num_ranks=42))


def test_a_way_of_reading_is_checked(datasets):
    """It is one that there is."""
    for option in ("lmdb_read", "lmdb_readahead", "decode", "on_corrupt"):
        with pytest.raises(
            CommandError, match=f"--{option.replace('_', '-')} fast: unknown; choose one of"
        ):
            check_loader(
                "lmdb", datasets["lmdb", "original"], LoaderOptions(4, 1, **{option: "fast"})
            )


def test_dali_is_asked_for_by_name(datasets, monkeypatch):
    """Where it is not installed, the line to type."""
    monkeypatch.setattr("ioprof.loaders.dali_loader.is_installed", lambda: False)
    with pytest.raises(CommandError, match=r"DALI is not installed; pip install 'ioprof\[dali\]'"):
        check_loader("dali", datasets["files", "original"], LoaderOptions(4, 1))


def test_a_list_that_would_be_too_long_comes_again(datasets, monkeypatch):
    """DALI's list of files holds whole epochs; of further ones each has the order of one before,
    and still every sample once."""
    monkeypatch.setattr("ioprof.loaders.dali_parts._MOST_LISTED", 100)
    options = LoaderOptions(4, 5 * per_epoch(1, 4))
    part = ListedPart(datasets["files", "original"], options)
    lines = list(part.lines())
    assert part.epoch_size == len(lines) == 2 * 44
    assert all(RECORDS == len(set(lines[epoch * 44 : (epoch + 1) * 44])) for epoch in (0, 1))
    again = LoaderOptions(4, 2 * per_epoch(1, 4))
    assert lines == list(ListedPart(datasets["files", "original"], again).lines())


def test_the_null_loader_yields_the_asked_batches():
    """As all do: numbers from the first to the last, uint8 images and int64 labels of one shape."""
    found = list(make_loader("null", None, LoaderOptions(4, 9, first_batch=3, crop=16)))
    assert list(range(3, 9)) == [batch.number for batch in found]
    assert {((4, 3, 16, 16), torch.uint8, torch.int64)} == {
        (tuple(batch.images.shape), batch.images.dtype, batch.labels.dtype) for batch in found
    }
