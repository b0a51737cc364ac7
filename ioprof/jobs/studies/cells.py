"""The cells of a study over several settings, made one after the other; what an earlier call made
is kept.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ioprof.analysis.grid import COMPUTE, GRID_FILE, Cell, Grid, MadeDataset, Part
from ioprof.analysis.run import Run
from ioprof.errors import CommandError
from ioprof.files import write_atomically
from ioprof.jobs.options import RunOptions, StudyOptions
from ioprof.jobs.studies.grid_file import SIMULATE, GridFile, Settings
from ioprof.jobs.synthetic_dataset import generate_tree
from ioprof.jobs.training_run import run_job
from ioprof.model.simulator.asked import SimulationAsked, simulation
from ioprof.model.simulator.simulation import Simulation
from ioprof.model.simulator.validation import summed
from ioprof.options import declarations, given_options
from ioprof.reporter import Reporter

_OF_STUDY: Final = ("out", "preset", "values", "force", "stacks")
"""Options of the command that are not those of a cell."""
_READS_NOTHING: Final = "null"
"""The loader that needs no dataset."""
_OVERLAPS: Final = {
    "h2d": "h2d",
    "storage": "storage",
    "decode": "decode",
    "exchange": "communication",
}
"""By cause: what `summary.overlap` calls it."""


def make_grid(
    study: GridFile, options: StudyOptions, environment: Mapping[str, str], reporter: Reporter
) -> Grid:
    """All cells of the study, with `study.json` after each; those that are there with the same
    options are not made again, unless by `--force`.

    Raises CommandError and DatasetError for options that cannot be, and CommandError if a run
    fails.
    """
    folder = Path(options.out or f"study-{study.name}")
    known = {each.name for each in declarations(RunOptions)} - {*_OF_STUDY}
    given = {name: getattr(options, name) for name in sorted(options.given & known)}
    if "values" in options.given:
        raise CommandError(
            "--values: this study varies several settings; copy it to a file of your own and change"
            f" its [[axes]]: {study.name}.toml"
        )
    if given and study.kind == SIMULATE:
        raise CommandError(
            f"--{next(iter(given)).replace('_', '-')}: nothing is run; copy the study to a file of"
            f" your own and change it: {study.name}.toml"
        )
    before = _made_before(folder, options.force)
    found = Grid(
        study.name,
        study.about,
        study.source,
        study.date,
        study.quantity,
        study.axes,
        (),
        before.datasets if before else (),
        before.basis_notes if before else (),
    )
    folder.mkdir(parents=True, exist_ok=True)
    places = study.places()
    for number, place in enumerate(places, 1):
        asked = study.of(place) | given
        key = _digest(study, asked)
        cell = next((each for each in before.cells if each.key == key), None) if before else None
        if cell is not None:
            cell = replace(cell, place=place)
        elif study.kind == SIMULATE:
            reporter.say(f"{number} of {len(places)}: {', '.join(place)}")
            made = _simulated(study, asked)
            cell = _of_simulation(place, key, made, study.quantity)
            notes = dict.fromkeys((*found.basis_notes, *_notes(made)))
            found = replace(found, basis_notes=tuple(notes))
        else:
            reporter.say(f"{number} of {len(places)}: {', '.join(place)}")
            data = None
            if asked.get("loader") != _READS_NOTHING:
                data, found = _dataset(study, asked, folder, found, reporter)
                write_atomically(folder / GRID_FILE, found.to_json())  # with what converting took
            cell = _run(study, place, key, asked, data, folder, environment, reporter)
        found = replace(found, cells=(*found.cells, cell))
        write_atomically(folder / GRID_FILE, found.to_json())
    return found


def _made_before(folder: Path, force: bool) -> Grid | None:
    if force or not (folder / GRID_FILE).is_file():
        return None
    return Grid.load(folder / GRID_FILE)


def _digest(study: GridFile, asked: Settings) -> str:
    facts = json.dumps(
        [study.kind, study.quantity, study.dataset, asked], sort_keys=True, default=str
    )
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def _simulated(study: GridFile, asked: Settings) -> Simulation:
    changed = {name: float(value) for name, value in asked.items() if "." in name}
    words = {name: value for name, value in asked.items() if "." not in name}
    try:
        system, job = words.pop("system"), words.pop("job")
    except KeyError as error:
        raise CommandError(f"{study.name}: a cell has no {error}; give it in [job]") from None
    try:
        options = given_options(SimulationAsked, words)
    except TypeError as error:
        raise CommandError(f"{study.name}: {error}; see: ioprof simulate --help") from None
    return simulation(str(system), str(job), options, changed)


def _of_simulation(place: tuple[str, ...], key: str, made: Simulation, quantity: str) -> Cell:
    number = made.total_s if quantity == "total_s" else getattr(made.first, quantity)
    epoch = made.later if quantity == "total_s" else made.first
    bound_by, share = made.most_beside_compute(epoch)
    whole, exposed = made.whole_s(epoch), made.beside_compute(epoch)
    binds = max(whole, key=lambda name: whole[name])
    return Cell(
        place=place,
        value=number.value,
        low=number.low,
        high=number.high,
        basis=made.basis,
        bound_by=bound_by,
        share=share,
        samples_per_s=made.first.samples_per_s.value,
        ranks=made.ranks,
        parts=(
            Part(COMPUTE, epoch.compute_s, epoch.compute_s),
            *(Part(name, whole.get(name), exposed.get(name, 0.0)) for name in whole | exposed),
        ),
        needs_bytes_per_s=made.needs_bytes_per_s(epoch),
        feeds=epoch.compute_s / whole[binds] if whole[binds] else None,
        binds=binds,
        key=key,
    )


def _notes(made: Simulation) -> tuple[str, ...]:
    """What the numbers of a simulated study rest on."""
    errors = "; ".join(
        f"{each.quantity}: {each.within} of {each.count} within what is asked" for each in summed()
    )
    return (
        f"{made.job_source} ({made.job_basis}).",
        f"Assumed, without a source: {', '.join(made.assumed)}." if made.assumed else "",
        *(f"Not modelled: {each}." for each in made.limits),
        f"The simulator beside published results that it was not fitted to: {errors}.",
    )


def _dataset(
    study: GridFile, asked: Settings, folder: Path, found: Grid, reporter: Reporter
) -> tuple[Path, Grid]:
    """The dataset of a cell, converted from one source for all, and the study with what that took;
    the options of the conversion are taken out of those of the cell.
    """
    from ioprof.converters import ConvertOptions, engine_for, run_conversion

    of_job = {each.name for each in declarations(RunOptions)}
    names = {each.name for each in declarations(ConvertOptions)} - of_job
    words = {name: value for name, value in study.dataset.items() if name != "images"}
    words |= {name: asked.pop(name) for name in list(asked) if name in names}
    images = int(study.dataset.get("images", 1000))
    label = "-".join(map(str, words.values())) or "files"
    source, destination = folder / "source", folder / f"data-{label}"
    if not source.is_dir():
        generate_tree(source, images, reporter)
    made = run_conversion(
        source,
        destination,
        given_options(ConvertOptions, words),
        None,
        engine_for("local", None, None),
        reporter,
    )
    if made.was_done or any(each.name == label for each in found.datasets):
        return destination, found
    of = MadeDataset(label, made.images, made.dataset.bytes, made.seconds)
    return destination, replace(found, datasets=(*found.datasets, of))


def _run(
    study: GridFile,
    place: tuple[str, ...],
    key: str,
    asked: Settings,
    data: Path | None,
    folder: Path,
    environment: Mapping[str, str],
    reporter: Reporter,
) -> Cell:
    out = folder / "-".join(each.replace(" ", "_").replace("/", "_") for each in place)
    try:
        words = {"stacks": False, "out": out, "force": True, **asked}
        options = given_options(RunOptions, words | ({"dataset": data} if data else {}))
    except TypeError as error:
        raise CommandError(f"{study.name}: {error}; see: ioprof run --help") from None
    command = ("ioprof", "study", study.name, "--out", str(folder))
    made = run_job(options, command, environment, reporter)
    if made.trace.run.status != "complete":
        raise CommandError(
            f"{out}: the job did not complete; see: ioprof report {out}", exit_code=1
        )
    summary, times = made.summary, made.trace.run.times
    per_s = summary.throughput.steady_samples_per_s or summary.throughput.samples_per_s or 0.0
    took_s = ((times.end_ns or 0) - (times.start_ns or 0)) / 1e9 if times else 0.0
    shares = {each.cause: each.share or 0.0 for each in summary.steps.causes}
    bound_by = max(shares, key=lambda cause: shares[cause], default="")
    value = {"total_s": took_s, "samples_per_s": per_s, "use": shares.get("compute", 0.0)}
    return Cell(
        place=place,
        value=value[study.quantity],
        low=None,
        high=None,
        basis=made.trace.run.device_basis,
        bound_by="computing" if bound_by == "compute" else bound_by.replace("_", " "),
        share=shares.get(bound_by, 0.0),
        samples_per_s=per_s,
        ranks=made.trace.run.config.ranks or 1,
        parts=_parts(made),
        run=str(out),
        key=key,
    )


def _parts(made: Run) -> tuple[Part, ...]:
    """Means of all steps of all ranks, by cause."""
    steps, ranks = made.summary.steps, made.trace.run.config.ranks or 1

    def hidden_s(cause: str) -> float | None:
        # its whole time counts what was read before the first step, too
        overlap = made.summary.overlap.get(_OVERLAPS.get(cause, ""))
        found_s = overlap.hidden_s if overlap else None
        return None if found_s is None else found_s / (steps.count * ranks)

    found = []
    for each in steps.causes:
        if each.share and steps.mean_s:
            exposed_s, beside_s = each.share * steps.mean_s, hidden_s(each.cause)
            whole_s = None if beside_s is None else exposed_s + beside_s
            found.append(Part(each.cause, whole_s, exposed_s))
    return tuple(found)
