"""Ten epochs predicted from two, against ten epochs run: a dataset of half and of twice the memory
limit, cold at the start.

    python benchmarks/epochs.py [MB [SCALES]]

The job is `ioprof run --predict-epochs 10` on an emulated P100 that trains ResNet-50, with two
workers, raw images in an LMDB that are read by pread, on a disk that is throttled to 30 MB/s, under
a memory limit of MB (600) megabytes. The disk needs root. An epoch of the smaller dataset is bound
by the disk while it is cold and by the device later, one of the larger dataset always by the disk,
so that other programs on the machine matter little. What is compared is the time of the whole
command, from run.json. The error has two parts, which are told apart: the model's, by a prediction
from the first two epochs of the same ten, and what the machine did differently in another run.
SCALES: 0.5x,2x.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import slow_storage

import ioprof
from ioprof.analysis.answer.epoch_prediction import predicted_epochs

RATE, IMAGE_BYTES, EPOCHS = 30_000_000, 3 * 256 * 256, 10
SCALES = {"0.5x": "1x", "2x": "4x"}
"""Of the memory limit, and of the dataset, which is half of it."""


def run(
    disk: slow_storage.ThrottledDisk, data: Path, scale: str, limit_mb: int, out: Path, *length: str
) -> "ioprof.Run":
    """One recorded job."""
    words = ["--lmdb-read", "pread", "--device", "emulated:p100", "--cache", "cold", "--no-stacks"]
    command = [
        sys.executable,
        "-m",
        "ioprof",
        "run",
        str(data),
        "--dataset-scale",
        scale,
        *words,
        "--memory-limit",
        f"{limit_mb}M",
    ]
    done = subprocess.run(
        [*command, *length, "--out", str(out)], capture_output=True, text=True, preexec_fn=disk.join
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return ioprof.Run.load(out)


def main() -> int:
    if why := slow_storage.missing():
        print(f"skipped: {why}")
        return 0
    limit_mb = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    chosen = sys.argv[2].split(",") if len(sys.argv) > 2 else list(SCALES)
    images = limit_mb * 1_000_000 // 2 // IMAGE_BYTES
    with (
        tempfile.TemporaryDirectory() as name,
        slow_storage.throttled_disk(Path(name), int(3.4e6 * limit_mb)) as disk,
    ):
        folder, data = Path(name), disk.path / "data"
        ioprof.convert(
            f"synthetic:{images}", data, layout="lmdb", image="rgb256", encoding="raw", workers=2
        )
        disk.throttle(RATE)
        print(f"{images} images, limit {limit_mb} MB, load {os.getloadavg()[0]:.1f}")
        print("dataset  made  start+end  first epoch  later epoch  from storage, first/last")
        for of_limit, scale in ((each, SCALES[each]) for each in chosen):
            asked = ("--predict-epochs", str(EPOCHS))
            two = run(disk, data, scale, limit_mb, folder / f"two-{scale}", *asked)
            ten = run(
                disk,
                data,
                scale,
                limit_mb,
                folder / f"ten-{scale}",
                *asked,
                "--epochs",
                str(EPOCHS),
            )
            times, found, whole = (
                ten.trace.run.times,
                two.summary.prediction,
                ten.summary.prediction,
            )
            took_s = (times.end_ns - times.start_ns) / 1e9
            for made, each in (("2", found), ("10", whole)):
                shares = "/".join(
                    f"{part / each.dataset_bytes:.0%}"
                    for part in (each.storage_bytes[0], each.storage_bytes[-1])
                )
                parts = (
                    f"{each.fixed_s:7.2f} s  {each.first_epoch_s:9.2f} s  {each.later_epoch_s:9.2f}"
                    f" s  {shares:>25}"
                )
                print(f"{of_limit:<8} {made:<4} {parts}", flush=True)
            print(
                f"{of_limit:<8} from storage in each of ten, MB:"
                f" {[round(part / 1e6) for part in whole.storage_bytes]}",
                flush=True,
            )
            for which, each in (
                ("another run", found),
                ("the same run", predicted_epochs(ten.trace, 2)),
            ):
                error = (
                    f"{each.seconds:.2f} s ± {each.error_s:.2f} s, run {took_s:.2f} s:"
                    f" {each.seconds / took_s - 1:+.1%}"
                )
                print(
                    f"{of_limit:<8} ten epochs predicted from two of {which} {error}, load"
                    f" {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
