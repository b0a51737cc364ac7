"""Makes a published study again: the runs of its preset one after the other, each with another
value of one setting.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ioprof.analysis.study import Study, StudyRow, study_row
from ioprof.errors import CommandError
from ioprof.jobs.options import RunOptions, StudyOptions
from ioprof.jobs.training_run import plan_job, run_job
from ioprof.reporter import SILENT, Reporter
from ioprof.train.parallelism import DATA
from ioprof.train.presets import load_preset

RANKS: Final = "ranks"
SCALES: Final = "dataset_scale"


def make_study(
    options: StudyOptions, folder: Path, environment: Mapping[str, str], reporter: Reporter
) -> Study:
    """All runs of the study of `options.preset`, in folders of `folder`, of the values of the
    options or else of the preset.

    Raises CommandError and DatasetError before the first run for what any of them cannot do, and
    CommandError if one fails.
    """
    preset = load_preset(options.preset)
    if preset.study is None:
        raise CommandError(
            f"{preset.name}: names no study; one that does has a table [study] with a list of"
            f" {RANKS} or {SCALES}"
        )
    varied, usual = preset.study
    if varied in options.given:
        raise CommandError(
            f"--{varied.replace('_', '-')}: this study varies it; give --values, such as --values"
            f" {','.join(usual)}"
        )
    if varied == SCALES and not options.given & {"steps", "epochs", "predict_epochs"}:
        options = replace(options, predict_epochs=int(preset.job.get("epochs", 0)) or None)
    if varied == SCALES:
        options = replace(options, cache=options.cache or "cold")
    if varied == RANKS:
        options = replace(options, threads=1)  # each rank is a device of the same speed
    asked = options.values.split(",") if isinstance(options.values, str) else options.values
    chosen = tuple(str(value) for value in asked if value != "") or usual
    jobs = {
        value: _with_value(options, varied, value, folder / f"{varied}-{value}") for value in chosen
    }
    # datasets of other scales are made, and the checks of the jobs would make them
    if varied == RANKS:
        for job in jobs.values():
            plan_job(job, environment, SILENT)
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[StudyRow] = []
    parallel = DATA
    for value, job in jobs.items():
        reporter.say(f"{varied.replace('_', ' ')} {value}: {job.out}")
        made = run_job(
            job, ("ioprof", "study", preset.name, "--out", str(folder)), environment, reporter
        )
        if made.trace.run.status != "complete":
            raise CommandError(
                f"{job.out}: the job did not complete; see: ioprof report {job.out}", exit_code=1
            )
        parallel = made.trace.run.config.parallel or parallel
        rows.append(study_row(value, made, rows[0] if rows else None))
    return Study(
        preset.name,
        preset.about,
        preset.source,
        preset.year,
        preset.undated,
        varied,
        parallel,
        tuple(rows),
    )


def _with_value(options: RunOptions, varied: str, value: str, out: Path) -> RunOptions:
    if varied == SCALES:
        return options.changed(dataset_scale=value, out=out)
    if not value.isdigit() or not int(value):
        raise CommandError(f"--values {value}: give numbers of ranks, such as 1,2,4")
    return options.changed(ranks=int(value), out=out)
