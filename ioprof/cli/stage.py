"""`ioprof stage`: a dataset copied to a folder of this node."""

import json
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from ioprof.cli.console import next_command, output, progress, say
from ioprof.cli.node import stage_folder
from ioprof.cli.preparing import in_megabytes
from ioprof.cli.staging import VERIFY, Staging
from ioprof.dataset import Dataset
from ioprof.errors import CommandError


def stage(
    dataset: Annotated[Path, Argument(help="Folder of the dataset.", show_default=False)],
    folder: Annotated[str, Argument(metavar="DIR", help="Where the copy goes, under the dataset's name; auto: this node's own.")],
    verify: Annotated[
        str, Option(help="digest: compare the records with the manifest. size: only what the file system says.")
    ] = "digest",
    as_json: Annotated[bool, Option("--json", help="Print what it took as JSON.")] = False,
) -> None:
    """Copy a dataset to node-local storage, in parallel, and check it. Interrupted, the same command goes on."""
    if verify not in VERIFY:
        raise CommandError(f"--verify {verify!r}: choose one of {', '.join(VERIFY)}")
    manifest = Dataset.load(dataset)
    place = stage_folder(folder, dataset)
    staging = Staging(manifest, place.folder, keep=True, verify=verify)
    say(f"staging to {staging.destination}" + (f" (found by {place.by})" if folder == "auto" else ""))
    with progress("stage, MB", max(1, round(manifest.bytes / 1e6))) as advance:
        facts = staging.run(in_megabytes(advance))
    if as_json:
        output.print_json(json.dumps({**facts, "found_by": place.by}))
    else:
        output.print(_text(facts), markup=False)
    next_command("ioprof", "run", staging.destination)


def _text(facts: dict[str, Any]) -> str:
    what = f"{facts['to']}: {facts['files']} files, {facts['bytes'] / 1e6:.1f} MB"
    if facts["reused"]:
        return f"{what}: is there already, of the same records"
    rate = facts["copied_bytes"] / 1e6 / facts["seconds"]
    checked = f"{facts['check_s']:.1f} s of it comparing the digest" if facts["verified"] == "digest" else "sizes compared only"
    return f"{what}, {facts['copied_bytes'] / 1e6:.1f} MB of them copied in {facts['seconds']:.1f} s ({rate:.1f} MB/s; {checked})"
