"""`ioprof demo`: the whole way in one command, on any machine, in minutes."""

from pathlib import Path
from typing import Annotated, Final

import typer

from ioprof.analysis.result import Summary
from ioprof.cli.console import next_command, output, progress, say
from ioprof.cli.run_folder import output_exists
from ioprof.cli.session import exit_code, record_job
from ioprof.cli.synthetic import make_tree
from ioprof.converters import ConvertOptions, convert
from ioprof.dataset import Dataset
from ioprof.errors import CommandError
from ioprof.report.text import comparison_text
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
    make_tree(out / "images", images)
    summaries = []
    for name, options in _DATASETS.items():
        with progress(f"convert {name}", images) as advance:
            dataset = convert(out / "images", out / "datasets" / name, options, advance)
        outcome, summary = _run(dataset, out / "runs" / name, steps, device)
        if outcome:
            return outcome
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
    outcome, recorded = record_job(config, dataset, folder, force=False)
    return exit_code(outcome, folder), recorded.summary


def _prepare(out: Path, force: bool) -> None:
    import shutil

    marker = out / ".ioprof-demo"
    if out.exists():
        if not marker.is_file() and (not out.is_dir() or any(out.iterdir())):
            raise CommandError(f"{out}: exists and is not an earlier demo, so it is not replaced; choose another --out")
        if not force:
            raise output_exists(out)
        shutil.rmtree(out)
    out.mkdir(parents=True)
    marker.touch()
