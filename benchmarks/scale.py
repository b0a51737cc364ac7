"""The effect of the size of a dataset on the second epoch: a table by --dataset-scale under
--memory-limit, on a loop device.

    python benchmarks/scale.py [--json] [--limit-mb 1024] [--layouts files,lmdb,lmdb-pread] [--scales 0.5x,1x,2x,4x] [--folder DIR]

The dataset at 1x is half the limit, so it fits into the page cache in addition to the job; 4x is
twice the limit. Each row is `ioprof run` from a cold cache over two epochs. Needs root and a loop
device.

    needed     the pages of the records whose reads needed storage, by the spans
    fetched    bytes read by the device while the job ran, by the sampled series of the run,
               including readahead and unused pages
    kernel     bytes read by the device, by /sys/block/loopN/stat before and after

Files are read completely, so needed equals fetched. Through a memory map the kernel reads windows
around the accessed pages; if memory is short, pages read ahead are evicted before they are used.
`lmdb-pread` is the same LMDB, read by `--lmdb-read pread`.
"""  # noqa: E501

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import slow_storage

from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate
from ioprof.format.dataset import Dataset
from ioprof.format.trace import Trace
from ioprof.jobs.dataset_multiple import multiple_of
from ioprof.loaders.scaling import Scale

PAGE_BYTES = 4096
SIDE = 256
RECORD_BYTES = 3 * SIDE * SIDE
BATCH = 32
COLUMNS = ("dataset", "needed 1", "needed 2", "fetched 1", "fetched 2", "kernel")
HEADING = (
    f"{'layout':10} {'scale':>5} "
    + " ".join(f"{name:>9}" for name in COLUMNS)
    + f" {'fetched/kernel':>15}"
)


def main() -> None:
    options = parse()
    if reason := slow_storage.missing("ext4"):
        print(f"scale: not measured; {reason}")
        return
    limit = options.limit_mb << 20
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        slow_storage.throttled_disk(Path(folder), 8 * limit) as disk,
    ):
        rows = [
            row
            for layout in options.layouts.split(",")
            for row in table(disk, layout, limit, options.scales.split(","))
        ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"memory limit {limit / 1e6:.0f} MB; MB from storage in epochs 1 and 2")
    print(HEADING)
    for row in rows:
        print(shown(row))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What a dataset's size does to the second epoch.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--limit-mb", type=int, default=1024, help="MiB for job and page cache")
    parser.add_argument("--layouts", default="files,lmdb,lmdb-pread")
    parser.add_argument("--scales", default="0.5x,1x,2x,4x")
    parser.add_argument("--folder", help="for the disk's image; 8 times the limit must fit")
    return parser.parse_args()


def table(
    disk: slow_storage.ThrottledDisk, layout: str, limit: int, scales: list[str]
) -> list[dict[str, Any]]:
    """A row for each scale of a dataset of half the limit, of raw images, so that storage and not
    decoding is the bound.
    """
    with tempfile.TemporaryDirectory(dir=disk.path) as folder:
        records = limit // 2 // RECORD_BYTES
        generate(Path(folder, "tree"), GenerateOptions(images=min(records, 200), classes=8))
        raw = ConvertOptions(
            layout=layout.removesuffix("-pread"), image="rgb256", encoding="raw", size=SIDE
        )
        one = convert(repeated(Path(folder, "tree"), records), Path(folder, "data"), raw)
        rows = []
        for scale in scales:
            rows.append(
                {"layout": layout, **row(disk, one, scale, limit, layout.endswith("-pread"))}
            )
            if scale != "1x":
                subprocess.run(["rm", "-r", f"{one.path}-{scale}"], check=True)
        return rows


def repeated(tree: Path, images: int) -> Path:
    """Add links to the images of a tree under further names, up to this number."""
    found = sorted(tree.glob("*/*.JPEG"))
    for number in range(len(found), images):
        path = found[number % len(found)]
        path.with_name(f"{path.stem}_{number}.JPEG").hardlink_to(path)
    return tree


def row(
    disk: slow_storage.ThrottledDisk, one: Dataset, scale: str, limit: int, by_pread: bool
) -> dict[str, Any]:
    # before the first reading of the counters of the device
    dataset = multiple_of(one, Scale.parse(scale))
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "ioprof",
            "run",
            dataset.path,
            "--memory-limit",
            f"{limit >> 20}M",
            "--cache",
            "cold",
        ]
        command += ["--epochs", "2", "--batch-size", str(BATCH), "--out", f"{folder}/run", "--json"]
        command += ["--lmdb-read", "pread"] if by_pread else []
        before = device_bytes(disk)
        ended = subprocess.run(command, check=False, capture_output=True, text=True)
        kernel = device_bytes(disk) - before
        if ended.returncode:
            raise SystemExit(f"{dataset.path}: {ended.stderr}")
        return {
            "scale": scale,
            **measured(Trace.load(Path(folder, "run")), Path(disk.device).name, kernel),
        }


def measured(trace: Trace, device: str, kernel_bytes: int) -> dict[str, Any]:
    """Bytes from storage of each epoch: needed, by the spans; fetched, by the device's sampled
    series; and the kernel's sum.
    """
    dataset, config = trace.run.dataset, trace.run.config
    steps = -(-dataset.records // config.batch_size)
    of_batches = trace.spans.filter(pl.col("batch").is_not_null()).with_columns(
        epoch=pl.col("batch") // steps
    )
    first = pl.col("offset").fill_null(0) // PAGE_BYTES
    last = (pl.col("offset").fill_null(0) + pl.col("bytes") - 1) // PAGE_BYTES
    reads = of_batches.filter(
        pl.col("kind").is_in(["read", "fault"]), pl.col("source") == "storage", pl.col("bytes") > 0
    )
    needed = dict(reads.group_by("epoch").agg(((last - first + 1) * PAGE_BYTES).sum()).rows())
    second_ns = of_batches.filter(pl.col("epoch") == 1, pl.col("kind") == "fetch")["start_ns"].min()
    before, between, after = series(trace, f"disk.{device}.read_bytes", second_ns)
    return {
        "dataset_bytes": dataset.bytes,
        "needed_bytes": [needed.get(0, 0), needed.get(1, 0)],
        "fetched_bytes": [between - before, after - between],
        "kernel_bytes": kernel_bytes,
        "cache": trace.run.cache.start.ratio,
        "limit": trace.run.limit and trace.run.limit.to_dict(),
    }


def series(trace: Trace, name: str, time_ns: int) -> tuple[int, int, int]:
    """A counter at the first sample, at a given time (interpolated), and at the last sample."""
    known = trace.counters.filter(pl.col("name").cast(pl.String) == name).sort("time_ns")
    times, values = known["time_ns"].to_numpy(), known["value"].to_numpy()
    return int(values[0]), round(float(np.interp(time_ns, times, values))), int(values[-1])


def device_bytes(disk: slow_storage.ThrottledDisk) -> int:
    """Bytes that the device has read since its creation."""
    return 512 * int(
        Path("/sys/class/block", Path(disk.device).name, "stat").read_text().split()[2]
    )


def shown(row: dict[str, Any]) -> str:
    sizes = (row["dataset_bytes"], *row["needed_bytes"], *row["fetched_bytes"], row["kernel_bytes"])
    ratio = sum(row["fetched_bytes"]) / row["kernel_bytes"]
    return (
        f"{row['layout']:10} {row['scale']:>5} "
        + " ".join(f"{size / 1e6:9.1f}" for size in sizes)
        + f" {ratio:15.4f}"
    )


if __name__ == "__main__":
    main()
