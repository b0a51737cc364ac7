"""`ioprof study`: makes a published study again, and prints its table."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

import ioprof
from ioprof.cli.console import next_command, output, reporter, say


def study(
    preset: Annotated[str, Argument(help="A published training with a study: see ioprof presets; or a file NAME.toml.")],
    dataset: Annotated[Path | None, Argument(help="Folder made by `ioprof convert`. Without it a synthetic one is made.")] = None,
    values: Annotated[str | None, Option(help="Of what the study varies, such as 1,2,4. Without it: those of the study.")] = None,
    loader: Annotated[str | None, Option(help="As of ioprof run; so are the following.")] = None,
    model: Annotated[str | None, Option()] = None,
    device: Annotated[str | None, Option()] = None,
    ranks: Annotated[int | None, Option(min=1, help="If the study does not vary it.")] = None,
    batch_size: Annotated[int | None, Option(min=1)] = None,
    workers: Annotated[int | None, Option(min=0)] = None,
    steps: Annotated[int | None, Option(min=1)] = None,
    epochs: Annotated[int | None, Option(min=1)] = None,
    predict_epochs: Annotated[
        int | None, Option(min=2, help="Without it, a study of dataset scales predicts the epochs of its preset.")
    ] = None,
    cache: Annotated[str | None, Option(help="Without it, of a study of dataset scales: cold.")] = None,
    memory_limit: Annotated[str | None, Option()] = None,
    stacks: Annotated[bool, Option("--stacks/--no-stacks")] = False,
    out: Annotated[Path | None, Option(help="Folder for the runs, the table and the figure. Without it: study-PRESET.")] = None,
    force: Annotated[bool, Option("--force", help="Replace earlier runs there.")] = False,
    json: Annotated[bool, Option("--json", help="Print the table as JSON, and nothing else.")] = False,
) -> int:
    """Train with a preset several times, with another number of ranks or another scale of the dataset each, and print a table.

    The page OUT/study.html has the table and a figure, OUT/study.json the numbers.
    """
    folder = out or Path(f"study-{Path(preset).stem}")
    found = ioprof.study(
        preset, dataset, values=values.split(",") if values else (), loader=loader, model=model, device=device, ranks=ranks,
        batch_size=batch_size, workers=workers, steps=steps, epochs=epochs, predict_epochs=predict_epochs, cache=cache,
        memory_limit=memory_limit, stacks=stacks, out=folder, force=force, reporter=reporter,
    )  # fmt: skip
    if json:
        output.file.write(found.to_json() + "\n")
        return 0
    from ioprof.report.study import study_notes, study_table  # the jobs are started before these libraries are loaded

    for note in study_notes(found):
        output.print(note, markup=False)
    output.print()
    output.print(study_table(found))
    say(f"the same with a figure: {folder / 'study.html'}")
    next_command("ioprof", "compare", *(row.run for row in found.rows))
    return 0
