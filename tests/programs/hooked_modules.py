"""Loops on the CPU without a DataLoader, whose modules say by spans of their own when they compute;
which loop is an argument.

python hooked_modules.py train | inference | transforms | ways | watched | closure | clipped |
penalty
"""

import inspect
import pickle
import sys
import time
from typing import Any

import torch
from torch import nn

import ioprof

STEPS = 5


class Net(nn.Module):
    """Two layers, of which the second is a module that other modules are in; it takes 10 ms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ioprof.span("in the model"):
            time.sleep(0.01)
            result: torch.Tensor = self.rest(self.first(x))
            return result


class Small(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.rest(self.first(x))
        return result


class Loss(nn.Module):
    """Takes 10 ms, and has no parameters."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        with ioprof.span("in the loss"):
            time.sleep(0.01)
            return value.square().mean()


class Noise(nn.Module):
    """A transform of data that is a module."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.01)
        return x + torch.rand_like(x)


def train() -> None:
    """Prepare, forward, loss, a metric, backward, step."""
    model, loss, noise = Net(), Loss(), Noise()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        with ioprof.span("prepare"):
            x = noise(torch.ones(8, 4))
        value = loss(model(x))
        with ioprof.span("metric"):
            time.sleep(0.01)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()


def watched() -> None:
    """Looks at the gradients before the optimizer's step."""
    model, loss = Net(), Loss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss(model(torch.ones(8, 4))).backward()
        with ioprof.span("watch"):
            time.sleep(0.01)
        optimizer.step()


def closure() -> None:
    """Does so in a closure of the step, as Lightning calls its callbacks."""
    model, loss = Net(), Loss()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def compute() -> torch.Tensor:
        optimizer.zero_grad()
        value: torch.Tensor = loss(model(torch.ones(8, 4)))
        value.backward()
        with ioprof.span("watch"):
            time.sleep(0.01)
        return value

    for step in range(STEPS):
        value = optimizer.step(compute) if step % 2 else optimizer.step(closure=compute)
        assert value is not None


def clipped() -> None:
    """Clips large gradients, which torch computes."""
    model = nn.Linear(2000, 2000)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(4 * STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 2000)).square().mean().backward()
        with ioprof.span("clip"):
            for _ in range(3):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def penalty() -> None:
    """Asks for gradients of its input, which take 10 ms, as a part of the loss; prepares in
    between."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def slow(gradient: torch.Tensor) -> torch.Tensor:
        with ioprof.span("in the gradients"):
            time.sleep(0.01)
        return gradient

    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.ones(8, 4, requires_grad=True)
        y = model(x)
        y.register_hook(slow)
        with ioprof.span("prepare"):
            time.sleep(0.01)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (y.mean() + gradient.norm()).backward()
        optimizer.step()


def inference() -> None:
    """A model that is only called."""
    model, noise = Net(), Noise()
    with torch.no_grad():
        for _ in range(STEPS):
            model(noise(torch.ones(8, 4)))


def transforms() -> None:
    """Modules that compute no forward pass."""
    for _ in range(STEPS):
        Noise()(torch.ones(8, 4))


def ways() -> None:
    """Whatever may look at how a module is called; prints what it finds."""
    import torch._dynamo
    import torch.fx

    model: nn.Module = Small().eval()
    x = torch.ones(2, 4)
    call: Any = nn.Module.__call__
    print(
        call is type(model).__call__ is nn.Module._wrapped_call_impl,
        call.__name__,
        call.__qualname__,
        inspect.signature(call),
        nn.Sequential(nn.ReLU())(x).tolist(),
    )
    print(
        len(inspect.getsource(call)),
        inspect.isfunction(call),
        pickle.loads(pickle.dumps(call)) is nn.Module._wrapped_call_impl,
    )
    print(
        sorted(vars(model)),
        len(pickle.dumps(model)),
        bool(torch.nn.modules.module._global_forward_hooks),
    )

    def step(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = model(x)
        return y * 2

    for function in (model, step):
        explained = torch._dynamo.explain(function)(x)
        print(
            explained.graph_count, explained.graph_break_count, len(explained.out_guards or ()) > 0
        )
    torch._dynamo.reset()
    print(torch.compile(step, fullgraph=True, backend="eager")(x).tolist())
    print(torch.compile(model, fullgraph=True, backend="eager")(x).tolist())
    model.compile(fullgraph=True, backend="eager")
    print(model(x).tolist())
    model = Small().eval()
    print(torch.jit.script(model)(x).tolist(), torch.jit.trace(model, x)(x).tolist())
    print(
        [str(node.target) for node in torch.fx.symbolic_trace(model).graph.nodes],
        torch.nn.Module.__call__ is call,
    )
    print([str(node.target) for node in torch.export.export(model, (x,)).graph.nodes])
    handle = model.register_forward_hook(lambda module, inputs, output: output * 2)
    print(model(x).tolist())
    handle.remove()
    print(torch.func.functional_call(model, dict(model.named_parameters()), (x,)).tolist())
    try:
        model(torch.ones(3))
    except RuntimeError as error:
        frames = inspect.getinnerframes(error.__traceback__)  # type: ignore[arg-type]
        print(type(error).__name__, [frame.function for frame in frames])


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
