"""Code: jobs whose time goes to Python of their own, which the report must name by file and
line."""

from pathlib import Path
from typing import Final

from repository import PROGRAMS

from faults.case import Case

_LINES: Final = Path(PROGRAMS, "own_code.py").read_text().splitlines()


def _line(mark: str) -> str:
    """`own_code.py:57`, the line that ends with this comment."""
    return f"own_code.py:{next(number for number, line in enumerate(_LINES, 1) if line.endswith(f'  # {mark}'))}"  # noqa: E501


CASES = (
    Case(
        name="a search by functions of tensors in the loop",
        program="own_tensors.py",
        arguments=("negatives", 80),
        bound_by="host",
        says=("own_tensors.py",),
        advises="own_tensors.py",
        names=("in hardest",),
    ),
    Case(
        name="a model that is compiled for each length",
        program="train_compiled.py",
        arguments=(24,),
        bound_by="host",
        says=("compilation (torch.compile)",),
        advises="Compile less",
    ),
    *(
        Case(
            name=f"{what} that is on storage before the next step",
            program="flushes.py",
            arguments=(how, 1500, "records"),
            bound_by="host",
            says=("waiting until writes are on storage", "flushes.py"),
            advises="Wait less often until writes are on storage",
            names=(file,),
        )
        for how, what, file in (
            ("log", "a line of a log", "losses.csv"),
            ("database", "a row of SQLite", "losses.db"),
        )
    ),
    Case(
        name="checkpoints that are flushed and renamed",
        program="flushes.py",
        arguments=("checkpoint", 1500, "records"),
        bound_by="checkpoint",
        says=("bringing them to storage", "flushes.py"),
        advises="Write checkpoints less often",
    ),
    Case(
        name="a metric in Python in the loop",
        program="own_code.py",
        arguments=("metric", 120, 0),
        bound_by="host",
        says=("own_code.py",),
        advises="own_code.py",
        names=(_line("metric"), "in main"),
    ),
    Case(
        name="four functions of the loop that take as long each",
        program="own_code.py",
        arguments=("several", 250, 0),
        bound_by="host",
        says=("own_code.py in ",),
        advises="own_code.py",
        names=("in accuracy", "in histogram", "in averages", "in norms"),
    ),
    Case(
        name="logging in the loop",
        program="own_code.py",
        arguments=("logging", 40, 0),
        bound_by="host",
        says=("own_code.py",),
        advises="own_code.py",
        names=(_line("logging"), "in main, which calls"),
    ),
    *(
        Case(
            name=f"histograms of gradients {where} the optimizer's step",
            program="own_code.py",
            arguments=(place, 40, 0),
            bound_by="host",
            says=("own_code.py",),
            advises="own_code.py",
            names=(_line("watch"), "in watch"),
        )
        for place, where in (("gradients", "before"), ("closure", "in a closure of"))
    ),
    Case(
        name="own code in __getitem__",
        program="own_code.py",
        arguments=("getitem", 24, 1),
        bound_by="loader",
        says=("own_code.py",),
        advises="own_code.py",
        names=(_line("busy"), "in busy"),
    ),
    Case(
        name="own code in the sampler",
        program="own_code.py",
        arguments=("sampler", 30, 1),
        bound_by="loader",
        says=("sampler", "own_code.py"),
        advises="in the sampler at",
        names=(_line("sampler"), "in Chosen.__iter__"),
    ),
    Case(
        name="own code in the collate function",
        program="own_code.py",
        arguments=("collate", 40, 1),
        bound_by="collate",
        says=("own_code.py", "in collate"),
        advises="own_code.py",
    ),
    Case(
        name="own code in the tasks of a multiprocessing.Pool",
        program="own_code.py",
        arguments=("tasks", 40, 2),
        bound_by="loader",
        says=("own_code.py", "in busy"),
        advises="own_code.py",
        never_says=("num_workers",),
        names=(_line("busy"), "multiprocessing Pool"),
    ),
    Case(
        name="own code in the tasks of a ProcessPoolExecutor",
        program="own_code.py",
        arguments=("futures", 40, 2),
        bound_by="loader",
        says=("own_code.py", "in busy"),
        advises="own_code.py",
        never_says=("num_workers",),
        names=(_line("busy"), "process pool"),
    ),
    *(
        Case(
            name=f"own code in the tasks of a {pool}",
            program="own_code.py",
            arguments=(place, 160, 2),
            bound_by="loader",
            says=("own_code.py", "in sort"),
            advises="own_code.py",
            never_says=("num_workers",),
            names=(_line("sort"),),
            like=like,
        )
        for place, pool, like in (
            ("thread_futures", "ThreadPoolExecutor", ""),
            (
                "thread_tasks",
                "pool of threads of multiprocessing",
                "own code in the tasks of a ThreadPoolExecutor",
            ),
        )
    ),
    # the loop needs the interpreter's lock after each of its operators, and waits for what the
    # threads make
    Case(
        name="Python in the tasks of a ThreadPoolExecutor",
        program="own_code.py",
        arguments=("thread_python", 120, 2),
        says=("own_code.py", "in busy"),
        advises="own_code.py",
        names=(_line("busy"),),
    ),
    Case(
        name="a collate function that pads in Python",
        program="own_code.py",
        arguments=("pad", 40, 1),
        bound_by="collate",
        says=("own_code.py", "in pad"),
        advises="own_code.py",
        names=(_line("pad"),),
    ),
    Case(
        name="processes of one's own that fill a queue",
        program="own_code.py",
        arguments=("queue", 40, 2),
        bound_by="host",
        says=("own_code.py",),
        advises="own_code.py",
    ),
)
