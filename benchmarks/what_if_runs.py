"""Records the jobs of `what_if.py`, or reads those that were kept."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import fuse_server  # noqa: E402
import slow_storage  # noqa: E402
from what_if_scenarios import Job, Scenario, Storage  # noqa: E402

from ioprof.format.trace import Trace  # noqa: E402

JOB = Path(__file__).with_name("what_if_job.py")
MEMORY = {"MALLOC_TRIM_THRESHOLD_": "1000000000", "MALLOC_MMAP_THRESHOLD_": "1000000000"}
"""For all jobs: glibc keeps freed memory (man mallopt)."""
DISK_BYTES = 96 << 20


class KeptRuns:
    """Runs of a scenario that were recorded before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def can_record(self, name: str) -> bool:
        """Whether there is such a run."""
        return (self._folder / name / "run.json").is_file()

    def record(self, job: Job, name: str) -> Trace:
        """That run."""
        return Trace.load(self._folder / name)


@dataclass(frozen=True)
class Machine:
    """Where jobs are recorded."""

    images: Path
    disk: slow_storage.ThrottledDisk | None
    real_time: bool
    until: datetime | None
    """When to begin no further pair of runs. None: never."""


class Bench:
    """Records jobs as runs of a folder."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine, self._folder = machine, folder

    def can_record(self, name: str) -> bool:
        """Whether there is time for it."""
        return self._machine.until is None or datetime.now() < self._machine.until

    def record(self, job: Job, name: str) -> Trace:
        """The trace of one run of the job."""
        out = self._folder / name
        out.parent.mkdir(parents=True, exist_ok=True)
        settings = job.settings | {
            "real_time": self._machine.real_time,
            "source": str(self._tree(job.storage)),
        }
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: job.num_cores]))
        before = ("taskset", "-c", cores) if job.num_cores else ()
        with self._data(job.storage) as (data, join):
            words = [*before, sys.executable, str(JOB), str(data), json.dumps(settings)]
            ended = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "ioprof",
                    "record",
                    "--quiet",
                    "--out",
                    str(out),
                    "--",
                    *words,
                ],
                cwd=self._folder,
                capture_output=True,
                text=True,
                preexec_fn=join,
                check=False,
                env=os.environ | MEMORY,
            )
        if ended.returncode:
            raise SystemExit(ended.stderr)
        return Trace.load(out)

    @contextmanager
    def _data(self, storage: Storage) -> Iterator[tuple[Path, Any]]:
        if storage.disk_bytes_per_s:
            assert self._machine.disk is not None
            images = self._machine.disk.path / self._machine.images.name
            self._machine.disk.throttle(0)
            slow_storage.evict(images) if storage.is_cold else read_all(images)
            self._machine.disk.throttle(storage.disk_bytes_per_s)
            yield images, self._machine.disk.join
        elif storage.read_ms:
            # Its server stands for one on another machine, which no load here slows down.
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # which the server inherits
            images = self._tree(storage)
            with fuse_server.fuse_server(
                images, read_ms=storage.read_ms if storage.is_cold else 0.0
            ) as mounted:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
                if not storage.is_cold:
                    read_all(mounted.path)
                    mounted.slow_down(read_ms=storage.read_ms)
                yield mounted.path, None
        else:
            images = self._tree(storage)
            read_all(images)
            yield images, None

    def _tree(self, storage: Storage) -> Path:
        return self._machine.images.with_name("small") if storage.is_small else self._machine.images


def read_all(folder: Path) -> None:
    for path in folder.glob("*/*"):
        path.read_bytes()


def needs(storage: Storage) -> str | None:
    """What is missing for it."""
    if storage.disk_bytes_per_s:
        return slow_storage.missing()
    return fuse_server.missing() if storage.read_ms else None


@contextmanager
def machine(
    sample: Path, scenarios: list[Scenario], real_time: bool, until: datetime | None
) -> Iterator[tuple[Machine, Path]]:
    """The machine with the images of a sample and, where a scenario needs it, a disk; and a folder
    for runs that are not kept.
    """
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        images = trees(sample, Path(folder) / "images")
        disk = None
        if (
            any(scenario.storage.disk_bytes_per_s for scenario in scenarios)
            and slow_storage.missing() is None
        ):
            disk = stack.enter_context(slow_storage.throttled_disk(Path(folder), DISK_BYTES))
            subprocess.run(["cp", "-r", str(images), str(disk.path)], check=True)
        yield Machine(images, disk, real_time, until), Path(folder)


def trees(source: Path, place: Path) -> Path:
    """Copies of the images of the sample as class folders, and beside it `small`, a tree of small
    ones.
    """
    for number, path in enumerate(sorted(source.rglob("*.JPEG"))):
        folder = place / f"n{number % 10:08d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / path.name).write_bytes(path.read_bytes())
        small = place.with_name("small") / folder.name
        small.mkdir(parents=True, exist_ok=True)
        Image.open(path).convert("RGB").resize((96, 96)).save(small / path.name, quality=90)
    return place


def next_time(text: str, now: datetime) -> datetime:
    """When it is HH:MM next."""
    at = datetime.strptime(text, "%H:%M")
    found = now.replace(hour=at.hour, minute=at.minute, second=0, microsecond=0)
    return found if found > now else found + timedelta(days=1)
