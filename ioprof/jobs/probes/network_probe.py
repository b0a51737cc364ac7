"""`ioprof probe --network`: what the network between the ranks of a job delivers."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ioprof.errors import CommandError
from ioprof.files import read_json_object
from ioprof.format.run_record import NetworkRecord
from ioprof.jobs.launch import launch
from ioprof.jobs.tasks import as_task
from ioprof.recording.interrupts import count_interrupts
from ioprof.recording.parts import name_of_job, own_part
from ioprof.reporter import ignore_progress
from ioprof.train.accelerators import check_device
from ioprof.train.config import JobConfig, network_path

DEFAULT_RANKS: Final = 2


def probe_network(
    ranks: int | None, device: str, meeting: Path | None, environment: Mapping[str, str]
) -> NetworkRecord | None:
    """Measure the network between `ranks` ranks here, or between the tasks of a launcher; None:
    another task has the result.

    `meeting` is a folder of all hosts, where the ranks of a launcher find each other. Raises
    CommandError.
    """
    part = own_part(environment)
    if part is not None and ranks not in (None, part.of):
        raise CommandError(
            f"--ranks {ranks}: the launcher started {part.of} tasks, each a rank; leave --ranks out"
        )
    ranks = part.of if part else DEFAULT_RANKS if ranks is None else ranks
    if ranks < 2:
        raise CommandError(f"--ranks {ranks}: a network has two ends; give 2 or more")
    if device.startswith("emulated:"):
        raise CommandError(f"--device {device}: emulates its links; choose cpu or cuda")
    check_device(device, ranks if part is None else 1)
    with tempfile.TemporaryDirectory(prefix="ioprof-") as folder, count_interrupts() as interrupts:
        config = JobConfig(
            loader="null", device=device, ranks=ranks, batch_size=1, workers=0, spool=Path(folder)
        )
        out = (meeting or Path()) / (name_of_job(environment) or "ioprof-network")
        config = as_task(config, out, environment)
        log = Path(folder) / "job.log"
        ended = launch(
            config,
            log,
            environment,
            ignore_progress,
            lambda: interrupts.count,
            program="ioprof.train.network",
        )
        if ended.status == "interrupted":
            raise KeyboardInterrupt
        found = read_json_object(network_path(Path(folder)))
        if ended.failures or found is None:
            words = log.read_text(errors="replace").strip().splitlines()
            raise CommandError(
                f"the ranks failed: {words[-1][:300] if words else 'they left no word'}", 1
            )
    if part is not None:
        _remove(config.meeting)
    return NetworkRecord.of(found) if part is None or part.number == 0 else None


def _remove(folder: Path | None) -> None:
    """The folder where the ranks met, once nothing is in it."""
    try:
        if folder is not None:
            folder.rmdir()
    except OSError:
        return
