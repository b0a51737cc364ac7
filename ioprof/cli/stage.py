"""`ioprof stage`: a dataset copied to a folder of this node."""

import json
import os
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ioprof.cli.console import next_command, output, progress, say
from ioprof.errors import CommandError
from ioprof.format.dataset import Dataset
from ioprof.jobs.staged.stage_folder import find_stage_folder
from ioprof.jobs.staged.staging import VERIFY, Staging, stage_text
from ioprof.reporter import in_megabytes, megabytes


def stage(
    dataset: Annotated[Path, Argument(help="Folder of the dataset.", show_default=False)],
    folder: Annotated[
        str,
        Argument(
            metavar="DIR",
            help="Where the copy goes, under the dataset's name; auto: this node's own.",
        ),
    ],
    verify: Annotated[
        str,
        Option(
            help=(
                "digest: compare the records with the manifest. size: only what the file system"
                " says."
            )
        ),
    ] = "digest",
    as_json: Annotated[bool, Option("--json", help="Print what it took as JSON.")] = False,
) -> None:
    """Copy a dataset to node-local storage, in parallel, and verify it. Interrupted, the same
    command resumes.
    """
    if verify not in VERIFY:
        raise CommandError(f"--verify {verify!r}: choose one of {', '.join(VERIFY)}")
    manifest = Dataset.load(dataset)
    place = find_stage_folder(folder, dataset, os.environ)
    staging = Staging(manifest, place.folder, keep=True, verify=verify)
    say(
        f"staging to {staging.destination}"
        + (f" (found by {place.by})" if folder == "auto" else "")
    )
    with progress("stage, MB", megabytes(manifest.bytes)) as advance:
        record = staging.run(in_megabytes(advance))
    if as_json:
        output.print_json(json.dumps(record.replace(found_by=place.by).to_dict()))
    else:
        output.print(stage_text(record), markup=False)
    next_command("ioprof", "run", staging.destination)
