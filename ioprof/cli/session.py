"""One recorded job, from its configuration to its run folder."""

import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from ioprof.cli.console import error_line, output, progress
from ioprof.cli.interrupts import Interrupts, held
from ioprof.cli.making import Recorded
from ioprof.cli.preparing import Limit, Preparation, limit_of, own_place, page_cache
from ioprof.cli.recording import Recording, own_command, recording_facts
from ioprof.cli.run_folder import JOB_LOG, begin_job_log, check_output
from ioprof.cli.staged_job import staged
from ioprof.dataset import Dataset
from ioprof.errors import CommandError
from ioprof.report.picture import step_picture
from ioprof.report.preparation import run_facts
from ioprof.report.text import summary_text
from ioprof.schema import HEADER_BYTES
from ioprof.train.config import JobConfig, emulated_device
from ioprof.train.launch import Outcome, launch
from ioprof.train.models import model_name

_FIRST_WINDOW_BYTES: Final = 2 * (HEADER_BYTES + (1 << 18))
"""What a process's two capture files take from the start."""
_UNPREPARED: Final = Preparation()
_FAILED: Final = {"complete": 0, "interrupted": 130, "failed": 1}


def record_job(
    config: JobConfig, manifest: Dataset | None, out: Path, force: bool, preparation: Preparation = _UNPREPARED
) -> tuple[Outcome, Recorded]:
    """Run the job under recording and make the run folder `out`, whole also when the job failed or was interrupted.

    Raises KeyboardInterrupt, with the run folder whole, if the end was asked for when the job had come to its own.
    """
    _check_spool_space(config)
    run = _run_facts(config, manifest, out)  # all that can fail does so before the job, whose result would be lost with it
    check_output(out, force)
    with held() as interrupts, limit_of(preparation) as limit, Recording(out, force, run, hooks=False) as recording:
        config = replace(config, spool=recording.spool)
        with (
            staged(preparation.stage, config, manifest, run, preparation.cache, lambda: interrupts.count) as (job, read),
            page_cache(preparation.cache, read, limit, recording.spool, run, lambda: interrupts.count),
        ):
            outcome = _carried_out(job, out, recording, limit, interrupts)
        run["limit"] = limit.facts()
        outcome = _explained(outcome, run["limit"])
        with interrupts.raising():
            recorded = recording.finish(status=outcome.status, failures=list(outcome.failures))
    if interrupts.count and outcome.status != "interrupted":
        raise KeyboardInterrupt
    return outcome, recorded


def _carried_out(config: JobConfig, out: Path, recording: Recording, limit: Limit, interrupts: Interrupts) -> Outcome:
    environment = {**recording.environment, **limit.environment(recording.spool)}
    with progress(f"{config.loader} on {config.device}, {config.ranks} ranks", config.steps) as advance, recording.watched():
        return launch(config, begin_job_log(out), environment, advance, lambda: interrupts.count)


def _explained(outcome: Outcome, limit: dict[str, Any] | None) -> Outcome:
    """A process that was killed because the limit left it no room does not know why it was."""
    if outcome.status != "failed" or not limit or not limit["killed_for_memory"]:
        return outcome
    why = f"the memory limit of {limit['asked_bytes'] / 1e6:,.0f} MB leaves the job itself no room: give a larger --memory-limit"
    failures = tuple({**entry, "what": f"{entry['what']} ({why})"} for entry in outcome.failures)
    return replace(outcome, failures=failures or ({"rank": None, "what": why},))


def show(recorded: Recorded, json: bool) -> None:
    """Print the summary of a run and the picture of a step, or the summary as JSON."""
    if json:
        output.file.write(recorded.summary.to_json() + "\n")
        return
    output.print(summary_text(recorded.summary, run_facts(recorded.trace)))
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
        "config": {**asdict(config), "spool": None, "local_copy": None, "dataset": config.dataset and str(config.dataset)},
        "device": _device_facts(config),
        "dataset": manifest and _dataset_facts(manifest),
        "own_place": own_place(manifest),
    }


def _device_facts(config: JobConfig) -> dict[str, Any]:
    device = emulated_device(config.device)
    if device is None:
        return {"name": config.device, "basis": "measured", "model": model_name(config.device), "samples_per_s": None}
    return {"basis": "emulated", "model": model_name(config.device), **asdict(device)}


def _dataset_facts(manifest: Dataset) -> dict[str, Any]:
    return {
        "path": str(manifest.path),
        **{key: getattr(manifest, key) for key in ("name", "split", "layout", "records", "bytes", "digest", "scale", "source")},
        "image": asdict(manifest.image),
        "classes": len(manifest.classes),
    }
