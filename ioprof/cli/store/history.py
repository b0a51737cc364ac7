"""`ioprof history`: a store of runs, what changed from run to run, and named baselines."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from ioprof.cli.console import error_line, next_command, output, say
from ioprof.errors import CommandError
from ioprof.report.page.page_file import check_page_file, write_page_file
from ioprof.report.run import Run
from ioprof.report.texts.units import clean, duration
from ioprof.report.trend import History, histories, history_json, write_trend
from ioprof.store.runs import BASELINE, Store

app = Typer(
    no_args_is_help=True,
    help="Keep runs in a store, list them, and find from which run on a job is slower.",
)

StoreOption = Annotated[Path, Option("--store", help="Folder of the store.", show_default=False)]
JobOption = Annotated[
    str | None,
    Option("--job", help="Only jobs whose name contains this.", show_default=False),
]
JsonOption = Annotated[
    bool, Option("--json", help="Print the histories as a JSON array, and nothing else.")
]


@app.command()
def add(
    runs: Annotated[list[Path], Argument(help="Run folders.", show_default=False)],
    store: StoreOption,
    job: Annotated[
        str | None,
        Option(
            "--job",
            help="Name of the history; the default is the command of the run.",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(
            "--baseline",
            help=f"Name the run, for: ioprof compare {BASELINE}NAME RUN.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Add runs to the store, which is made where it is not there."""
    if baseline is not None and len(runs) > 1:
        raise CommandError("--baseline names one run: add the others without it")
    found = [Run.load(folder) for folder in runs]
    kept = Store(store, make=True)
    for run in found:
        number = kept.add(run, job, baseline)
        say(f"added {clean(run.summary.run.name)} as run {number}")
    next_command("ioprof", "history", "trend", "--store", store)
    return 0


@app.command("list")
def list_runs(store: StoreOption, job: JobOption = None, json: JsonOption = False) -> int:
    """List the runs by job, oldest first, and the baselines."""
    kept = Store(store)
    found = _histories(kept, job)
    if json:
        output.file.write(history_json(found) + "\n")
        return 0
    names: dict[int, list[str]] = {}
    for name, number in kept.baselines().items():
        names.setdefault(number, []).append(f"{BASELINE}{name}")
    for history in found:
        output.print(clean(history.job, 200), markup=False)
        for run in history.runs:
            words = (
                run.started[:19].replace("T", " "),
                clean(run.name, 60),
                (run.commit or "")[:12],
                f"{duration(run.seconds)} per {run.unit}",
                ", ".join(names.get(run.number, [])),
            )
            output.print(f"  {'  '.join(word for word in words if word)}", markup=False)
    next_command("ioprof", "history", "trend", "--store", store)
    return 0


@app.command()
def trend(
    store: StoreOption,
    job: JobOption = None,
    html: Annotated[
        Path | None, Option(help="Also write the trend as one HTML file.", show_default=False)
    ] = None,
    force: Annotated[
        bool, Option("--force", help="Replace a file that is not a page of ioprof.")
    ] = False,
    json: JsonOption = False,
    fail_if_slower: Annotated[
        bool,
        Option("--fail-if-slower", help="End with exit code 1 if the newest run shows that."),
    ] = False,
) -> int:
    """Say from which run on each job is slower or faster, and by how much its runs vary."""
    if html:
        check_page_file(html, force)
    found = _histories(Store(store), job)
    if html:
        say(write_page_file(html, lambda path: write_trend(found, path)))
    if json:
        output.file.write(history_json(found) + "\n")
    else:
        for history in found:
            output.print(f"{clean(history.job, 200)}: {len(history.runs)} runs", markup=False)
            for line in history.lines():
                output.print(f"  {line}", markup=False)
    slower = [each for each in found if each.is_slower]
    for each in slower if fail_if_slower else ():
        error_line(f"{clean(each.job, 200)}: {_changes(each)[-1]}")
    return 1 if slower and fail_if_slower else 0


def _changes(history: History) -> list[str]:
    return list(history.lines())[: len(history.changes)]


def _histories(store: Store, job: str | None) -> list[History]:
    found = histories(store.runs(job))
    if not found:
        raise CommandError(
            f"--job {job}: no such job in the store; see: ioprof history list --store"
            f" {store.path.parent}"
            if job
            else f"{store.path.parent}: the store is empty; add runs with: ioprof history add RUN"
            f" --store {store.path.parent}"
        )
    return found
