"""Emulated devices against their own numbers: rates, exchange schemes, the slowest rank, ways of
copying.

    python benchmarks/emulated_devices.py

Rates, schemes and the slowest rank: ranks on Gloo with the null loader, all devices and models one
after the other. The expected rate follows from the device's, from its buckets of gradients, and
from the formula of a ring. The rate that was reached is that of the median step, and of all steps:
these are longer where the host was too busy to have the next step queued in time, as the host of a
real device may be. The time of an exchange counts from the last rank's arrival. Ways of copying:
whole recorded jobs, with what their reports say is hidden. Deviations are in percent.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch.distributed as dist

from ioprof.clock import monotonic_ns
from ioprof.loaders import make_loader
from ioprof.loaders.base import LoaderOptions
from ioprof.train.accelerators.emulated import EmulatedAccelerator, gradient_buckets
from ioprof.train.accelerators.exchange import SCHEMES, Exchange
from ioprof.train.copies import COPIES
from ioprof.train.devices import EmulatedDevice, device_names, emulated_device
from ioprof.train.models import MODELS

STEPS, WARMUP = 25, 5
STEP_S = 0.04
"""A step has so many samples that it takes about this long."""
MOST_BYTES = 1 << 26
"""Of one batch."""
LATE_S = 0.02

Spans = dict[str, dict[int, list[tuple[int, int]]]]


def main() -> None:
    print("device model       ranks   samples/s     expected   deviation %   of all steps, %")
    worst = 0.0
    for ranks in (1, 2, 4):
        for found in launched(ranks, "rates"):
            percent = (found["reached"] / found["expected"] - 1) * 100
            worst = max(worst, abs(percent))
            name = f"{found['device']:<6} {found['model']:<11} {ranks:5d}"
            mean = (found["mean"] / found["expected"] - 1) * 100
            print(
                f"{name} {found['reached']:14,.1f} {found['expected']:13,.1f} {percent:10.3f}"
                f" {mean:14.3f}",
                flush=True,
            )
    print(
        f"worst deviation of a rate: {worst:.3f} %\n\nscheme             ranks per node   exchange,"
        " ms   formula, ms   deviation %"
    )
    for found in launched(4, "schemes"):
        percent = (found["reached"] / found["expected"] - 1) * 100
        name = f"{found['scheme']:<18} {found['per_node']:14d}"
        print(
            f"{name} {found['reached'] * 1e3:14.3f} {found['expected'] * 1e3:13.3f}"
            f" {percent:13.3f}",
            flush=True,
        )
    for found in launched(4, "late"):
        print(
            f"\none rank of 4 late by {LATE_S * 1e3:.0f} ms in each step: a step takes"
            f" {found['late'] * 1e3:.2f} ms on all ranks"
        )
        print(f"without: {found['usual'] * 1e3:.2f} ms")
    print("\ncopies       hidden, report says %   step, median, ms")
    for copy in COPIES:
        summary = recorded(copy)
        hidden = summary["overlap"]["h2d"]["hidden_ratio"] or 0.0
        print(
            f"{copy:<12} {hidden * 100:21.1f} {summary['steps']['p50_s'] * 1e3:18.2f}", flush=True
        )


def launched(ranks: int, what: str) -> list[dict]:
    """What the ranks measured: this program again under torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        launcher = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
        ]
        subprocess.run(
            [*launcher, __file__, what, str(path)],
            check=True,
            stderr=subprocess.DEVNULL,
            timeout=600,
        )
        return json.loads(path.read_text())


def measure(what: str, path: Path) -> None:
    """One rank."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    if what == "rates":
        found = [
            rates(name, model, ranks, rank)
            for name, model in itertools.product(device_names(), MODELS)
        ]
    elif what == "schemes":
        found = [
            schemes(scheme, per_node, ranks, rank)
            for scheme, per_node in itertools.product(SCHEMES, (4, 2))
        ]
    else:
        device = emulated_device("emulated:p100", MODELS["resnet50"])
        plan = Exchange("ring", ranks, ranks, device.links)
        usual, late = (
            train(device, "resnet50", plan, 8, rank, seconds) for seconds in (0.0, LATE_S)
        )
        found = [
            {
                "usual": statistics.median(step_times_s(usual)),
                "late": statistics.median(step_times_s(late)),
            }
        ]
    if rank == 0:
        path.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def train(
    device: EmulatedDevice, model: str, plan: Exchange, batch: int, rank: int, late_s: float = 0.0
) -> Spans:
    """The steps of one rank, as the built-in job makes them; rank 1 is late by so many seconds."""
    spans: Spans = defaultdict(lambda: defaultdict(list))
    facts = MODELS[model]
    options = LoaderOptions(
        batch, STEPS, rank, plan.num_ranks, workers=0, sample_shape=facts.sample_shape
    )
    accelerator = EmulatedAccelerator(
        device, plan, options.largest_batch, parameters=facts.parameters, is_constant=True,
        emit=lambda kind, begin, end, *_, step, **__: spans[kind][step].append((begin, end)),
    )  # fmt: skip
    dist.barrier()
    for step, each in enumerate(make_loader("null", None, options)):
        if rank == 1 and late_s:
            time.sleep(late_s)
        accelerator.launch(each, step)
        if step and not late_s:
            accelerator.synchronize(step - 1)
        elif late_s:
            accelerator.synchronize(step)
        spans["host"][step].append((monotonic_ns(), 0))
    accelerator.synchronize(STEPS - 1)
    accelerator.close()
    return spans


def step_times_s(spans: Spans) -> list[float]:
    """From the end of one step to the end of the next, on the device's clock, after the warm-up."""
    ends = [max(end for _, end in spans["compute"][step]) for step in range(WARMUP, STEPS)]
    return [(second - first) / 1e9 for first, second in itertools.pairwise(ends)]


def rates(name: str, model: str, ranks: int, rank: int) -> dict:
    device = emulated_device(f"emulated:{name}", MODELS[model])
    plan = Exchange("ring", ranks, ranks, device.links)
    batch = max(
        1, min(MOST_BYTES // MODELS[model].sample_bytes, round(device.samples_per_s * STEP_S))
    )
    times = step_times_s(train(device, model, plan, batch, rank))
    compute_s, free_s = batch / device.samples_per_s, 0.0
    for bucket in gradient_buckets(MODELS[model].gradient_bytes):
        free_s = max(free_s, bucket.ready_ratio * compute_s) + plan.seconds(bucket.num_bytes)
    copy_s = batch * (MODELS[model].sample_bytes + 8) / device.h2d_bytes_per_s
    expected = ranks * batch / max(compute_s, free_s if ranks > 1 else 0.0, copy_s)
    reached, mean = (
        ranks * batch / each for each in (statistics.median(times), statistics.fmean(times))
    )
    return {"device": name, "model": model, "reached": reached, "mean": mean, "expected": expected}


def schemes(scheme: str, per_node: int, ranks: int, rank: int) -> dict:
    """All buckets of a step together, from when the last rank has each."""
    device = emulated_device("emulated:p100", MODELS["resnet50"])
    plan = Exchange(scheme, ranks, per_node, device.links)
    spans = train(device, "resnet50", plan, 8, rank)
    mine = [spans["comm"][step] for step in range(WARMUP, STEPS)]
    everyone: list = [None] * ranks
    dist.all_gather_object(everyone, mine)
    taken = []
    for step in range(len(mine)):
        buckets = zip(*(every[step] for every in everyone), strict=True)
        taken.append(
            sum(
                max(end for _, end in bucket) - max(begin for begin, _ in bucket)
                for bucket in buckets
            )
            / 1e9
        )
    expected = sum(
        plan.seconds(bucket.num_bytes)
        for bucket in gradient_buckets(MODELS["resnet50"].gradient_bytes)
    )
    return {
        "scheme": scheme,
        "per_node": per_node,
        "reached": statistics.median(taken),
        "expected": expected,
    }


def recorded(copy: str) -> dict:
    """The summary of a recorded job with that way of copying."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "ioprof",
            "run",
            "--loader",
            "null",
            "--device",
            "emulated:p100",
            "--model",
            "alexnet",
        ]
        options = [
            "--batch-size",
            "1024",
            "--steps",
            "25",
            "--no-stacks",
            "--copy",
            copy,
            "--out",
            f"{folder}/run",
            "--json",
        ]
        done = subprocess.run([*command, *options], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
