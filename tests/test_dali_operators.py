"""DALI's decoder and its other operators, which run in threads of C++: what the training loop waits
for."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import slow_storage
from captures import PROGRAMS
from jobs import ioprof
from PIL import Image

from ioprof.format.schema import OPERATOR
from ioprof.report.run import Run

STEPS = 9


@pytest.mark.job(every=2)
@pytest.mark.parametrize(
    ("kind", "cause", "largest"),
    [("decode", "decode", "decoders__Image"), ("blur", "transform", "GaussianBlur")],
)
def test_waits_for_batches_are_charged_to_the_operators(
    images: Path, tmp_path: Path, kind: str, cause: str, largest: str
) -> None:
    """Each operator is a span of each batch, under its name; the slowest is what the loop waits
    for. The job sees no variable that it has not set."""
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        pytest.skip("needs DALI")
    program = PROGRAMS / "operators_of_dali.py"
    command = (sys.executable, program, images, kind, STEPS)
    done = ioprof("record", "--quiet", "--out", tmp_path / "run", "--", *command, cwd=tmp_path)
    assert 0 == done.code, done.err
    run = Run.load(tmp_path / "run")
    made = run.trace.spans.filter(pl.col("name").cast(pl.String).str.starts_with(OPERATOR))
    took = made.group_by(pl.col("name").cast(pl.String)).agg(
        pl.len(), ns=(pl.col("end_ns") - pl.col("start_ns")).median()
    )
    assert OPERATOR + largest == took.sort("ns")["name"][-1]
    assert {OPERATOR + "decoders__Image", OPERATOR + "Resize"} <= {*took["name"]}
    assert took["len"].min() >= STEPS
    shares = {entry.cause: entry.share or 0.0 for entry in run.summary.steps.causes}
    waited = {name: shares[name] for name in ("storage", "page_cache", "decode", "transform")}
    assert cause == max(waited, key=waited.__getitem__), shares


@pytest.mark.system(every=2)
def test_photographs_that_are_fetched_by_madvise_are_waited_for(tmp_path: Path) -> None:
    """DALI maps a file, has the kernel fetch it, and copies it at once: it waits in page faults
    that are not major. All bytes from the device are told."""
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        pytest.skip("needs DALI")
    draw = np.random.default_rng(0)
    with slow_storage.throttled_disk(tmp_path, 64 << 20) as disk:
        for number in range(160):
            folder = disk.path / "data" / f"{number % 4}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = draw.integers(0, 256, (240, 320, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.jpg", quality=90)
        slow_storage.evict(disk.path)
        disk.throttle(3_000_000)
        program = PROGRAMS / "operators_of_dali.py"
        command = (sys.executable, program, disk.path / "data", "decode", 20)
        before = disk.read_bytes()
        done = ioprof(
            *("record", "--quiet", "--out", tmp_path / "run", "--", *command),
            cwd=tmp_path,
            preexec_fn=disk.join,
        )
        device = disk.read_bytes() - before
    assert 0 == done.code, done.err
    run = Run.load(tmp_path / "run")
    assert "storage" == run.summary.verdict.bound_by
    reads = run.trace.spans.filter(
        pl.col("kind").is_in(["read", "fault"]), pl.col("source") == "storage"
    )
    paths = run.trace.files.filter(
        pl.col("path").cast(pl.String).str.starts_with(str(disk.path))
    )  # the libraries may come from another disk
    found = reads.join(paths, on="file", how="semi")["bytes"].sum()
    assert found == pytest.approx(device, rel=0.02)
