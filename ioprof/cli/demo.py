"""`ioprof demo`: generate, convert, run and compare in one command, on any machine, in minutes."""

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ioprof.cli.console import next_command, output, progress, reporter, say
from ioprof.cli.run_output import exit_code
from ioprof.converters import ConvertOptions, convert
from ioprof.dataset import Dataset
from ioprof.errors import CommandError
from ioprof.jobs.recorded_job import record_job
from ioprof.jobs.synthetic_dataset import generate_tree
from ioprof.recording.run_folder import output_exists
from ioprof.report.text import comparison_text
from ioprof.run_record import Summary
from ioprof.train.accelerators import check_device
from ioprof.train.config import JobConfig

_RANKS: Final = 2
_DATASETS: Final = {
    "files": ConvertOptions(layout="files", image="original"),
    "lmdb": ConvertOptions(layout="lmdb", image="original"),
    "lmdb-rgb256": ConvertOptions(layout="lmdb", image="rgb256"),
}
"""Name of each dataset that the demo makes of the same images, and how."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the images, the datasets and the runs.")] = Path("ioprof-demo"),
    images: Annotated[int, typer.Option(min=8, help="Synthetic images to make.")] = 600,
    steps: Annotated[int, typer.Option(min=4, help="Steps of each run.")] = 100,
    device: Annotated[str, typer.Option(help="cpu or emulated:NAME.")] = "emulated:a100",
    force: Annotated[bool, typer.Option("--force", help="Replace the folder of an earlier demo.")] = False,
) -> int:
    """Generate images, convert them three ways, train on each with two ranks, and compare."""
    check_device(device, _RANKS)
    _prepare(out, force)
    generate_tree(out / "images", images, reporter)
    summaries = []
    for name, options in _DATASETS.items():
        with progress(f"convert {name}", images) as advance:
            dataset = convert(out / "images", out / "datasets" / name, options, advance)
        code, summary = _run(dataset, out / "runs" / name, steps, device)
        if code:
            return code
        summaries.append(summary)
    output.print(comparison_text(summaries))
    for name in _DATASETS:
        say(f"report: {out / 'runs' / name / 'report.html'}")
    next_command("ioprof", "report", out / "runs" / "files")
    return 0


def _run(dataset: Dataset, folder: Path, steps: int, device: str) -> tuple[int, Summary]:
    config = JobConfig(
        loader=dataset.layout,
        device=device,
        ranks=_RANKS,
        batch_size=16,
        workers=1,
        steps=steps,
        seed=0,
        spool=Path(),
        dataset=dataset.path.resolve(),
    )
    run = record_job(config, dataset, folder, ["ioprof", *sys.argv[1:]], os.environ, reporter=reporter)
    return exit_code(run), run.summary


def _prepare(out: Path, force: bool) -> None:
    marker = out / ".ioprof-demo"
    if out.exists():
        if not marker.is_file() and (not out.is_dir() or any(out.iterdir())):
            raise CommandError(f"{out}: exists and is not an earlier demo, so it is not replaced; choose another --out")
        if not force:
            raise output_exists(out)
        shutil.rmtree(out)
    out.mkdir(parents=True)
    marker.touch()
