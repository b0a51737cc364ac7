"""The benefit of staging on storage with 5 ms per read: three epochs from the shared path, and with
two modes of staging.

    python benchmarks/staging.py [--json] [--images 1200] [--read-ms 5] [--at-once 4] [--workers 4]

The shared storage is a FUSE server that delays each read, serves `--at-once` reads concurrently,
and does not use the page cache, so that every epoch reads it again, like a dataset larger than
memory. The local storage is the disk of `--folder`. `total` is the time from the first staged byte
to the end of the last step. `from shared` is the number of bytes that the server read, as a
multiple of the dataset. Needs root.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import fuse_server

from ioprof.analysis.charge.staging_cost import epoch_seconds, staging_cost
from ioprof.converters import ConvertOptions, GenerateOptions, convert, generate
from ioprof.format.dataset import Dataset
from ioprof.format.trace import Trace
from ioprof.loaders.base import LoaderOptions
from ioprof.loaders.order import batches_per_epoch

HEADING = (
    f"{'mode':15} {'staging s':>9} {'epochs s':>20} {'total s':>8} {'from shared':>11}"
    f" {'break-even':>11} {'shared epoch s':>15}"
)
EPOCHS = 3
BATCH = 16
MODES = {
    "shared": (),
    "before": ("--stage-mode", "before"),
    "while-training": ("--stage-mode", "while-training"),
}


def main() -> None:
    options = parse()
    if reason := fuse_server.missing():
        print(f"staging: not measured; {reason}")
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        generate(Path(folder, "tree"), GenerateOptions(images=options.images))
        rows = table(Path(folder), options)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    waits = f"{options.at_once} reads at once, {options.read_ms} ms each"
    print(f"{options.images} images, {EPOCHS} epochs, {options.workers} workers; {waits}")
    print(HEADING)
    for row in rows:
        print(shown(row))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What staging brings on slow shared storage.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--read-ms", type=float, default=5)
    parser.add_argument(
        "--at-once", type=int, default=4, help="requests that the server answers at a time"
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--folder", help="on a local disk")
    return parser.parse_args()


def table(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    dataset = convert(
        folder / "tree", folder / "served" / "data", ConvertOptions(layout="files", image="rgb256")
    )
    rows = []
    for mode, words in MODES.items():
        waits = {"read_ms": options.read_ms, "threads": options.at_once, "direct_io": True}
        with fuse_server.fuse_server(folder / "served", **waits) as mounted:
            rows.append({"mode": mode, **row(folder, mounted, dataset, words, options.workers)})
    return rows


def row(
    folder: Path, mounted: Any, dataset: Dataset, words: tuple[str, ...], workers: int
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        (Path(place) / "local").mkdir()
        command = [
            sys.executable,
            "-m",
            "ioprof",
            "run",
            mounted.path / "data",
            "--epochs",
            EPOCHS,
            "--batch-size",
            BATCH,
        ]
        command += ["--workers", workers, "--out", f"{place}/run", "--json"]
        command += ["--stage-to", f"{place}/local", *words] if words else []
        before = mounted.counters()["bytes"]
        ended = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(ended.stderr)
        served = mounted.counters()["bytes"] - before
        return {"served_ratio": served / dataset.bytes, **measured(Trace.load(Path(place, "run")))}


def measured(trace: Trace) -> dict[str, Any]:
    """Seconds of staging, of each epoch, and in total, and the values in the report."""
    config, records = trace.run.config, trace.run.dataset.records
    epochs = epoch_seconds(trace, batches_per_epoch(records, LoaderOptions(config.batch_size, 1)))
    cost = staging_cost(trace)
    before_s = trace.run.stage.seconds if cost and trace.run.stage.mode == "before" else 0.0
    steps = trace.spans.filter(pl.col("kind") == "step")
    return {
        "staging_s": cost.cost_s if cost else 0.0,
        "epochs_s": epochs,
        "total_s": before_s + (steps["end_ns"].max() - steps["start_ns"].min()) / 1e9,
        "break_even_epochs": cost.epochs if cost else None,
        "shared_epoch_s": cost.shared_epoch_s if cost else None,
    }


def shown(row: dict[str, Any]) -> str:
    epochs = " ".join(f"{seconds:6.2f}" for seconds in row["epochs_s"])
    known = [
        f"{row[key]:.2f}" if row[key] is not None else "–"
        for key in ("break_even_epochs", "shared_epoch_s")
    ]
    sizes = f"{row['total_s']:8.2f} {row['served_ratio']:10.2f}x {known[0]:>11} {known[1]:>15}"
    return f"{row['mode']:15} {row['staging_s']:9.2f} {epochs:>20} {sizes}"


if __name__ == "__main__":
    main()
