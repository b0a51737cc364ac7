"""Jobs on a GPU with a known fault, and what the report must say of them: `make test-gpu`."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from faults.case import Case, outcome

from ioprof.converters import GenerateOptions, generate

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

PROGRAM: Final = "train_on_gpu.py"

CASES: Final = (
    Case(
        name="a model that computes for 20 ms",
        arguments=("compute", 400),
        bound_by="compute",
        says=("Compute-bound",),
        never_says=("Python", "Unsure"),
    ),
    Case(
        name="Python that runs while the device computes",
        arguments=("hidden_python", 400),
        bound_by="compute",
        never_says=("train_on_gpu.py",),
    ),
    Case(
        name="the loss is read in each step",
        arguments=("item", 400),
        bound_by="compute",
        never_says=("train_on_gpu.py",),
    ),
    Case(
        name="memory of the device is given back in each step",
        arguments=("collected", 300),
        says=("in give_back",),
    ),
    Case(
        name="mixed precision with a scaler of the loss",
        arguments=("scaled", 300),
        bound_by="compute",
    ),
    Case(
        name="Python between steps",
        arguments=("python", 150),
        bound_by="host",
        says=("train_on_gpu.py",),
        never_says=("launches",),
    ),
    Case(
        name="a metric in Python",
        arguments=("metrics", 150),
        bound_by="host",
        says=("train_on_gpu.py",),
        never_says=("launches",),
    ),
    Case(
        name="Python between accumulated batches",
        arguments=("accumulated", 40),
        bound_by="host",
        says=("train_on_gpu.py",),
        never_says=("launches",),
    ),
    Case(
        name="800 small kernels a pass",
        arguments=("launches", 100),
        bound_by="host",
        says=("waiting for kernel launches", "kernels a step"),
        advises="CUDA graphs",
    ),
    Case(
        name="copies from pageable memory",
        arguments=("pageable", 80),
        bound_by="h2d",
        says=("from the host to the device", "from pageable memory"),
        advises="pin",
    ),
    Case(
        name="copies from page-locked memory that fill the link",
        arguments=("pinned", 500),
        bound_by="h2d",
        says=("from the host to the device",),
        never_says=("pageable",),
        advises="fewer bytes",
    ),
    Case(name="copies on a stream of their own", arguments=("prefetched", 150), bound_by="compute"),
    Case(
        name="outputs that are copied to the host",
        arguments=("outputs", 100),
        bound_by="h2d",
        says=("from the device to the host", "to pageable memory", "train_on_gpu.py"),
        advises="to the host less often",
    ),
    Case(
        name="one worker that decodes",
        arguments=("decode", 60, "{data}"),
        bound_by="decode",
        advises="worker",
    ),
    Case(name="validation without a loader", arguments=("evaluation", 200), names=("alidation",)),
    Case(name="a checkpoint every 20 steps", arguments=("checkpoint", 400), names=("heckpoint",)),
    Case(
        name="a callback of Lightning in Python",
        arguments=("lightning", 150),
        needs=("lightning",),
        bound_by="host",
    ),
    Case(
        name="transformers and a dataset in Python",
        arguments=("huggingface", 60),
        needs=("transformers",),
        bound_by="loader",
    ),
    Case(name="CUDA graphs", arguments=("compiled", 300), bound_by="compute"),
)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs that take some milliseconds each to decode."""
    folder = tmp_path_factory.mktemp("images") / "images"
    generate(folder, GenerateOptions(images=72, classes=2))
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "_"))
def test_the_report_names_the_fault(case: Case, images: Path, measured, tmp_path: Path) -> None:
    """Verdict, culprit and advice."""
    found = outcome(replace(case, program=PROGRAM), images, tmp_path)
    step = found.run.summary.steps
    gpu = found.run.trace.run.capture.gpu
    windows = [(window.cost_ns or 0, window.spans or 0) for window in (gpu.windows if gpu else ())]
    blocked = ", ".join(
        f"blocked {cost / 1e6:.0f} ms for {spans:,} activities" for cost, spans in windows
    )
    took = f"step {(step.p50_s or 0) * 1e3:.1f} ms"
    measured(
        " | ".join(
            (
                case.name,
                found.head.splitlines()[0],
                took,
                blocked,
                found.findings,
                found.output.strip(),
            )
        )
    )
    assert [] == found.faults_of(case)
