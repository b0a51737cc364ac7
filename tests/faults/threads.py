"""What a training process does beside its loop, or in it: threads, pools, and losses that are no
modules."""

from pathlib import Path
from typing import Final

from repository import PROGRAMS

from faults.case import Case

_LINES: Final = Path(PROGRAMS, "beside_training.py").read_text().splitlines()


def _line(mark: str) -> str:
    """`beside_training.py:57`, the line that ends with this comment."""
    return f"beside_training.py:{next(number for number, line in enumerate(_LINES, 1) if line.endswith(f'  # {mark}'))}"  # noqa: E501


CASES = (
    Case(
        name="a thread that holds the interpreter lock",
        program="beside_training.py",
        arguments=("lock", 25),
        bound_by="host",
        says=("waiting for the interpreter lock", "in count_words"),
        advises="computed in Python by metrics",
        names=("held by metrics", "if that cost nothing"),
    ),
    Case(
        name="a loss of methods of tensors",
        program="beside_training.py",
        arguments=("loss", 300),
        bound_by="compute",
        advises="Compute the loss",
        names=(_line("loss"),),
    ),
    Case(
        name="a loss of operators of tensors",
        program="beside_training.py",
        arguments=("operators", 300),
        bound_by="compute",
        advises="Compute the loss",
        names=(_line("operators"),),
        like="a loss of methods of tensors",
    ),
    Case(
        name="a metric in Python between the forward and the backward pass",
        program="beside_training.py",
        arguments=("metric", 60),
        bound_by="host",
        says=("beside_training.py",),
        advises="beside_training.py",
        names=(_line("score"),),
    ),
    Case(
        name="a metric by NumPy between the forward and the backward pass",
        program="beside_training.py",
        arguments=("array_metric", 60),
        bound_by="host",
        says=("beside_training.py",),
        advises="beside_training.py",
        names=(_line("array metric"),),
    ),
    Case(
        name="a multiprocessing.Pool that computes a metric",
        program="beside_training.py",
        arguments=("pool", 60),
        bound_by="host",
        says=("beside_training.py",),
        most_unexplained=1.0,
    ),
    Case(
        name="a ProcessPoolExecutor that computes a metric",
        program="beside_training.py",
        arguments=("executor", 60),
        bound_by="host",
        says=("beside_training.py",),
        most_unexplained=1.0,
    ),
    Case(
        name="a ProcessPoolExecutor that returns a value for each sample",
        program="beside_training.py",
        arguments=("executor_arrays", 60),
        bound_by="host",
        says=("beside_training.py",),
        most_unexplained=1.0,
    ),
    Case(
        name="a ProcessPoolExecutor that writes checkpoints",
        program="beside_training.py",
        arguments=("saving", 500),
        bound_by="host",
        says=("beside_training.py",),
        most_unexplained=1.0,
    ),
    Case(
        name="a multiprocessing.Pool whose results are taken once per epoch",
        program="beside_training.py",
        arguments=("epochs", 60),
        bound_by="host",
        says=("beside_training.py",),
        most_unexplained=1.0,
    ),
    *(
        Case(
            name=f"{name} that decodes",
            program="feed_by_pool.py",
            arguments=(kind, "{data}", 400, 2),
            bound_by="decode",
            most_unexplained=most,
            needs=needs,
            like="a ThreadPoolExecutor that decodes" if kind in ("pool", "generator") else "",
        )
        for kind, name, most, needs in (
            ("threads", "a ThreadPoolExecutor", 0.05, ()),
            # In 0.4 s that are `loader` its threads have some two samples, where sampling may take
            # 0.2 % of a core.
            ("pool", "a pool of threads of multiprocessing", 0.1, ()),
            ("loky", "joblib.Parallel with processes", 0.05, ("joblib",)),
            ("generator", "joblib.Parallel with threads", 0.1, ("joblib",)),
        )
    ),
)
