"""The speed of a conversion, compared with its limits and with common tools.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/convert.py [--json] [--repeats 3] [--images 16000] [--work DIR] [--only rgb256,...]

    rgb256    real images to 256 x 256 JPEG in LMDB, compared with the same work on images in memory
              without reading or writing, with the same work when each image is read from its file
              and appended to one file per process, and with a pool of processes with Pillow that
              reads and writes files; all on all cores
    original  a tar of tars to LMDB, compared with `tar x` of the same tar; both including the final
              sync
    memory    the peak memory of all processes of a conversion, for 1,000, 10,000 and 100,000
              records

The images are those of the sample, under as many names as needed. In each repeat all variants run
one after the other, and the medians of the paired ratios count. If other programs use the same
cores, rates cannot be compared, but CPU times can: user and system time of all processes from start
to end; for the work in memory that of the work alone. The ratio of CPU times equals the ratio of
rates if all cores are free and the storage is fast enough.

The limit: reading 110 kB and writing 26 kB takes 0.17 to 0.26 ms of CPU time, in addition to 1.9 ms
of work in memory, on the machine of the measurement; 0.84 to 0.92 of the rate of the work in memory
is therefore the maximum there. Starting the workers takes 0.9 s of CPU time once: the result is
0.92 of the rate with reading and writing with 16,000 images, 0.95 with 48,000.
"""  # noqa: E501

import argparse
import ctypes
import io
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from ioprof.converters import ConvertOptions, convert
from ioprof.converters.images.transforms import transform_for
from ioprof.converters.job.worker_pool import num_cores

RGB256 = {"image": "rgb256", "layout": "lmdb"}
QUALITY = 90
CHUNK = 16
MOST_RECORD_BYTES = 120_000
RECORDS = (1_000, 10_000, 100_000)
SAMPLED_S = 0.02


def main() -> None:
    options = parse()
    if options.sample is None:
        print("conversion: not measured; set IOPROF_IMAGENET_SAMPLE to a folder of real images")
        return
    result: dict = {"cores": num_cores(), "images": options.images}
    with tempfile.TemporaryDirectory(dir=options.work, prefix="ioprof-bench-") as folder:
        for name in options.only.split(","):
            result[name] = MEASUREMENTS[name](options, Path(folder) / name)
    print(json.dumps(result, indent=1) if options.json else table(result))


def parse() -> argparse.Namespace:
    sample = os.environ.get("IOPROF_IMAGENET_SAMPLE")
    parser = argparse.ArgumentParser(description="How fast a conversion is.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=16_000)
    parser.add_argument(
        "--work", type=Path, help="where to write; not on a RAM disk, unless that is the question"
    )
    parser.add_argument(
        "--only", default=",".join(MEASUREMENTS), help="some of: " + ", ".join(MEASUREMENTS)
    )
    parser.add_argument(
        "--sample",
        type=Path,
        default=Path(sample) if sample else None,
        help="a tree of real images",
    )
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        source = options.memory_of
        convert(source, source.with_name(f"{source.name}-dataset"), ConvertOptions(layout="lmdb"))
        sys.exit()
    return options


# ------------------------------------------------------------------------------------------- rgb256


def rgb256(options: argparse.Namespace, folder: Path) -> dict:
    source = tree_of(options.sample, options.images, folder / "source")
    files = sorted(str(path) for path in source.glob("*/*"))
    sides: dict[str, Callable[[], float | object]] = {
        "in_memory": lambda: alone(files, None),
        "read_write": lambda: alone(files, fresh(folder / "bare")),
        "ioprof": lambda: convert(source, fresh(folder / "dataset"), ConvertOptions(**RGB256)),
        "pillow": lambda: pillow_pool(files, fresh(folder / "pillow")),
    }
    return rates(
        sides,
        options.repeats,
        len(files),
        folder,
        bars={"in_memory": 0.95, "read_write": 0.95, "pillow": 1.35},
    )


class Clock:
    """Start time of the variant that is measured."""

    began = 0.0


def alone(files: list[str], folder: Path | None) -> float:
    """Decode, resize and encode by one process per core, and nothing else. Returns CPU seconds.

    Without a folder, files are read before the measurement, and results dropped. With one, each
    file is read within it, and the result is written to one file per process, which every converter
    must do.
    """
    cores = num_cores()
    if folder is not None:
        folder.mkdir()
    context = multiprocessing.get_context("fork")
    ready, go, taken = context.Barrier(cores + 1), context.Barrier(cores + 1), context.SimpleQueue()
    workers = [
        context.Process(
            target=transform_all,
            args=(files[core::cores], folder and folder / str(core), ready, go, taken),
        )
        for core in range(cores)
    ]
    for worker in workers:
        worker.start()
    ready.wait()
    Clock.began = time.perf_counter()
    go.wait()
    for worker in workers:
        worker.join()
    return sum(taken.get() for _ in workers)


def transform_all(files: list[str], into: Path | None, ready: Any, go: Any, taken: Any) -> None:
    data = [Path(file).read_bytes() for file in files] if into is None else None
    transform = transform_for(ConvertOptions(**RGB256).image_format)
    ready.wait()
    go.wait()
    started = time.process_time()
    if data is None:
        with open(into, "wb") as written:
            for file in files:
                with open(file, "rb", buffering=0) as opened:
                    written.write(transform(opened.read()))
    else:
        for each in data:
            transform(each)
    taken.put(time.process_time() - started)


def pillow_pool(files: list[str], folder: Path) -> None:
    """A typical script: a pool of processes, one file at a time, with the filter of Pillow."""
    folder.mkdir()
    with multiprocessing.get_context("fork").Pool(num_cores()) as pool:
        tasks = ((file, f"{folder}/{number}.JPEG") for number, file in enumerate(files))
        for _ in pool.imap_unordered(by_pillow, tasks, chunksize=CHUNK):
            pass


def by_pillow(task: tuple[str, str]) -> None:
    source, destination = task
    with Image.open(source) as opened:
        image = opened.convert("RGB")
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    image.crop((left, top, left + side, top + side)).resize((256, 256)).save(
        destination, quality=QUALITY
    )


# ----------------------------------------------------------------------------------------- original


def original(options: argparse.Namespace, folder: Path) -> dict:
    folder.mkdir()
    tar = tar_of(options.sample, options.images, folder / "ILSVRC2012_img_train.tar")
    sides: dict[str, Callable[[], object]] = {
        "ioprof": lambda: convert(tar, fresh(folder / "dataset"), ConvertOptions(layout="lmdb")),
        "tar x": lambda: unpack(tar, fresh(folder / "unpacked")),
    }
    result = rates(sides, options.repeats, options.images, folder, bars={"tar x": 0.7})
    return {
        **result,
        "mb_per_s": {
            side: rate * tar.stat().st_size / options.images / 1e6
            for side, rate in result["per_s"].items()
        },
    }


def unpack(tar: Path, folder: Path) -> None:
    """`tar x` of the outer tar and of each inner one, as in ImageNet's instructions."""
    folder.mkdir()
    subprocess.run(["tar", "xf", tar, "-C", folder], check=True)
    for inner in sorted(folder.glob("*.tar")):
        inner.with_suffix("").mkdir()
        subprocess.run(["tar", "xf", inner, "-C", inner.with_suffix("")], check=True)
        inner.unlink()


# ------------------------------------------------------------------------------------------- memory


def memory(_: argparse.Namespace, folder: Path) -> dict:
    folder.mkdir()
    few = RECORDS[0]
    peaks = {images: memory_of(tiny_tree(images, folder / str(images))) for images in RECORDS}
    return {
        "peak_mb": {images: peak / 1e6 for images, peak in peaks.items()},
        "growth": {images: peak / peaks[few] for images, peak in peaks.items()},
        "bytes_per_record": {
            images: (peak - peaks[few]) / (images - few)
            for images, peak in peaks.items()
            if images > few
        },
    }


def memory_of(source: Path) -> int:
    """Sum of the peak resident sets (VmHWM) of all processes of a conversion, in bytes."""
    peaks: dict[int, int] = {}
    with subprocess.Popen([sys.executable, __file__, "--memory-of", str(source)]) as conversion:
        while conversion.poll() is None:
            for process in (
                conversion.pid,
                *(child.pid for child in psutil.Process(conversion.pid).children(recursive=True)),
            ):
                peaks[process] = max(peaks.get(process, 0), largest_resident_set(process))
            time.sleep(SAMPLED_S)
    if conversion.returncode:
        sys.exit(f"the conversion of {source} failed")
    return sum(peaks.values())


def largest_resident_set(process: int) -> int:
    # Not by getrusage, where a process starts with the peak of its parent.
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:  # the process has ended
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


# ---------------------------------------------------------------------------------------------- all


def rates(
    sides: dict[str, Callable[[], object]],
    repeats: int,
    images: int,
    folder: Path,
    bars: dict[str, float],
) -> dict:
    """Images per second and CPU time of each variant, medians of all repeats, and the ratios of
    ours to the others.

    A variant may return its own CPU seconds.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    cpu_ms: dict[str, list[float]] = {name: [] for name in sides}
    for repeat in range(repeats):
        for name, side in list(sides.items())[:: -1 if repeat % 2 else 1]:
            backed(folder, images * MOST_RECORD_BYTES)
            Clock.began = time.perf_counter()
            before = sum(os.times()[:4])
            counted = side()
            cpu_s = counted if isinstance(counted, float) else sum(os.times()[:4]) - before
            cpu_ms[name].append(cpu_s / images * 1e3)
            sync(folder)
            found[name].append(images / (time.perf_counter() - Clock.began))
    ratios = {
        name: {
            "of_rates": spread(
                [one / other for one, other in zip(found["ioprof"], found[name], strict=True)]
            ),
            "of_cpu": spread(
                [other / one for one, other in zip(cpu_ms["ioprof"], cpu_ms[name], strict=True)]
            ),
            "bar": bar,
        }
        for name, bar in bars.items()
    }
    medians = {name: statistics.median(each) for name, each in found.items()}
    return {
        "per_s": medians,
        "cpu_ms": {name: statistics.median(each) for name, each in cpu_ms.items()},
        "ratio_to": ratios,
    }


def backed(folder: Path, num_bytes: int) -> None:
    """Fill that much of the page cache and free it again.

    The host of a virtual machine reclaims idle memory; the first access to a page then costs ten
    times as much as writing to it: 80 us per record in one measurement.
    """
    scratch, megabyte = folder / "scratch", bytes(1 << 20)
    with open(scratch, "wb") as file:
        for _ in range(num_bytes >> 20):
            file.write(megabyte)
    scratch.unlink()
    sync(folder)


def spread(ratios: list[float]) -> dict[str, float]:
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    ctypes.CDLL(None).syncfs(descriptor)
    os.close(descriptor)


def fresh(path: Path) -> Path:
    if path.exists():
        started = time.perf_counter()
        shutil.rmtree(path)
        sync(path.parent)
        Clock.began += time.perf_counter() - started
    return path


def tree_of(sample: Path, images: int, folder: Path) -> Path:
    """A tree of that many images: those of the sample, repeated."""
    files = sorted(sample.glob("*/*.JPEG"))
    for number in range(images):
        file = files[number % len(files)]
        place = folder / file.parent.name / f"{number}.JPEG"
        place.parent.mkdir(parents=True, exist_ok=True)
        if number < len(files):
            shutil.copyfile(file, place)
        else:
            place.hardlink_to(folder / file.parent.name / f"{number % len(files)}.JPEG")
    return folder


def tiny_tree(images: int, folder: Path) -> Path:
    """A hundred classes of tiny images, which are converted quickly."""
    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, "JPEG")
    for label in range(100):
        (folder / f"n{label:08d}").mkdir(parents=True)
        first = folder / f"n{label:08d}" / f"n{label:08d}_0.JPEG"
        first.write_bytes(stream.getvalue())
        for number in range(1, images // 100):
            first.with_name(f"n{label:08d}_{number}.JPEG").hardlink_to(first)
    return folder


def tar_of(sample: Path, images: int, path: Path) -> Path:
    """A tar of one tar per class."""
    with tarfile.open(path, "w") as outer, tempfile.TemporaryFile() as stream:
        files = sorted(sample.glob("*/*.JPEG"))
        for place, file in enumerate(files):
            stream.seek(0)
            stream.truncate()
            with tarfile.open(fileobj=stream, mode="w") as inner:
                for number in range(place, images, len(files)):
                    inner.add(file, f"{number}.JPEG")
            member = tarfile.TarInfo(f"{file.parent.name}.tar")
            member.size = stream.tell()
            stream.seek(0)
            outer.addfile(member, stream)
    return path


def table(result: dict) -> str:
    lines = [f"{result['cores']} cores, {result['images']} images"]
    for name, found in result.items():
        if name in ("rgb256", "original"):
            lines += [
                f"{name:9} {side:10} {rate:8.0f} images/s   {found['cpu_ms'][side]:6.2f} ms of CPU"
                " per image"
                for side, rate in found["per_s"].items()
            ]
            lines += [
                f"{name:9} / {side:8} {shown(ratio['of_rates'])}; bar {ratio['bar']}; by CPU"
                f" {shown(ratio['of_cpu'])}"
                for side, ratio in found["ratio_to"].items()
            ]
        elif name == "memory":
            each = {
                images: f"{number:.0f} bytes per record"
                for images, number in found["bytes_per_record"].items()
            }
            lines += [
                f"memory    {images:>9,} records {peak:7.1f} MB   x {found['growth'][images]:.3f}  "
                f" {each.get(images, '')}".rstrip()
                for images, peak in found["peak_mb"].items()
            ]
    return "\n".join(lines)


def shown(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:5.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"


MEASUREMENTS: dict[str, Callable[[argparse.Namespace, Path], dict]] = {
    "rgb256": rgb256,
    "original": original,
    "memory": memory,
}

if __name__ == "__main__":
    main()
