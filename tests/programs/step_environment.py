"""Trains a policy on an environment that simulates in a process of its own, and is asked over a
pipe.

step_environment.py STEPS NUMBERS     NUMBERS: how much Python the environment runs in each step of it.
"""  # noqa: E501

import sys
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection

import torch
from descent import Descent
from torch import nn


def simulate(pipe: Connection, numbers: int) -> None:
    """The environment."""
    while (action := pipe.recv()) is not None:
        found = action
        for number in range(numbers):
            found += number * number % 7
        pipe.send([float(found % (place + 2)) for place in range(8)])


def main(steps: int, numbers: int) -> None:
    """Train."""
    here, there = Pipe()
    environment = Process(target=simulate, args=(there, numbers))
    environment.start()
    policy = nn.Linear(8, 2)
    optimizer = Descent(policy.parameters(), lr=1e-6)
    state = torch.zeros(8)
    for _ in range(steps):
        values = policy(state)
        here.send(int(values.argmax()))
        state = torch.tensor(here.recv())  # receive
        optimizer.zero_grad()
        values.square().mean().backward()
        optimizer.step()
    here.send(None)
    environment.join()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]))
