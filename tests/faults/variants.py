"""Cases of the other modules with other parameters, storage or numbers of workers: the same must be
said of them."""

from dataclasses import replace
from typing import Any, Final

from faults import emulated, loop, parts, pipelines, process, storage
from faults import input as inputs
from faults.case import Case
from faults.code import CASES as CODE

_FOLDERS: Final = ("{data}", "{fast}")
_ALL: Final = {
    case.name: case
    for cases in (
        CODE,
        *(module.CASES for module in (emulated, inputs, loop, parts, pipelines, process, storage)),
    )
    for case in cases
}


def _variant(name: str, how: str, **changes: Any) -> Case:
    """The case of that name with some changes."""
    case = _ALL[name]
    return replace(case, name=f"{name}: {how}", like=case.like or case.name, **changes)


CASES = (
    _variant("a collate function of 40 ms", "two workers", arguments=("collate", 60, 2)),
    _variant("one sample of 60 that takes 0.4 s", "two workers", arguments=("slow_sample", 180, 2)),
    _variant(
        "batches of 64 MB that are pickled into a pipe",
        "two workers",
        arguments=("large_messages", 20, 2),
    ),
    _variant("storage with a latency of 20 ms", "40 ms", read_ms=40, arguments=("{data}", 1, 24)),
    _variant(
        "slow disk under a DataLoader",
        "two workers, 3 MB/s",
        disk_bytes_per_s=3 << 20,
        arguments=("{data}", 2, 18),
    ),
    _variant("a sampler of 30 ms", "60 ms, two workers", arguments=("sampler", 0.06, 24, 2)),
    _variant(
        "a checkpoint that is slow to pickle",
        "0.6 s, one worker",
        arguments=("pickling", 0.6, 6, 1),
    ),
    _variant(
        "workers that start anew in every epoch, and open their dataset",
        "0.6 s",
        arguments=("worker_init", 0.6, 16, 1),
    ),
    _variant(
        "collections of 0.3 s and more in the loop",
        "one worker",
        arguments=("collect", 3_000_000, 6, 1),
    ),
    _variant("a metric in Python in the loop", "one worker", arguments=("metric", 80, 1)),
    _variant("own code in __getitem__", "two workers", arguments=("getitem", 24, 2)),
    _variant(
        "a loop that decodes, no loader", "other number of steps", arguments=("{data}", 100, -1)
    ),
    _variant(
        "one worker that mostly waits, where more would help",
        "two of them",
        arguments=("few_workers", 60, 2),
    ),
    _variant(
        "a queue too short for rare slow batches",
        "a longer job",
        arguments=("small_prefetch", 120, 1),
    ),
    _variant(
        "a first epoch from storage, and later ones from memory", "3 MB/s", disk_bytes_per_s=3 << 20
    ),
    _variant(
        "samples of many small reads",
        "4 ms",
        read_ms=4,
        arguments=("small_reads", *_FOLDERS, 14, 1),
    ),
    _variant("one slow file", "two workers", arguments=("slow_file", *_FOLDERS, 60, 2)),
    _variant(
        "a rank whose data is on slow storage",
        "40 ms",
        read_ms=40,
        arguments=("slow_rank_storage", *_FOLDERS, 16, 1),
    ),
    _variant(
        "a rank that computes more",
        "two workers",
        arguments=("slow_rank_compute", *_FOLDERS, 16, 2),
    ),
    _variant(
        "copies from pageable memory",
        "a faster device",
        options=tuple(
            "emulated:h100" if word == "emulated:v100" else word
            for word in _ALL["copies from pageable memory"].options
        ),
    ),
    _variant(
        "a model on the CPU that takes nearly all of the time",
        "no worker",
        arguments=("compute", 50, 0),
    ),
    _variant("Python before the forward pass", "one worker", arguments=("before", 60, 1)),
)
