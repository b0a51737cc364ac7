"""Which folder of this node a dataset is staged to."""

import os
from collections.abc import Mapping
from pathlib import Path

from ioprof.errors import CommandError
from ioprof.storage import describe
from ioprof.storage.node_local import GIVEN, NodeLocal, node_local


def find_stage_folder(text: str, dataset: Path, environment: Mapping[str, str]) -> NodeLocal:
    """The folder that `--stage-to` names, or that `environment` names if that is `auto`; raises
    `CommandError`.
    """
    if text == "auto":
        return node_local(
            environment,
            lambda path: describe(path).kind,
            lambda path: describe(path).file_system or "",
        )
    folder = Path(text)
    if not folder.is_dir():
        raise CommandError(
            f"--stage-to {text}: no such folder; make it first (mkdir -p {text}), or let it be"
            " found: --stage-to auto"
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CommandError(f"--stage-to {text}: cannot be written; give another folder")
    if Path(os.path.realpath(folder)) == Path(os.path.realpath(dataset)).parent:
        raise CommandError(
            f"--stage-to {text}: is where {dataset} lies already; give a folder of this node's own,"
            " or auto"
        )
    return NodeLocal(folder, GIVEN)
