"""One recorded job, from its configuration to its run folder."""

import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ioprof.cli.console import error_line, output, progress
from ioprof.cli.interrupts import held
from ioprof.cli.making import Recorded
from ioprof.cli.recording import Recording, own_command, recording_facts
from ioprof.cli.run_folder import JOB_LOG, begin_job_log, check_output
from ioprof.dataset import Dataset
from ioprof.errors import CommandError
from ioprof.report.picture import step_picture
from ioprof.report.text import summary_text
from ioprof.schema import HEADER_BYTES
from ioprof.train.config import JobConfig, emulated_device
from ioprof.train.launch import Outcome, launch
from ioprof.train.models import model_name

_FIRST_WINDOW_BYTES: Final = 2 * (HEADER_BYTES + (1 << 18))
"""What a process's two capture files take from the start."""
_FAILED: Final = {"complete": 0, "interrupted": 130, "failed": 1}


def record_job(config: JobConfig, manifest: Dataset | None, out: Path, force: bool) -> tuple[Outcome, Recorded]:
    """Run the job under recording and make the run folder `out`, whole also when the job failed or was interrupted.

    Raises KeyboardInterrupt, with the run folder whole, if the end was asked for when the job had come to its own.
    """
    _check_spool_space(config)
    run = _run_facts(config, manifest, out)  # all that can fail does so before the job, whose result would be lost with it
    check_output(out, force)
    with held() as interrupts, Recording(out, force, run, hooks=False) as recording:
        config = replace(config, spool=recording.spool)
        with progress(f"{config.loader} on {config.device}, {config.ranks} ranks", config.steps) as advance, recording.watched():
            outcome = launch(config, begin_job_log(out), recording.environment, advance, lambda: interrupts.count)
        interrupts.raising = True
        recorded = recording.finish(status=outcome.status, failures=list(outcome.failures))
    if interrupts.count and outcome.status != "interrupted":
        raise KeyboardInterrupt
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
        error_line(f"the job failed: rank {first['rank']} {first['what']} (its output: {out / JOB_LOG})")
    return _FAILED[outcome.status]


def _check_spool_space(config: JobConfig) -> None:
    """Refuse to start where not even the first window of every process's capture file would find room."""
    folder = tempfile.gettempdir()
    needed, free = config.ranks * (config.workers + 1) * _FIRST_WINDOW_BYTES, shutil.disk_usage(folder).free
    if free < needed:
        say_free, say_needed = f"{free / 1e6:.1f} MB free", f"{needed / 1e6:.1f} MB"
        raise CommandError(f"{folder}: {say_free}, recording needs {say_needed} to begin with; set TMPDIR to a folder with room", 1)


def _run_facts(config: JobConfig, manifest: Dataset | None, out: Path) -> dict[str, Any]:
    """What is known of a run before it begins."""
    return {
        **recording_facts(own_command(), out, hooks=False),
        "config": {**asdict(config), "spool": None, "dataset": config.dataset and str(config.dataset)},
        "device": _device_facts(config),
        "dataset": manifest and _dataset_facts(manifest),
    }


def _device_facts(config: JobConfig) -> dict[str, Any]:
    device = emulated_device(config.device)
    if device is None:
        return {"name": config.device, "basis": "measured", "model": model_name(config.device), "samples_per_s": None}
    return {"basis": "emulated", "model": model_name(config.device), **asdict(device)}


def _dataset_facts(manifest: Dataset) -> dict[str, Any]:
    return {
        "path": str(manifest.path),
        **{key: getattr(manifest, key) for key in ("name", "split", "layout", "records", "bytes", "digest", "scale")},
        "image": asdict(manifest.image),
        "classes": len(manifest.classes),
    }
