"""The cost of decoding generated images, compared with real ones of ImageNet.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/generated_images.py [--json] [--repeats 7]

CPU seconds per megabyte of JPEG, with Pillow, for 200 generated images and of every second one of
the real sample. Both are decoded in every repeat, one after the other, and the median of the paired
ratios counts: at 1 a loader takes as long for generated images as for real ones.
"""

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

from ioprof.converters import GenerateOptions, generate

IMAGES = 200


def main() -> None:
    options = parse()
    if options.sample is None:
        print(
            "generated images: not compared; set IOPROF_IMAGENET_SAMPLE to a folder of real images"
        )
        return
    real = [path.read_bytes() for path in sorted(options.sample.glob("*/*.JPEG"))[::2]]
    if not real:
        sys.exit(
            f"{options.sample}: no <class>/<name>.JPEG in there; set IOPROF_IMAGENET_SAMPLE to an"
            " image tree"
        )
    made = generated()
    pairs = [(cost(made), cost(real)) for _ in range(options.repeats)]
    ratios = [one / other for one, other in pairs]
    result = {
        "generated_s_per_mb": statistics.median(one for one, _ in pairs),
        "real_s_per_mb": statistics.median(other for _, other in pairs),
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }
    print(json.dumps(result, indent=1) if options.json else table(result))


def parse() -> argparse.Namespace:
    sample = os.environ.get("IOPROF_IMAGENET_SAMPLE")
    parser = argparse.ArgumentParser(
        description="What decoding a generated image costs, against real ones."
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument(
        "--sample",
        type=Path,
        default=Path(sample) if sample else None,
        help="a tree of real images",
    )
    return parser.parse_args()


def generated() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        made = generate(Path(folder) / "tree", GenerateOptions(images=IMAGES, classes=7, workers=2))
        return [path.read_bytes() for path in sorted(made.path.glob("*/*.JPEG"))]


def cost(files: list[bytes]) -> float:
    """CPU seconds per megabyte of JPEG."""
    start = time.process_time()
    for data in files:
        Image.open(io.BytesIO(data)).load()
    return (time.process_time() - start) / (sum(map(len, files)) / 1e6)


def table(result: dict) -> str:
    ratio = result["ratio"]
    return (
        f"generated {result['generated_s_per_mb'] * 1e3:6.2f} ms/MB\nreal     "
        f" {result['real_s_per_mb'] * 1e3:6.2f} ms/MB\nratio     {ratio['median']:6.3f}  "
        f" ({ratio['min']:.3f}-{ratio['max']:.3f})"
    )


if __name__ == "__main__":
    main()
