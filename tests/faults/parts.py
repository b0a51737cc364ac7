"""Parts of a job that are neither reading nor computing: collections, samplers, checkpoints,
validation, workers, the index."""

from pathlib import Path
from typing import Final

from repository import PROGRAMS

from faults.case import Case

_PROGRAM: Final = "train_with_fault.py"
_LINES: Final = Path(PROGRAMS, _PROGRAM).read_text().splitlines()


def _line(mark: str) -> str:
    """`train_with_fault.py:42`, the line that ends with this comment."""
    return f"{_PROGRAM}:{next(number for number, line in enumerate(_LINES, 1) if line.endswith(f'  # {mark}'))}"  # noqa: E501


CASES = (
    Case(
        name="collections of 0.3 s and more in the loop",
        program=_PROGRAM,
        arguments=("collect", 3_000_000, 8, 0),
        bound_by="gc",
        says=("gc.collect() at train_with_fault.py:",),
        advises="Call gc.collect() less often (now: train_with_fault.py:",
    ),
    Case(
        name="collections in a worker",
        program=_PROGRAM,
        arguments=("collect_in_worker", 1_000_000, 8, 1),
        bound_by="loader",
        says=("garbage collection in workers",),
        advises="gc.freeze()",
    ),
    Case(
        name="a sampler of 30 ms",
        program=_PROGRAM,
        arguments=("sampler", 0.03, 24, 1),
        bound_by="loader",
        says=("sampler",),
        advises="sampler",
    ),
    Case(
        name="a sampler that draws by weight, without workers",
        program=_PROGRAM,
        arguments=("multinomial", 3_000_000, 12, 0),
        bound_by="loader",
        says=("sampler",),
        advises="sampler",
    ),
    Case(
        name="an index that is made in Python",
        program=_PROGRAM,
        arguments=("index", 8_000_000, 60, 0),
        says=("before its first step", _line("index").partition(":")[0]),
        advises="index",
        phase="start-up",
        most_unexplained=0.2,  # of its short steps, which are not what took long
        like="an index that looks for each file",
    ),
    Case(
        name="an index that looks for each file",
        program=_PROGRAM,
        arguments=("paths", 1_000_000, 60, 0),
        says=("before its first step", _line("paths")),
        advises="index",
        phase="start-up",
        most_unexplained=0.2,  # of its short steps, which are not what took long
    ),
    Case(
        name="a checkpoint of 120 MB in every step",
        program=_PROGRAM,
        arguments=("checkpoint", 30_000_000, 12, 0),
        bound_by="checkpoint",
        says=("on save (", "in save"),
        advises="checkpoints",
        names=(_line("save"),),
        like="a checkpoint that is slow to pickle",
    ),
    Case(
        name="a checkpoint that is slow to pickle",
        program=_PROGRAM,
        arguments=("pickling", 0.3, 8, 0),
        bound_by="checkpoint",
        says=("on save (", "in Pickled.__getstate__"),
        advises=f"{_line('pickle')} in Pickled.__getstate__",
        names=(_line("pickle"),),
    ),
    Case(
        name="a validation after every epoch",
        program=_PROGRAM,
        arguments=("validation", 300, 24, 0),
        bound_by="validation",
        advises="Validate less often",
    ),
    Case(
        name="an evaluation on batches that the loop makes",
        program=_PROGRAM,
        arguments=("evaluation", 300, 24, 0),
        bound_by="validation",
        says=("evaluation mode", "validate"),
        advises="Validate less often",
    ),
    Case(
        name="a batch of validation in every step",
        program=_PROGRAM,
        arguments=("batch_of_validation", 100, 24, 0),
        bound_by="validation",
        advises="Validate less often",
    ),
    Case(
        name="workers that start anew in every epoch, and open their dataset",
        program=_PROGRAM,
        arguments=("worker_init", 0.3, 24, 1),
        bound_by="loader",
        says=("start of workers",),
        advises="persistent_workers=True",
    ),
    *(
        Case(
            name=f"{name}, for workers that are kept",
            program=_PROGRAM,
            arguments=(fault, 100_000, 60, 1),
            bound_by="loader",
            says=("sampler",),
            never_says=("start of workers",),
            advises="in the sampler at",
            names=("train_with_fault.py", "Buckets.__iter__"),
        )
        for fault, name in (
            ("buckets", "a sampler that orders the samples of every epoch"),
            ("batches", "a sampler of batches that chooses those of an epoch at once"),
        )
    ),
    Case(
        name="workers that are spawned in every epoch",
        program=_PROGRAM,
        arguments=("spawn", 0, 8, 1),
        bound_by="loader",
        says=("start of workers",),
        advises="persistent_workers=True",
    ),
    Case(
        name="a job without a fault",
        program=_PROGRAM,
        arguments=("none", 0, 200, 0),
        most_unexplained=0.1,  # of steps of milliseconds, a part is always Python between the spans
        never_says=(
            "Garbage-c",
            "sampler",
            "Checkpoint-",
            "Validation-",
            "start of workers",
            "before its first step",
        ),
    ),
)
