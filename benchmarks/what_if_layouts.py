"""How far predictions of `ioprof whatif` for other layouts, images, devices and ranks are from runs
that are made with them.

    IOPROF_IMAGENET_SAMPLE=DIR python benchmarks/what_if_layouts.py [--images 600] [--steps 200] [--json FILE]

One set of images in four forms (files, one LMDB, tars, and 256-pixel images in an LMDB), each read
by `ioprof run` on an emulated device, with one worker. Each run is made twice. From the first run
of one form, with the second run of another as `--like`, the first run of that other form is
predicted; the error is that of the rate, predicted over measured, less one. The noise is the
difference of the two runs of the predicted form. Devices and ranks are predicted from the first run
alone.

Without IOPROF_IMAGENET_SAMPLE the images are synthetic.
"""  # noqa: E501

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import ioprof
from ioprof.model.prediction import Prediction

FORMS = {
    "files": ("--layout", "files"),
    "lmdb": ("--layout", "lmdb"),
    "webdataset": ("--layout", "webdataset"),
    "lmdb-rgb256": ("--layout", "lmdb", "--image", "rgb256"),
}
DEVICE = "emulated:v100"
DEVICES = ("emulated:p100", "emulated:h100")
"""Those of another device are of the form `lmdb-rgb256`."""


@dataclass(frozen=True)
class Result:
    """One prediction and what came of it, in samples per second."""

    before: str
    after: str
    predicted: float
    low: float
    high: float
    measured: float
    noise: float
    baseline_error: float
    """Of the replay of the run itself."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


class Bench:
    """Converts the images and runs jobs, in one folder."""

    def __init__(self, folder: Path, images: int, steps: int) -> None:
        self._folder, self._steps = folder, steps
        source = os.environ.get("IOPROF_IMAGENET_SAMPLE")
        if source is None:
            source = str(folder / "images")
            self._ioprof("generate", "imagenet", source, "--images", images, "--classes", 4)
        for form, options in FORMS.items():
            self._ioprof("convert", "imagenet", source, folder / form, *options)

    def _ioprof(self, *words: object) -> None:
        command = [sys.executable, "-m", "ioprof", *map(str, words)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(f"{' '.join(command)}:\n{ended.stderr}")

    def run(self, form: str, name: str, *options: object) -> Path:
        """The run folder of a new run that reads that form."""
        out = self._folder / "runs" / f"{form}-{name}"
        settings = {
            "--device": DEVICE,
            "--ranks": 1,
            "--workers": 1,
            "--batch-size": 16,
            "--steps": self._steps,
        }
        settings |= dict(zip(options[::2], options[1::2], strict=True))
        self._ioprof(
            "run",
            self._folder / form,
            "--out",
            out,
            *(word for pair in settings.items() for word in pair),
        )
        return out


def rate(run: Path) -> float:
    """Steady samples per second, as the replay measures them."""
    found = ioprof.whatif(run, decode=1.0).measured_samples_per_s
    assert found is not None
    return found


def result(before: str, after: str, found: Prediction, runs: tuple[Path, Path]) -> Result:
    measured, again = map(rate, runs)
    assert found.samples_per_s is not None
    base = found.samples_per_s / found.speedup
    low, high = base * found.speedup_range.low, base * found.speedup_range.high
    return Result(
        before,
        after,
        found.samples_per_s,
        low,
        high,
        measured,
        again / measured - 1,
        found.baseline_error,
    )


def results(bench: Bench) -> Iterator[Result]:
    """Predicts each form from each other one, and other devices and ranks."""
    runs = {form: (bench.run(form, "first"), bench.run(form, "second")) for form in FORMS}
    for before in FORMS:
        for after in FORMS:
            if before != after:
                yield result(
                    before, after, ioprof.whatif(runs[before][0], like=runs[after][1]), runs[after]
                )
    form, of_ranks = "lmdb-rgb256", ("--ranks", 2)
    for device in DEVICES:
        made = [
            bench.run(form, f"{device[9:]}-{name}", "--device", device)
            for name in ("first", "second")
        ]
        yield result(form, device, ioprof.whatif(runs[form][0], device=device), (made[0], made[1]))
    made = [bench.run(form, f"ranks-{name}", *of_ranks) for name in ("first", "second")]
    yield result(form, "2 ranks", ioprof.whatif(runs[form][0], ranks=2), (made[0], made[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        print(
            f"{'of':12} {'predicted':16} {'samples/s':>10} {'95 %':>17} {'measured':>9}"
            f" {'error':>7} {'noise':>7} {'replay':>7}"
        )
        for each in results(Bench(Path(folder), options.images, options.steps)):
            found.append(each)
            between = f"{each.low:,.0f} to {each.high:,.0f}"
            print(
                f"{each.before:12} {each.after:16} {each.predicted:10,.1f} {between:>17}"
                f" {each.measured:9,.1f} {each.error:+7.1%} {each.noise:+7.1%}"
                f" {each.baseline_error:+7.1%}",
                flush=True,
            )
    errors = sorted(abs(each.error) for each in found)
    noise = sorted(abs(each.noise) for each in found)
    inside = sum(each.low <= each.measured <= each.high for each in found)
    print(
        f"error: median {statistics.median(errors):.1%}, worst {errors[-1]:.1%}; noise: median"
        f" {statistics.median(noise):.1%}, worst {noise[-1]:.1%}; {inside} of {len(found)} within"
        " their range"
    )
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in found], indent=1))


if __name__ == "__main__":
    main()
