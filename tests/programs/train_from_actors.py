"""A learner that trains on what two actor processes make by the model, all on the CPU, as in
reinforcement learning.

train_from_actors.py STEPS HOW     HOW: beside, the actors play while the learner trains; before, what they play last is what the
                                   learner trains on again and again, without them

Prints the steps and how long they took by its own stopwatch.
"""  # noqa: E501

import json
import sys
import time

import torch
from descent import Descent
from torch import multiprocessing, nn

num_steps, how = int(sys.argv[1]), sys.argv[2]
ACTORS, GAMES, SIDE, MOVES, PLAYS, AHEAD = 2, 4, 28, 9, 4, 12
PASSES = 4
"""Of the learner, over each batch."""


def make_model() -> nn.Module:
    layers = (nn.Conv2d(2, 16, 5, 2, 2), nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(32, 32, 3, 2, 1))
    return nn.Sequential(
        *(part for layer in layers for part in (layer, nn.ReLU())), nn.Flatten(), nn.Linear(512, 3)
    )


def act(
    seed: int, free: "multiprocessing.Queue[None]", made: "multiprocessing.Queue[torch.Tensor]"
) -> None:
    """Play as the model says, and hand over what was seen."""
    torch.manual_seed(seed)
    model = make_model()
    while True:
        free.get()
        seen = torch.zeros(MOVES, GAMES, 2, SIDE, SIDE)
        for move in [*range(MOVES)] * PLAYS:
            with torch.no_grad():
                chosen = model(seen[move]).softmax(-1).multinomial(1)
            for game, column in enumerate(chosen.squeeze(-1).tolist()):
                seen[(move + 1) % MOVES, game, 0, :, column] = 1.0
        made.put(seen)


def stop(actors: "list[multiprocessing.Process]") -> None:
    for actor in actors:
        actor.terminate()
        actor.join()


def main() -> None:
    context = multiprocessing.get_context("spawn")
    free, made = context.Queue(), context.Queue()
    actors = [
        context.Process(target=act, args=(number, free, made), daemon=True)
        for number in range(ACTORS)
    ]
    for actor in actors:
        actor.start()
    for _ in range(AHEAD):
        free.put(None)
    torch.manual_seed(0)
    model = make_model()
    optimizer = Descent(model.parameters(), lr=0.01)
    rows = made.get().flatten(0, 1)
    if how == "before":
        stop(actors)
    began = time.perf_counter()
    for _ in range(num_steps):
        if how == "beside":
            rows = made.get().flatten(0, 1)
            free.put(None)
        for _ in range(PASSES):
            optimizer.zero_grad()
            model(rows).square().mean().backward()
            optimizer.step()
    print(json.dumps({"steps": num_steps, "seconds": time.perf_counter() - began}))
    stop(actors)


if __name__ == "__main__":
    main()
