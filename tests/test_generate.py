"""Synthetic ImageNet: its sizes, how it is encoded, the same bytes from the same seed.

What decoding them costs is measured by benchmarks/generated_images.py.
"""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_datasets import folder_bytes, made
from PIL import Image, JpegImagePlugin
from strategies import examples

from ioprof.converters import GenerateOptions, generate
from ioprof.converters.images.size_distribution import BYTE_QUANTILES, draw_size, target_bytes
from ioprof.converters.images.synthesis import TOLERANCE, synthetic_jpeg
from ioprof.errors import CommandError

IMAGES = 200


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> Path:
    """A tree of 200 images in 7 classes."""
    folder = tmp_path_factory.mktemp("generated") / "tree"
    generate(folder, GenerateOptions(images=IMAGES, classes=7, workers=2))
    return folder


def lengths(folder: Path) -> np.ndarray:
    return np.array([path.stat().st_size for path in folder.glob("*/*.JPEG")])


@pytest.mark.job(every=4)
def test_files_are_as_large_as_those_of_imagenet(generated):
    """Median and mean within 3 %, every quartile within 5 %."""
    sizes = lengths(generated)
    assert IMAGES == len(sizes)
    assert abs(np.median(sizes) / 107_073 - 1) < 0.03
    assert abs(sizes.mean() / 110_000 - 1) < 0.03
    for share in (0.25, 0.5, 0.75, 0.95):
        assert abs(np.quantile(sizes, share) / BYTE_QUANTILES[share] - 1) < 0.05


@given(st.integers(500, 3000), st.integers(0, 2**32 - 1))
def test_target_sizes_follow_the_distribution(images, seed):
    """For any number and seed: median and mean within 2 %, the 99th percentile within 10 %, nothing
    beyond the ends."""
    sizes = target_bytes(images, np.random.default_rng(seed))
    assert abs(np.median(sizes) / 107_073 - 1) < 0.02
    assert abs(sizes.mean() / 110_000 - 1) < 0.02
    assert abs(np.quantile(sizes, 0.99) / 373_682 - 1) < 0.10
    assert 2_135 <= sizes.min() <= sizes.max() <= 723_977


@settings(max_examples=examples(25))
@given(st.integers(2_135, 250_000), st.integers(0, 2**32 - 1))
def test_an_image_has_the_size_that_was_asked_for(size, seed):
    """Within 3 %, by what it shows: nothing follows its end mark, no segment is there to fill it
    up, and it decodes."""
    data = synthetic_jpeg(size, np.random.default_rng(seed))
    assert abs(len(data) / size - 1) <= TOLERANCE
    image = Image.open(io.BytesIO(data))
    image.load()
    assert data.endswith(b"\xff\xd9")
    assert (("JPEG", "RGB"), {"APP0"}) == (
        (image.format, image.mode),
        {name for name, _ in image.applist},
    )


@pytest.mark.job
def test_dimensions_are_those_of_imagenet(generated):
    """473 × 406 on average, within 6 %; most have a longer side of 500; larger files are larger
    images."""
    random = np.random.default_rng(0)
    sizes = target_bytes(3000, random)
    dimensions = np.array([draw_size(int(size), random) for size in sizes])
    assert (np.abs(dimensions.mean(0) / (473, 406) - 1) < 0.06).all()
    assert 0.55 < (dimensions.max(1) == 500).mean() < 0.80
    pixels = dimensions.prod(1)
    assert (
        pixels[sizes < 30_000].mean()
        < pixels[(sizes > 80_000) & (sizes < 200_000)].mean()
        < pixels[sizes > 400_000].mean()
    )


@pytest.mark.job
def test_images_are_encoded_as_imagenets_are(generated):
    """Standard tables between quality 60 and 96, with and without chroma subsampling, as in the
    real ones."""
    images = [Image.open(path) for path in generated.glob("*/*.JPEG")]
    assert {0, 2} == {JpegImagePlugin.get_sampling(image) for image in images}
    assert all(4 < np.mean(image.quantization[0]) < 47 for image in images)
    for image in images:
        image.close()


@pytest.mark.job(every=4)
def test_the_seed_decides_the_bytes_and_the_workers_do_not(tmp_path):
    """One process or three; another seed gives other images."""
    options = {"images": 30, "classes": 3}
    one, three, other = (
        folder_bytes(generate(tmp_path / name, GenerateOptions(**options, **more)).path)
        for name, more in {
            "one": {"workers": 1},
            "three": {"workers": 3},
            "other": {"workers": 2, "seed": 1},
        }.items()
    )
    assert one == three
    assert not set(one.values()) & {data for name, data in other.items() if name.endswith(".JPEG")}


def test_tars_hold_what_the_tree_holds(tmp_path):
    """A tar of tars that `tarfile` reads, with the same images, and that converts to the same
    records."""
    options = {"images": 24, "classes": 5, "workers": 1}
    as_tree = generate(tmp_path / "tree", GenerateOptions(**options))
    as_tars = generate(tmp_path / "tars", GenerateOptions(**options, form="tars"))
    found = {}
    with tarfile.open(as_tars.path / "ILSVRC2012_img_train.tar") as outer:
        for member in outer:
            with tarfile.open(fileobj=outer.extractfile(member)) as inner:
                found |= {
                    f"{member.name.removesuffix('.tar')}/{image.name}": inner.extractfile(
                        image
                    ).read()
                    for image in inner
                }
    assert {
        name: data for name, data in folder_bytes(as_tree.path).items() if name.endswith(".JPEG")
    } == found
    converted = [
        made(each.path, tmp_path / f"dataset-{each.form}", layout="lmdb")
        for each in (as_tree, as_tars)
    ]
    assert converted[0].digest == converted[1].digest
    assert "synthetic class 1" == converted[0].classes[0].name == converted[1].classes[0].name


def test_what_was_generated_can_be_replaced_and_nothing_else(tmp_path):
    """Only with --force, and only what ioprof made."""
    options = GenerateOptions(images=2, classes=2, workers=1)
    generate(tmp_path / "images", options)
    with pytest.raises(CommandError, match="--force"):
        generate(tmp_path / "images", options)
    generate(tmp_path / "images", GenerateOptions(images=1, classes=1, workers=1, force=True))
    assert 1 == len(lengths(tmp_path / "images"))
    assert ["images"] == [path.name for path in tmp_path.iterdir()]
