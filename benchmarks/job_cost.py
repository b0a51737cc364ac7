"""What full capture takes from a whole job: a training with two loader workers and real decode, with and without `ioprof record`.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/job_cost.py [--json] [--pairs 10]

The job (training.py) prints its own samples per second after its first epoch. Each pair runs it once alone and once recorded, and
takes turns at which comes first; the median of the ratios counts, since what the machine does to both of a pair cancels out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TRAINING = Path(__file__).with_name("training.py")
WORKERS, EPOCHS = 2, 4


def main() -> None:
    options = parse()
    if options.sample is None:
        print("job cost: not measured; set IOPROF_IMAGENET_SAMPLE to a folder of images")
        return
    job = [sys.executable, str(TRAINING), str(options.sample), str(WORKERS), str(EPOCHS)]
    rate(job)  # warms the page cache
    ratios = [pair(job, recorded_first=bool(number % 2)) for number in range(options.pairs)]
    result = {"pairs": options.pairs, "loss": 1 - statistics.median(ratios), "ratios": sorted(ratios)}
    shown = " ".join(f"{ratio:.3f}" for ratio in result["ratios"])
    print(json.dumps(result, indent=1) if options.json else f"throughput lost: {result['loss']:.2%} (median of {shown})")


def parse() -> argparse.Namespace:
    sample = os.environ.get("IOPROF_IMAGENET_SAMPLE")
    parser = argparse.ArgumentParser(description="What full capture takes from a whole job.")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--sample", type=Path, default=Path(sample) if sample else None, help="a tree of images")
    return parser.parse_args()


def pair(job: list[str], *, recorded_first: bool) -> float:
    """Rate when recorded over rate when not."""
    with tempfile.TemporaryDirectory() as folder:
        recording = [sys.executable, "-m", "ioprof", "record", "--quiet", "--out", f"{folder}/run", "--", *job]
        if recorded_first:
            recorded = rate(recording)
            return recorded / rate(job)
        alone = rate(job)
        return rate(recording) / alone


def rate(command: list[str]) -> float:
    """Samples per second, by the job's own word."""
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


if __name__ == "__main__":
    main()
