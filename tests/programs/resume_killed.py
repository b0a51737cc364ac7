"""A job that is killed again and again, and goes on from its checkpoints, against the same job
undisturbed.

    python resume_killed.py DATASET FOLDER KILLS SEED RANKS STEPS

The command and all of its processes are killed at a random instant, up to 0.4 s after the first
checkpoint of each start. Prints a line for each kill, and whether the weights, momenta and random
states of the last checkpoints are the same bit for bit; exits with 1 if they are not.
"""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ioprof.train.checkpoints import steps_saved


def main() -> int:
    dataset, folder, kills, seed, ranks, steps = (
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        *map(int, sys.argv[3:7]),
    )
    choice = random.Random(seed)
    command = [
        *(
            sys.executable,
            "-m",
            "ioprof",
            "run",
            str(dataset),
            "--device",
            "cpu",
            "--ranks",
            str(ranks),
            "--batch-size",
            "6",
        ),
        *(
            "--steps",
            str(steps),
            "--workers",
            "1",
            "--checkpoint-every",
            "3",
            "--no-stacks",
            "--force",
        ),
    ]
    (folder / "tmp").mkdir()
    os.environ["TMPDIR"] = str(folder / "tmp")  # a killed command leaves its capture files
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    subprocess.run(
        [*command, "--out", folder / "run-a", "--checkpoints", undisturbed],
        check=True,
        capture_output=True,
    )
    survived = 0
    while survived < kills:
        before = steps_saved(killed)[-1:]
        if before == [steps]:
            print(f"the job came to its end after {survived} kills", flush=True)
            if not survived:
                return 2
            break
        process = subprocess.Popen(
            [*command, "--out", folder / "run-b", "--checkpoints", killed, "--resume"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        while process.poll() is None and steps_saved(killed)[-1:] == before:
            time.sleep(0.005)
        time.sleep(choice.uniform(0, 0.4))
        children = descendants(process.pid)
        process.kill()
        for pid in children:
            kill(pid)
        process.wait()
        survived += 1
        print(
            f"kill {survived}: {steps_saved(killed)}, unfinished:"
            f" {len(list(killed.glob('*.unfinished')))}",
            flush=True,
        )
    if steps_saved(killed)[-1:] != [steps]:
        subprocess.run(
            [*command, "--out", folder / "run-b", "--checkpoints", killed, "--resume"],
            check=True,
            capture_output=True,
        )
    first, second = (
        whole(each / f"step-{steps}", folder / f"{each.name}.pt") for each in (undisturbed, killed)
    )
    same = first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    print(f"{len(first)} values, the same bit for bit: {same}")
    return 0 if same else 1


def whole(checkpoint: Path, file: Path) -> dict[str, object]:
    """All values of a checkpoint by their path."""
    dcp_to_torch_save(checkpoint, file)
    return dict(flat("", torch.load(file, weights_only=False)))


def flat(prefix: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [entry for key, each in value.items() for entry in flat(f"{prefix}/{key}", each)]


def equal(first: object, second: object) -> bool:
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


def descendants(pid: int) -> list[int]:
    """All processes below one, youngest last."""
    found, waiting = [], [pid]
    while waiting:
        parent = waiting.pop()
        for task in (
            Path(f"/proc/{parent}/task").glob("*/children")
            if Path(f"/proc/{parent}/task").exists()
            else []
        ):
            try:
                children = [int(child) for child in task.read_text().split()]
            except OSError:
                continue
            found += children
            waiting += children
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main())
