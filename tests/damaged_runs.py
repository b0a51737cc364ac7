"""Damages a run folder at random, and compares what the commands say of it with what they say of
the run as it was.

    python tests/damaged_runs.py RUN WORK FIRST COUNT       prints each answer that is wrong, then
                                                            how many cases were refused

It is a program of its own, with little memory and an alarm: a reader that aborts, or waits for a
pipe, ends it and not the tests.
"""

import io
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final

from ioprof.cli import main

MEMORY_BYTES: Final = 8 << 30
HANG_S: Final = 60
"""An answer takes a second. A pipe without writer, or /dev/zero, takes for ever."""
COMMANDS: Final = (
    ("report", "RUN", "--json"),
    ("report", "RUN", "--full"),
    ("compare", "RUN", "WHOLE"),
    ("inspect", "RUN", "--json"),
    ("whatif", "RUN", "--workers", "4"),
    ("export", "RUN", "OUT", "--to", "chrome", "--force"),
    ("watch", "RUN", "--once"),
)
_VALUES: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    2**63,
    10**400,
    1e308,
    float("nan"),
    "",
    "\ud800",
    [],
    {},
    [[]],
    {"a": 1},
)
_READ: Final = (
    "run.json",
    "spans.parquet",
    "files.parquet",
    "counters.parquet",
    "stacks.parquet",
    "steps.parquet",
    "summary.json",
)
_NOTES: Final = ("by damage or by hand", "computed anew")


def damage(folder: Path, chance: random.Random) -> str:
    """Damage one file of a run; what was done."""
    path = chance.choice([folder / name for name in _READ if (folder / name).exists()])
    what = chance.choice(sorted(_DAMAGES))
    _DAMAGES[what](path, chance)
    return f"{what} {path.name}"


def _edited(edit: Any) -> Any:
    def change(path: Path, chance: random.Random) -> None:
        data = bytearray(path.read_bytes())
        path.write_bytes(edit(data, chance) or data)

    return change


def _flip(data: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 1, 8))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def _flip_in_footer(data: bytearray, chance: random.Random) -> None:
    data[len(data) - 1 - chance.randrange(min(600, len(data)))] ^= 1 << chance.randrange(8)


def _zeros(data: bytearray, chance: random.Random) -> None:
    first = chance.randrange(len(data))
    data[first : first + 512] = bytes(len(data[first : first + 512]))


def _replaced(make: Any) -> Any:
    def change(path: Path, _: random.Random) -> None:
        path.unlink()
        make(path)

    return change


def _swap(path: Path, chance: random.Random) -> None:
    other = chance.choice(
        [
            path.with_name(name)
            for name in _READ
            if path.with_name(name).exists() and name != path.name
        ]
    )
    one, two = path.read_bytes(), other.read_bytes()
    path.write_bytes(two)
    other.write_bytes(one)


def _duplicate(path: Path, chance: random.Random) -> None:
    shutil.copyfile(
        path,
        path.with_name(
            chance.choice([name for name in (*_READ, "analysis.json") if name != path.name])
        ),
    )


def _spoil_json(path: Path, chance: random.Random) -> None:
    path = path.with_name("run.json")
    value = json.loads(path.read_bytes())
    place = value
    while (
        isinstance(key := chance.choice(list(place)), str)
        and isinstance(place[key], dict)
        and place[key]
        and chance.random() < 0.6
    ):
        place = place[key]
    place[key] = chance.choice(_VALUES)
    path.write_text(json.dumps(value))


def claim_rows(data: bytearray, rows: int) -> bytearray:
    """A Parquet file whose footer claims that many rows, wherever it names the number that it has:
    a varint, in zigzag order."""
    import polars as pl

    length = int.from_bytes(data[-8:-4], "little")
    footer = bytes(data[-8 - length : -8]).replace(
        _varint(len(pl.read_parquet(io.BytesIO(data)))), _varint(rows)
    )
    return data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + data[-4:]


def _varint(value: int) -> bytes:
    found, value = bytearray(), value << 1
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _claim_in_table(path: Path, _: random.Random) -> None:
    path = path.with_name("spans.parquet")
    path.write_bytes(claim_rows(bytearray(path.read_bytes()), 168_000_000))


_DAMAGES: Final[dict[str, Any]] = {
    "flip bits in": _edited(_flip),
    "flip a bit in": _edited(_flip),
    "flip a bit at the end of": _edited(_flip_in_footer),
    "truncate": _edited(lambda data, chance: data[: chance.randrange(len(data))]),
    "zero a range of": _edited(_zeros),
    "append to": _edited(lambda data, chance: data + chance.randbytes(chance.choice((1, 4096)))),
    "write over": _edited(lambda data, chance: chance.randbytes(len(data))),
    "nest in": _edited(lambda *_: b"[" * 100_000),
    "swap": _swap,
    "duplicate": _duplicate,
    "spoil the keys of run.json, not": _spoil_json,
    "claim rows in spans.parquet, not": _claim_in_table,
    "delete": _replaced(lambda path: None),
    "make a pipe of": _replaced(os.mkfifo),
    "make a folder of": _replaced(Path.mkdir),
    "make a link to /dev/zero of": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "make a link to a terminal of": _replaced(lambda path: path.symlink_to("/dev/ptmx")),
    "make a link to itself of": _replaced(lambda path: path.symlink_to(path)),
}


def answer(command: tuple[str, ...], places: dict[str, Path]) -> tuple[int, str, str]:
    """Exit code, and what a command prints; what is exported is part of that."""
    out, err = io.StringIO(), io.StringIO()
    places["OUT"].unlink(missing_ok=True)
    signal.alarm(HANG_S)
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(places.get(word, word)) for word in command])
    signal.alarm(0)
    written = places["OUT"].read_text() if places["OUT"].exists() else ""
    return code, out.getvalue() + written, err.getvalue()


def _without_notes(out: str) -> str:
    """An answer without its sentences on damage: what is left are the numbers."""
    try:
        value = json.loads(out)
    except ValueError:
        lines = [line for line in out.splitlines() if line and line != "Not seen:"]
        return "\n".join(line for line in lines if not any(note in line for note in _NOTES))
    if "capture" in value:
        value["capture"]["not_seen"] = [
            text
            for text in value["capture"]["not_seen"]
            if not any(note in text for note in _NOTES)
        ]
        value["capture"]["gaps"] = [
            each
            for each in value["capture"]["gaps"]
            if not any(note in json.dumps(each) for note in _NOTES)
        ]
    return json.dumps(value)


def fault(whole: tuple[int, str, str], found: tuple[int, str, str], is_checked: bool) -> str | None:
    """What is wrong with an answer on a damaged run, if anything is."""
    code, out, err = found
    lines = [line for line in err.splitlines() if not any(note in line for note in _NOTES)]
    if "Traceback" in out + err:
        return "a traceback"
    if code != whole[0]:
        return (
            None
            if code in (1, 2) and not out and len(lines) == 1 and lines[0].startswith("ioprof: ")
            else "no error of one line"
        )
    if "no dataset, run, or part of one" in out:
        return None  # of inspect, without run.json
    if not is_checked or _NOTES[0] in err:  # which says that all of run.json may be wrong
        return None
    return None if _without_notes(out) == _without_notes(whole[1]) else "other numbers"


def run(source: Path, work: Path, first: int, count: int) -> None:
    """Damage `count` copies of a run, and ask all commands about each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    places = {"RUN": work / "run", "WHOLE": work / "whole", "OUT": work / "out.json"}
    for name in ("RUN", "WHOLE"):
        shutil.copytree(source, places[name], dirs_exist_ok=True)
    is_checked = bool(json.loads((source / "run.json").read_bytes()).get("check"))
    whole = {command: answer(command, places) for command in COMMANDS}
    found = Counter[str]()
    for seed in range(first, first + count):
        shutil.rmtree(places["RUN"])
        shutil.copytree(source, places["RUN"])
        what = damage(places["RUN"], random.Random(seed))
        # names the case that ends this process
        print(f"{seed} {what}", file=sys.stderr, flush=True)
        for command in COMMANDS:
            said = answer(command, places)
            found[
                (
                    "refused"
                    if said[0] != whole[command][0]
                    else "noted"
                    if any(map(said[2].__contains__, _NOTES))
                    else "same"
                )
            ] += 1
            if wrong := fault(whole[command], said, is_checked):
                print(
                    f"{seed} {what}: {command[0]}: {wrong}: {said[0]} {said[2][-300:]!r}"
                    f" {said[1][:200]!r}"
                )
    print(json.dumps(found))


if __name__ == "__main__":
    run(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
