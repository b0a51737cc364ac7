"""The rate of each loader, compared with a minimal implementation of the same backend in about
twenty lines, on real images.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/loaders.py [--json] [--pairs 9] [--only files,dali] [--work DIR]

Each pair measures ours and the minimal one, in alternating order, from their tenth batch on:
samples per second, and CPU milliseconds per sample of the process and its workers. The medians of
the ratios count, because the load of a shared machine cancels out within a pair; the ratio of CPU
times is more stable there. Everything is read from the page cache.

    targets  0.98 of the minimal backend; files: 1.0 of torch's DataLoader with Pillow; raw
             256-pixel LMDB: 4 times `files` on
    originals

Findings:

- Resizing in Pillow took 0.37 of the 0.54 ms of a raw sample, and copies from and to arrays 0.09.
  The uint8 filter of torch, which keeps the channel-first layout of a batch, reduced it to 0.22 ms,
  and raised raw relative to `files` from 4.1 to 9 times.
- `Image.convert("RGB")` copies images that are already RGB: 0.1 ms per photograph.
- Reads of a tar reuse one buffer: with a new one for each read the page faults cost as much as the
  reads (0.08 and 0.05 ms per record).
- DALI with `random_shuffle` is not comparable here: its buffer keeps all 500 files of the sample
  mapped, which is impossible for a real dataset, and saves 5 % of the CPU time. The minimal
  pipeline therefore reads a list in random order.
- Ratios of rates are imprecise on a shared machine: 0.6 to 2.3 in pairs of equal jobs, at a load of
  8 on 2 cores. The ratio of CPU times of DALI was 0.94 to 1.01 there in six series, of which the
  main thread of the rank explains 0.01.
- On an otherwise idle machine, medians of 7 pairs: files 1.16, LMDB 1.17, raw LMDB 1.86, webdataset
  1.24, DALI 0.99, raw against files 4.5 times.
"""  # noqa: E501

import argparse
import importlib.util
import io
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import lmdb
import numpy as np
import psutil
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from ioprof.converters import ConvertOptions, convert
from ioprof.foreign.tensorprotos import decode
from ioprof.format.dataset import Dataset as Manifest
from ioprof.format.dataset import read_index
from ioprof.loaders import make_loader
from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.crops import crop_box

try:
    import torchvision
except (ImportError, RuntimeError, OSError):  # not installed, or its wheel does not fit this torch
    torchvision = None

BATCH, CROP, WORKERS, WARM_UP = 64, 224, 2, 10
DATASETS = {
    "files": {"layout": "files"},
    "lmdb": {"layout": "lmdb"},
    "webdataset": {"layout": "webdataset", "shard_bytes": 8 << 20},
    "raw": {"layout": "lmdb", "image": "rgb256", "encoding": "raw"},
}


def main() -> None:
    options = parse()
    if options.sample is None:
        print("loaders: not measured; set IOPROF_IMAGENET_SAMPLE to a folder of real images")
        return
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=options.work, prefix="ioprof-bench-") as folder:
        datasets = {
            name: convert(options.sample, Path(folder) / name, ConvertOptions(**each))
            for name, each in DATASETS.items()
        }
        for name in options.only.split(","):
            if missing := [each for each in NEEDS.get(name, ()) if not is_installed(each)]:
                print(f"{name}: not measured; {missing[0]} is not installed", file=sys.stderr)
                continue
            found = compared(COMPARISONS[name], datasets, options)
            print(json.dumps({name: found}) if options.json else line(name, found), flush=True)


def is_installed(module: str) -> bool:
    """Whether it can be imported, as far as is known without doing so."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor the package that it is in
        return False


def parse() -> argparse.Namespace:
    sample = os.environ.get("IOPROF_IMAGENET_SAMPLE")
    parser = argparse.ArgumentParser(description="What each loader delivers.")
    parser.add_argument("--json", action="store_true", help="one object per line, for machines")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--batches", type=int, default=30, help="batches that are measured")
    parser.add_argument("--work", type=Path, help="where to write the datasets")
    parser.add_argument(
        "--only", default=",".join(COMPARISONS), help="some of: " + ", ".join(COMPARISONS)
    )
    parser.add_argument(
        "--sample",
        type=Path,
        default=Path(sample) if sample else None,
        help="a tree of real images",
    )
    return parser.parse_args()


# ---------------------------------------------------------------------------------------- measuring

Side = Callable[[dict[str, Manifest], int], Iterator[torch.Tensor]]
"""The batches of a loader, at least this many."""


def compared(
    sides: tuple[Side, Side, float], datasets: dict[str, Manifest], options: argparse.Namespace
) -> dict:
    """Medians of both, and the ratios of the first to the second."""
    one, other, bar = sides
    count = WARM_UP + options.batches
    rates: list[tuple[float, float]] = []
    cpu_ms: list[tuple[float, float]] = []
    for pair in range(options.pairs):
        if pair % 2:
            second, first = (
                measured(other(datasets, count), options.batches),
                measured(one(datasets, count), options.batches),
            )
        else:
            first, second = (
                measured(one(datasets, count), options.batches),
                measured(other(datasets, count), options.batches),
            )
        rates.append((first[0], second[0]))
        cpu_ms.append((first[1], second[1]))
    ratios = sorted(first / second for first, second in rates)
    return {
        "per_s": [statistics.median(rate) for rate in zip(*rates, strict=True)],
        "cpu_ms": [statistics.median(each) for each in zip(*cpu_ms, strict=True)],
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "cpu_ratio": statistics.median(second / first for first, second in cpu_ms),
        "bar": bar,
    }


def measured(batches: Iterator[torch.Tensor], count: int) -> tuple[float, float]:
    """Samples per second, and CPU milliseconds per sample."""
    for _ in islice(batches, WARM_UP):
        pass
    started, cpu_s, samples = time.perf_counter(), cpu_seconds(), 0
    for images in islice(batches, count):
        samples += len(images)
    return samples / (time.perf_counter() - started), (cpu_seconds() - cpu_s) / samples * 1e3


def cpu_seconds() -> float:
    """CPU time of this process and its running children."""
    here = psutil.Process()
    return sum(
        process.cpu_times().user + process.cpu_times().system
        for process in (here, *here.children())
    )


def line(name: str, found: dict) -> str:
    ours, minimal = (
        f"{rate:6.0f} images/s {cpu:5.2f} CPU ms"
        for rate, cpu in zip(found["per_s"], found["cpu_ms"], strict=True)
    )
    spread = (
        f"{found['ratios'][0]:.2f}-{found['ratios'][-1]:.2f}; target {found['bar']}; CPU"
        f" {found['cpu_ratio']:.2f}"
    )
    return f"{name:11} {ours}   minimal {minimal}   x {found['ratio']:.2f} ({spread})"


# --------------------------------------------------------------------------------------------- ours


def ours(loader: str, dataset: str, **chosen: str) -> Side:
    def batches(datasets: dict[str, Manifest], count: int) -> Iterator[torch.Tensor]:
        options = LoaderOptions(BATCH, count, workers=WORKERS, crop=CROP, **chosen)
        return (batch.images for batch in make_loader(loader, datasets[dataset], options))

    return batches


# ------------------------------------------------------------------------------------------ minimal


def augmented(image: Image.Image) -> torch.Tensor:
    """RandomResizedCrop and RandomHorizontalFlip of torchvision, with Pillow."""
    image = image.convert("RGB")
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < down <= height:
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            image = image.crop((left, top, left + across, top + down))
            break
    image = image.resize((CROP, CROP), Image.Resampling.BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


class BareFiles(Dataset):
    """A minimal ImageFolder."""

    def __init__(self, dataset: Manifest) -> None:
        self.root, (self.paths, self.labels) = str(dataset.path), read_index(dataset)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(f"{self.root}/{self.paths[index]}") as image:
            return augmented(image), self.labels[index]


class BareLmdb(Dataset):
    """A minimal dataset on py-lmdb."""

    def __init__(self, dataset: Manifest) -> None:
        self.path, self.cursor = str(dataset.data_path), None

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.cursor is None:
            self.cursor = (
                lmdb.open(self.path, readonly=True, lock=False).begin(buffers=True).cursor()
            )
        self.cursor.set_range(b"%08d_" % index)
        data, shape, label = decode(self.cursor.value())
        image = (
            Image.fromarray(np.frombuffer(data, np.uint8).reshape(shape))
            if shape
            else Image.open(io.BytesIO(data))
        )
        return augmented(image), label


class TensorFiles(BareFiles):
    """The operations of torchvision's v2 on tensors: a whole image by libjpeg-turbo, then crop,
    antialiased resize, flip.

    By torchvision itself where its decoder can be loaded (its wheel needs a torch for CUDA), else
    by simplejpeg and torch.
    """

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        data = Path(f"{self.root}/{self.paths[index]}").read_bytes()
        if torchvision is not None:
            image = torchvision.io.decode_jpeg(
                torch.frombuffer(bytearray(data), dtype=torch.uint8), mode="RGB"
            )
            return tensor_transform()(image), self.labels[index]
        pixels = simplejpeg.decode_jpeg(data)
        left, top, right, bottom = crop_box(pixels.shape[1], pixels.shape[0], random)
        part = torch.from_numpy(pixels)[top:bottom, left:right].permute(2, 0, 1)[None]
        image = torch.nn.functional.interpolate(
            part, (CROP, CROP), mode="bilinear", antialias=True
        )[0]
        return image.flip(-1) if random.random() < 0.5 else image, self.labels[index]


@cache
def tensor_transform() -> Callable[[torch.Tensor], torch.Tensor]:
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomResizedCrop(CROP, antialias=True), v2.RandomHorizontalFlip()])


def bare_spdl(datasets: dict[str, Manifest], count: int) -> Iterator[torch.Tensor]:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    found = datasets["files"]
    paths, _ = read_index(found)
    order = random.choices(range(found.records), k=count * BATCH)

    def load(index: int) -> object:
        packets = spdl.io.demux_image(f"{found.path}/{paths[index]}")
        left, top, right, bottom = crop_box(packets.width, packets.height, random)
        flip = ",hflip" if random.random() < 0.5 else ""
        size = f"crop={right - left}:{bottom - top}:{left}:{top},scale={CROP}:{CROP}:flags=bilinear{flip}"  # noqa: E501
        return spdl.io.decode_packets(packets, filter_desc=f"{size},format=pix_fmts=rgb24")

    def stacked(frames: list) -> torch.Tensor:
        return spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)

    builder = (
        PipelineBuilder()
        .add_source(order)
        .pipe(load, concurrency=WORKERS)
        .aggregate(BATCH)
        .pipe(stacked)
        .add_sink(2)
    )
    with (pipeline := builder.build(num_threads=WORKERS)).auto_stop():
        yield from pipeline.get_iterator()


def bare_torch(kind: type[Dataset], dataset: str) -> Side:
    def batches(datasets: dict[str, Manifest], count: int) -> Iterator[torch.Tensor]:
        found = datasets[dataset]
        order = torch.cat(
            [torch.randperm(found.records) for _ in range(1 + count * BATCH // found.records)]
        )
        loader = DataLoader(kind(found), BATCH, sampler=order.tolist(), num_workers=WORKERS)
        return (images for images, _ in loader)

    return batches


def bare_webdataset(datasets: dict[str, Manifest], _: int) -> Iterator[torch.Tensor]:
    import webdataset

    def decoded(sample: dict) -> tuple[torch.Tensor, int]:
        return augmented(Image.open(io.BytesIO(sample["jpg"]))), int(sample["cls"])

    shards = [str(path) for path in datasets["webdataset"].shard_paths()]
    stream = (
        webdataset.WebDataset(shards, shardshuffle=len(shards))
        .shuffle(1000)
        .map(decoded)
        .repeat()
        .batched(BATCH)
    )
    return (images for images, _ in DataLoader(stream, None, num_workers=WORKERS))


def bare_dali(datasets: dict[str, Manifest], count: int) -> Iterator[torch.Tensor]:
    from nvidia.dali import Pipeline, fn, types

    found = datasets["files"]
    paths, labels = read_index(found)
    order = random.choices(range(found.records), k=count * BATCH)
    pipeline = Pipeline(
        batch_size=BATCH, num_threads=WORKERS, device_id=None, prefetch_queue_depth=2
    )
    with pipeline:
        listed = {
            "files": [paths[index] for index in order],
            "labels": [labels[index] for index in order],
        }
        data, classes = fn.readers.file(file_root=str(found.path), **listed)
        images = fn.decoders.image_random_crop(
            data, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
        )
        images = fn.resize(images, size=[CROP, CROP])
        images = fn.crop_mirror_normalize(
            images, mirror=fn.random.coin_flip(), dtype=types.UINT8, output_layout="CHW"
        )
        pipeline.set_outputs(images, classes)
    pipeline.build()
    for _ in range(count):
        images, classes = pipeline.run()
        torch.from_dlpack(classes.as_tensor())
        yield torch.from_dlpack(images.as_tensor())


COMPARISONS: dict[str, tuple[Side, Side, float]] = {
    "files": (ours("files", "files"), bare_torch(BareFiles, "files"), 1.0),
    "lmdb": (ours("lmdb", "lmdb"), bare_torch(BareLmdb, "lmdb"), 0.98),
    "lmdb raw": (ours("lmdb", "raw"), bare_torch(BareLmdb, "raw"), 0.98),
    "webdataset": (ours("webdataset", "webdataset"), bare_webdataset, 0.98),
    "dali": (ours("dali", "files"), bare_dali, 0.98),
    "raw / files": (ours("lmdb", "raw"), ours("files", "files"), 4.0),
    "files crop / whole": (ours("files", "files"), ours("files", "files", decode="pillow"), 1.5),
    "lmdb crop / whole": (ours("lmdb", "lmdb"), ours("lmdb", "lmdb", decode="pillow"), 1.5),
    "webdataset crop / whole": (
        ours("webdataset", "webdataset"),
        ours("webdataset", "webdataset", decode="pillow"),
        1.5,
    ),
    "files / tensors": (ours("files", "files"), bare_torch(TensorFiles, "files"), 1.3),
    "files / spdl": (ours("files", "files"), bare_spdl, 1.3),
    "files / dali": (ours("files", "files"), bare_dali, 1.3),
}
NEEDS = {
    "webdataset": ("webdataset",),
    "dali": ("nvidia.dali",),
    "files / dali": ("nvidia.dali",),
    "files / spdl": ("spdl.io", "spdl.pipeline"),
}
"""Packages that a comparison needs and ioprof does not."""

if __name__ == "__main__":
    main()
