"""Trains a tiny model in memory, with something beside the loop or in it whose cost is known; prints seconds of the loop.

beside_training.py WHAT STEPS

WHAT: "none"; "lock", a thread that computes in Python and so holds the interpreter's lock; "loss" and "operators", a loss of
methods and of operators of tensors that takes a large part of a step; "metric", a metric in Python between the forward and the
backward pass; "array_metric", the same by NumPy; "search", one by functions of tensors that no gradient is wanted of; "pool",
"executor", "saving" and "epochs", processes of a multiprocessing.Pool or of concurrent.futures that compute a metric of each
step, write checkpoints, or compute what the loop takes once per epoch; "pool_arrays", "map_arrays" and "executor_arrays", those
that return a value for each sample of each step.
"""

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import numpy as np
import torch
from descent import Descent

what, num_steps = sys.argv[1], int(sys.argv[2])
WIDTH, BATCH, EPOCH = 256, 256, 20
ended = threading.Event()


def count_words() -> None:
    """What a thread of metrics may do all the time, in pure Python."""
    found = 0
    while not ended.is_set():
        for value in range(20_000):
            found += value * value % 7  # lock


def score(values: list[float]) -> float:
    """A metric in pure Python, of some 20 ms."""
    return sum(value * value % 7 for value in range(200_000)) / (1 + len(values))  # score


def scores(number: int) -> np.ndarray[Any, Any]:
    """Those of an evaluation, in pure Python."""
    return np.tile([score([]) for _ in range(3)], 40) + number


def score_each(output: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A value for each sample."""
    return output.mean(axis=1) + score([])


def save(values: list[float]) -> None:
    """A checkpoint, slowly."""
    time.sleep(0.03)


def loss_of(output: torch.Tensor) -> torch.Tensor:
    """The loss, and what is computed with it before the backward pass."""
    if what == "loss":
        return output.repeat(8, 2).square().add(1).log().sin().mean()  # loss
    if what == "operators":
        wide = output.repeat(8, 2)
        return (((wide - 1) * (wide + 2)) ** 2 / 3).mean()  # operators
    loss = output.square().mean()
    if what == "metric":
        score([])  # metric
    elif what == "array_metric":
        values = np.tile(output.detach().numpy(), (8, 2))
        np.log(np.square(values) + 1).sum()  # array metric
    elif what == "search":
        stored = output.detach().repeat(8, 2)
        [(stored - row).square().sum(1).argsort() for row in stored[:4]]  # search
    return loss


class Beside:
    """The pool, and what the loop does with it after a step."""

    def __init__(self) -> None:
        self.pool = multiprocessing.Pool(1) if what in ("pool", "epochs", "pool_arrays", "map_arrays") else None
        self.executor = ProcessPoolExecutor(1) if what in ("executor", "saving", "executor_arrays") else None
        self.pending: list[Callable[[], Any]] = []

    def _send(self, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
        if self.pool is not None:
            return self.pool.apply_async(function, arguments).get
        assert self.executor is not None
        future: Future[Any] = self.executor.submit(function, *arguments)
        return future.result

    def step(self, number: int, output: torch.Tensor) -> None:
        """After the optimizer's step."""
        if what in ("pool", "executor"):
            self.pending.append(self._send(score, output[:4].flatten().tolist()))
            if len(self.pending) > 1:
                self.pending.pop(0)()  # pool
        elif what in ("pool_arrays", "executor_arrays"):
            self.pending.append(self._send(score_each, output.numpy()))
            if len(self.pending) > 1:
                self.pending.pop(0)()  # arrays
        elif what == "map_arrays":
            assert self.pool is not None
            self.pool.map(score_each, [output.numpy()])
        elif what == "saving":
            if number % 10 == 9:
                self._send(save, output[:4].flatten().tolist())()  # saving
        elif what == "epochs":
            self.pending.append(self._send(scores, number))
            if number % EPOCH == EPOCH - 1:
                while self.pending:
                    self.pending.pop()()  # epochs

    def close(self) -> None:
        """End the processes."""
        if self.pool is not None:
            self.pool.terminate()
        if self.executor is not None:
            self.executor.shutdown()


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    optimizer = Descent(model.parameters(), lr=1e-4)
    samples = torch.randn(BATCH, WIDTH)
    beside = Beside()
    if what == "lock":
        threading.Thread(target=count_words, name="metrics", daemon=True).start()
    began = time.perf_counter()
    for number in range(num_steps):
        output = model(samples)
        loss = loss_of(output)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        beside.step(number, output.detach())
    print(json.dumps({"what": what, "loop_s": time.perf_counter() - began}))
    ended.set()
    beside.close()


if __name__ == "__main__":
    main()
