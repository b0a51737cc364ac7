"""DALI's own readers take what `convert` writes: all records, in order, with their labels, 0
included."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_datasets import made, records
from PIL import Image

from ioprof.format.dataset import Dataset
from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.dali_loader import DaliLoader

dali = pytest.importorskip(
    "nvidia.dali", reason="DALI is not installed (pip install ioprof[dali])", exc_type=ImportError
)
fn = pytest.importorskip("nvidia.dali.fn", exc_type=ImportError)

pytestmark = pytest.mark.filterwarnings("default")  # DALI's own, on machines without a GPU


def reader(dataset: Dataset) -> Any:
    """DALI's reader for the layout: an image and a label."""
    if dataset.layout == "lmdb":
        return fn.readers.caffe2(path=str(dataset.data_path), label_type=0, name="reader")
    if dataset.layout == "webdataset":
        return fn.readers.webdataset(
            paths=[str(path) for path in dataset.shard_paths()],
            ext=["jpg;png;rgb", "cls"],
            name="reader",
        )
    return fn.readers.file(
        file_root=str(dataset.path), file_list=str(dataset.index_path), name="reader"
    )


def read_by_dali(dataset: Dataset) -> list[tuple[int, bytes]]:
    """Label and bytes of all records, as DALI hands them out on a machine without a GPU."""
    pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipeline:
        pipeline.set_outputs(*reader(dataset))
    pipeline.build()
    assert dataset.records == pipeline.epoch_size("reader")
    found = []
    for _ in range(dataset.records):
        image, label = pipeline.run()
        number = np.asarray(label.at(0))
        found.append(
            (
                int(number.tobytes()) if dataset.layout == "webdataset" else int(number.item()),
                np.asarray(image.at(0)).tobytes(),
            )
        )
    return found


@pytest.mark.parametrize("layout", ["files", "lmdb", "webdataset"])
@pytest.mark.parametrize(
    "options",
    [{}, {"image": "rgb256"}, {"image": "rgb256", "encoding": "raw"}],
    ids=["original", "jpeg", "raw"],
)
def test_dali_reads_every_record(small_tree, tmp_path, layout, options):
    """Same bytes, same labels, same order."""
    dataset = made(small_tree, tmp_path / "dataset", layout=layout, **options)
    expected = [(label, data) for _, label, data in records(dataset)]
    assert 0 in {label for label, _ in expected}
    assert expected == read_by_dali(dataset)


def test_dali_sees_raw_images_in_their_shape_and_decodes_the_others(small_tree, tmp_path):
    """Height, width, channels; and JPEGs decode to what Pillow makes of them."""
    raw = made(small_tree, tmp_path / "raw", layout="lmdb", image="rgb256", encoding="raw")
    jpeg = made(small_tree, tmp_path / "jpeg", layout="lmdb", image="rgb256")
    pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=None)
    with pipeline:
        pixels, _ = fn.readers.caffe2(path=str(raw.data_path), label_type=0)
        encoded, _ = fn.readers.caffe2(path=str(jpeg.data_path), label_type=0)
        pipeline.set_outputs(pixels, fn.decoders.image(encoded, device="cpu"))
    pipeline.build()
    first, decoded = (np.asarray(output.at(0)) for output in pipeline.run())
    assert ((256, 256, 3), (256, 256, 3)) == (first.shape, decoded.shape)
    by_pillow = np.asarray(Image.open(io.BytesIO(records(jpeg)[0][2])), dtype=np.int16)
    assert np.abs(by_pillow - decoded).mean() < 2
    assert first.tobytes() == records(raw)[0][2]


def test_dali_reads_names_with_spaces(small_tree, tmp_path):
    """The label is the last word of an index line, for DALI too."""
    image = next(small_tree.glob("*/*")).read_bytes()
    (tmp_path / "source" / "n 01").mkdir(parents=True)
    (tmp_path / "source" / "n 01" / "a b  1.JPEG").write_bytes(image)
    dataset = made(tmp_path / "source", tmp_path / "dataset")
    assert [(0, image)] == read_by_dali(dataset)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("layout", ["files", "webdataset"])
def test_files_that_other_hosts_share_are_not_mapped(small_tree, tmp_path, layout, is_shared):
    """There every byte is read, by the kernel's own count; elsewhere DALI maps the files, and next
    to nothing is."""
    dataset = made(
        small_tree, tmp_path / "dataset", layout=layout, image="rgb256", encoding="raw", size=64
    )
    options = LoaderOptions(6, 6, workers=1, crop=16)
    list(DaliLoader(dataset, options, maps_files=not is_shared))  # what DALI loads late is loaded
    before = bytes_read()
    list(DaliLoader(dataset, options, maps_files=not is_shared))
    assert is_shared == (bytes_read() - before >= dataset.bytes)


def bytes_read() -> int:
    """By this process, as `rchar` has it (man proc_pid_io)."""
    return int(Path("/proc/self/io").read_text().split()[1])
