"""One recorded job, from its configuration to its run folder."""

import shlex
import shutil
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ioprof import clock
from ioprof.cli import facts
from ioprof.cli.console import error_line, output, progress, say
from ioprof.cli.gather import Recorded, gather
from ioprof.dataset import Dataset
from ioprof.errors import CommandError
from ioprof.record import recorder
from ioprof.report.picture import step_picture
from ioprof.report.text import summary_text
from ioprof.schema import HEADER_BYTES
from ioprof.train.config import JobConfig, emulated_device
from ioprof.train.launch import Outcome, launch

_FIRST_WINDOW_BYTES: Final = HEADER_BYTES + (1 << 20)
"""What a process's capture file takes from the start."""
_FAILED: Final = {"complete": 0, "interrupted": 130, "failed": 1}


def record_job(config: JobConfig, manifest: Dataset | None, out: Path, force: bool) -> tuple[Outcome, Recorded]:
    """Run the job under recording and make the run folder `out`, whole also when the job failed or was interrupted."""
    _check_spool_space(config)
    create_output(out, force)
    config = replace(config, spool=Path(tempfile.mkdtemp(prefix="ioprof-")))
    started, meter = clock.anchor(), facts.CpuMeter()
    with progress(f"{config.loader} on {config.device}, {config.ranks} ranks", config.steps) as advance:
        outcome = launch(config, out / "job.log", advance)
    run = _run_facts(config, manifest, outcome, started, out)
    run["hosts"] = [{**facts.host_facts(), "others_cpu_ratio": meter.others_ratio()}]
    try:
        recorded = gather(config.spool, out, run)
    except OSError as error:
        what = f"{error.filename or out}: {error.strerror or error}"
        raise CommandError(f"{what}; mend that and run again (the capture files stay in {config.spool})", exit_code=1) from None
    say(f"run folder: {out}")
    return outcome, recorded


def show(recorded: Recorded, json: bool) -> None:
    """Print the summary of a run and the picture of a step, or the summary as JSON."""
    if json:
        output.file.write(recorded.summary.to_json() + "\n")
        return
    output.print(summary_text(recorded.summary))
    picture = step_picture(recorded.trace, recorded.steps, recorded.summary.steps.warmup)
    output.print(f"\n{picture}", markup=False)


def exit_code(outcome: Outcome, out: Path) -> int:
    """0, 1 or 130, after one line that says what went wrong, if anything did."""
    if outcome.status == "interrupted":
        error_line("interrupted; the report covers the steps that were made")
    elif outcome.status == "failed":
        first = outcome.failures[0] if outcome.failures else {"rank": "?", "what": "the launcher failed"}
        error_line(f"the job failed: rank {first['rank']} {first['what']} (its output: {out / 'job.log'})")
    return _FAILED[outcome.status]


def _check_spool_space(config: JobConfig) -> None:
    """Refuse to start where not even the first window of every process's capture file would find room."""
    folder = tempfile.gettempdir()
    needed, free = config.ranks * (config.workers + 1) * _FIRST_WINDOW_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        say_free, say_needed = f"{free / 1e6:.1f} MB free", f"{needed / 1e6:.1f} MB"
        raise CommandError(f"{folder}: {say_free}, recording needs {say_needed} to begin with; set TMPDIR to a folder with room", 1)


def check_output(out: Path, force: bool) -> None:
    """Refuse a folder that would be overwritten, or that cannot be made, before any work is done."""
    if out.exists() and not out.is_dir():
        raise CommandError(f"{out}: is a file; give --out a folder")
    if out.is_dir() and any(out.iterdir()):
        if not (out / "run.json").is_file() and not (out / "job.log").is_file():
            raise CommandError(f"{out}: exists and is not an ioprof run, so it is not replaced; choose another --out")
        if not force:
            raise CommandError(f"{out}: exists; choose another --out, or replace it with --force")
    parent = next(folder for folder in (out.resolve(), *out.resolve().parents) if folder.exists())
    if not parent.is_dir():
        raise CommandError(f"{out}: {parent} is not a folder")


def create_output(out: Path, force: bool) -> None:
    """Make the run folder, empty; an earlier run in it goes only with `force`."""
    check_output(out, force)
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)


def _run_facts(config: JobConfig, manifest: Dataset | None, outcome: Outcome, started: clock.Anchor, out: Path) -> dict[str, Any]:
    return {
        "name": out.name,
        "status": outcome.status,
        "failures": list(outcome.failures),
        "command": shlex.join(["ioprof", *sys.argv[1:]]),
        "started": clock.wall_text(started.wall_ns),
        "config": {**asdict(config), "spool": None, "dataset": config.dataset and str(config.dataset)},
        "device": _device_facts(config),
        "dataset": manifest and _dataset_facts(manifest),
        "versions": facts.versions(),
        "environment": facts.environment(),
        "clocks": {"method": "one host, one monotonic clock", "uncertainty_ns": 0},
        "capture": {
            "native": recorder.uses_native(),
            "reads": True,
            "reads_by": "ioprof's own loaders",
            "ns_per_span": recorder.cost_per_span_ns(),
        },
    }


def _device_facts(config: JobConfig) -> dict[str, Any]:
    device = emulated_device(config.device)
    if device is None:
        return {"name": config.device, "basis": "measured", "model": "small_cnn", "samples_per_s": None}
    return {"basis": "emulated", "model": "resnet50", **asdict(device)}


def _dataset_facts(manifest: Dataset) -> dict[str, Any]:
    return {
        "path": str(manifest.path),
        **{key: getattr(manifest, key) for key in ("name", "split", "layout", "records", "bytes", "digest", "scale")},
        "image": asdict(manifest.image),
        "classes": len(manifest.classes),
    }
