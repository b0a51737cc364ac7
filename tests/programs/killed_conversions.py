"""Converts SOURCE again and again in FOLDER, killed at random instants, and prints as JSON what did
not come out as undisturbed.

    killed_conversions.py SOURCE FOLDER KILLS SEED OPTIONS-AS-JSON

Each conversion is a forked process; some are killed twice or three times on the way. The last one
is left alone.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

from ioprof.converters import ConvertOptions, convert, plan_verification
from ioprof.format.dataset import Dataset


def started(source: Path, destination: Path, options: ConvertOptions) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        convert(source, destination, options)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(code)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def killed(source: Path, destination: Path, options: ConvertOptions, seconds: float) -> bool:
    """Whether it was still at work after so many seconds; returns when it has ended."""
    process = started(source, destination, options)
    end = time.perf_counter() + seconds
    while (left := end - time.perf_counter()) > 0:
        if os.waitpid(process, os.WNOHANG)[0]:
            return False
        time.sleep(min(left, 0.001))
    os.kill(process, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(process, 0)[1])


def main() -> None:
    source, folder, kills, seed = (
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    options = ConvertOptions(**json.loads(sys.argv[5]))
    chance = random.Random(seed)
    begun = time.perf_counter()
    os.waitpid(started(source, folder / "undisturbed" / "dataset", options), 0)
    seconds = time.perf_counter() - begun
    expected = bytes_of(folder / "undisturbed" / "dataset")
    num_killed, went_on, wrong = 0, 0, []
    while num_killed < kills:
        place = folder / "killed"
        for _ in range(chance.randint(1, 3)):
            is_new, begun = not place.exists(), time.perf_counter()
            if killed(source, place / "dataset", options, chance.random() * seconds):
                num_killed += 1
            elif is_new:  # the first one may have waited for much that the others find in memory
                seconds = min(seconds, time.perf_counter() - begun)
        journal = place / ".dataset.partial" / "journal"
        went_on += journal.exists() and journal.stat().st_size > 0
        if not (place / "dataset").exists():
            code = os.waitstatus_to_exitcode(
                os.waitpid(started(source, place / "dataset", options), 0)[1]
            )
            wrong += [f"kill {num_killed}: exit code {code}"] if code else []
        found = bytes_of(place / "dataset")
        digest = (
            Dataset.load(place / "dataset").digest == json.loads(expected["dataset.json"])["digest"]
        )
        if not digest or not plan_verification(place / "dataset", workers=1).run().is_good:
            wrong.append(f"kill {num_killed}: another digest")
        if found.keys() != expected.keys() or (options.layout != "lmdb" and found != expected):
            wrong.append(f"kill {num_killed}: other files")
        shutil.rmtree(place)
    print(
        json.dumps({"killed": num_killed, "went_on": went_on, "seconds": seconds, "wrong": wrong})
    )


if __name__ == "__main__":
    main()
