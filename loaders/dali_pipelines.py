"""The DALI pipelines that read, decode, crop and flip what ioprof has converted."""

import importlib
import importlib.util
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np

from ioprof.format.dataset import Dataset, open_environment
from ioprof.loaders.base import LoaderOptions, Record
from ioprof.loaders.crops import AREA, ASPECT, CROP_TRIES
from ioprof.loaders.tar_index import SUFFIX

READER: Final = "reader"
"""The name of a pipeline's reader."""


def is_installed() -> bool:
    """Whether DALI can be imported, as far as is known without doing so."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:  # nor anything else of NVIDIA's
        return False


def make_pipeline(dataset: Dataset, options: LoaderOptions, listed: Path, maps_files: bool) -> Any:
    """The pipeline of one rank: uint8 (batch, 3, crop, crop) images, cropped and flipped as in
    `images.load_sample`, and labels.

    `listed` is the list of a `ListedPart`; with `maps_files` its reader maps files, else it reads
    them. LMDB is always mapped.
    """
    dali = _library()
    fn = dali.fn
    pipeline = dali.Pipeline(
        batch_size=options.batch_size,
        num_threads=max(1, options.workers),
        device_id=options.device_id,
        seed=options.seed * 1_000_003 + options.rank,
        prefetch_queue_depth=max(1, options.prefetch),
    )
    with pipeline:
        data, labels = _read(dataset, options, listed, maps_files)
        image = fn.crop_mirror_normalize(
            _cropped(data, dataset, options),
            dtype=dali.types.UINT8,
            output_layout="CHW",
            mirror=fn.random.coin_flip(),
            mean=[0.0] * 3,
            std=[1.0] * 3,
        )
        pipeline.set_outputs(image, labels)
    return pipeline


def _read(dataset: Dataset, options: LoaderOptions, listed: Path, maps_files: bool) -> Any:
    fn = _library().fn
    unmapped = {"dont_use_mmap": not maps_files}
    if dataset.layout == "files":
        return fn.readers.file(
            name=READER, file_root=str(dataset.path), file_list=str(listed), **unmapped
        )
    stored = {
        "name": READER,
        "shard_id": options.rank,
        "num_shards": options.num_ranks,
        "random_shuffle": True,
        "initial_fill": max(1, options.shuffle_buffer),
        "pad_last_batch": True,
    }
    if dataset.layout == "lmdb":
        return fn.readers.caffe2(
            path=[str(folder) for folder in filled_environments(dataset)], label_type=0, **stored
        )
    shards = [str(path) for path in dataset.shard_paths()]
    components = ["jpg;png;rgb", "cls"]
    indexes = [path.with_suffix(SUFFIX) for path in dataset.shard_paths()]
    indexed = (
        {"index_paths": list(map(str, indexes))} if all(path.is_file() for path in indexes) else {}
    )
    return fn.readers.webdataset(
        paths=shards,
        ext=components,
        missing_component_behavior="error",
        **indexed,
        **stored,
        **unmapped,
    )


def _cropped(data: Any, dataset: Dataset, options: LoaderOptions) -> Any:
    fn = _library().fn

    crop = {
        "random_area": list(AREA),
        "random_aspect_ratio": list(ASPECT),
        "num_attempts": CROP_TRIES,
    }
    image = dataset.image
    if image.encoding == "raw":
        if dataset.layout != "lmdb":
            data = fn.reshape(data, shape=[image.size, image.size, 3], layout="HWC")
        return fn.random_resized_crop(
            data.gpu() if options.device_id is not None else data, size=options.crop, **crop
        )
    device = "cpu" if options.device_id is None else "mixed"
    return fn.resize(
        fn.decoders.image_random_crop(data, device=device, **crop),
        size=[options.crop, options.crop],
    )


def filled_environments(dataset: Dataset) -> list[Path]:
    """The environments of an `lmdb` dataset that hold records: DALI takes none that is empty."""
    filled = []
    for folder in dataset.shard_paths():
        environment = open_environment(folder)
        try:
            filled += [folder] if environment.stat()["entries"] else []
        finally:
            environment.close()
    return filled


def first_undecodable(
    suspects: Iterable[tuple[int, Record]], raw_shape: tuple[int, int, int] | None
) -> tuple[int, int] | None:
    """Index and bytes of the first record that DALI alone, given it by itself, cannot decode; None:
    it can decode them all.
    """
    dali = _library()
    fn = dali.fn
    pipeline = dali.Pipeline(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1)
    with pipeline:
        pipeline.set_outputs(
            fn.decoders.image(fn.external_source(name="data", dtype=dali.types.UINT8, ndim=1))
        )
    for index, record in suspects:
        try:
            if raw_shape is None:
                pipeline.run(data=[np.frombuffer(record.data, np.uint8)])
            elif len(record.data) != math.prod(raw_shape):
                return index, len(record.data)
        except RuntimeError:
            return index, len(record.data)
    return None


def _library() -> Any:
    # By name, so that types are checked alike where it is installed and where it is not.
    importlib.import_module("nvidia.dali.fn")
    return importlib.import_module("nvidia.dali")
