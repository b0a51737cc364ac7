"""Hooks of training steps: those of the extension do what those in Python do."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ioprof import _native
from ioprof.instrument import hooks, span
from ioprof.instrument.hooks import python_observers
from ioprof.instrument.hooks.pytorch import compute, python_step_hooks
from ioprof.instrument.hooks.pytorch.evaluations import Evaluation
from ioprof.instrument.hooks.steps import Steps

Emitted = tuple[str, int, int, str | None, int, int]
US = 1_000


class Watch:
    """Like a `TensorWatch`, without torch: it observes every second time that was long."""

    def __init__(self) -> None:
        self.is_on = self.wanted = False
        self.calls: list[Any] = []

    def begin(self) -> None:
        self.is_on, self.wanted = True, False
        self.calls.append("begin")

    def end(self, now_ns: int | None) -> None:
        self.is_on = False
        self.calls.append(now_ns)

    def count(self, times: int = 1) -> int:
        assert times == 1
        self.calls.append("count")
        self.wanted = self.calls.count("count") % 2 == 1
        return 0

    @property
    def is_computation(self) -> bool:
        return len(self.calls) % 3 == 2


@contextmanager
def emitted() -> Iterator[list[Emitted]]:
    """What is emitted meanwhile: kind, start, end, name, step, bytes."""
    found: list[Emitted] = []

    def emit(kind: str, start_ns: int, end_ns: int, name: Any = None, **fields: int) -> None:
        numbers = fields.get("step", -1), fields.get("bytes", -1)
        found.append((kind, start_ns, end_ns, name, *numbers))

    span.redirect(lambda *_: None, emit, lambda _: -1)
    try:
        yield found
    finally:
        span.redirect()


TIMES = st.sampled_from([0, 1, 900, 7 * US, 49 * US, 51 * US, 2_000 * US])
"""Nanoseconds that pass before an operation: shorter and longer than what counts as small."""
OPERATIONS = st.sampled_from([
    "forward", "inference", "backward", "backward within", "step", "nested step", "closure", "gap",
    "wait",
])  # fmt: skip


class Played:
    """A training loop that makes the calls of the hooks, by a clock of its own."""

    def __init__(self, loop_class: Callable[..., Any]) -> None:
        self.watches = Watch(), Watch()
        self.loop = loop_class(*self.watches, Evaluation())
        self.now_ns, self.step = 10**15, 0

    def play(self, operation: str, before_ns: int, took_ns: int) -> None:
        loop, self.now_ns = self.loop, self.now_ns + before_ns
        start_ns, self.now_ns = self.now_ns, self.now_ns + took_ns
        match operation:
            case "forward" | "inference":
                loop.begin_forward(start_ns, self.step, operation == "inference")
                loop.end_forward(self.now_ns)
            case "backward":
                loop.begin_backward(start_ns)
                loop.end_backward(self.now_ns)
            case "backward within":
                loop.begin_forward(start_ns, self.step, False)
                loop.begin_backward(start_ns + 1)
                loop.nested += 1
                loop.add_gap(start_ns + 2, start_ns + 3)
                loop.nested -= 1
                assert [(start_ns + 2, start_ns + 3)] == loop.backward_gaps
                loop.backward_gaps.clear()
                self.now_ns += 5
                loop.add_gap(start_ns + 1, self.now_ns)
                loop.end_forward(self.now_ns)
            case "step" | "nested step":
                loop.begin_step(7, start_ns)
                if operation == "nested step":
                    loop.begin_step(8, start_ns + 1)
                loop.end_step(start_ns, self.now_ns, self.step, True)
                self.step += 1
            case "closure":
                loop.end_closure(start_ns, self.now_ns, self.step)
            case "gap":
                loop.add_gap(start_ns, self.now_ns)
            case "wait":
                loop.end_wait(start_ns, self.now_ns)


@given(st.lists(st.tuples(OPERATIONS, TIMES, TIMES), max_size=40))
def test_both_loops_emit_the_same(operations: list[tuple[str, int, int]]) -> None:
    """Whatever a loop calls, and however long it takes, the extension's Loop emits the spans of the
    one in Python, and asks its watches the same."""
    played = []
    for loop_class in (compute.Loop, _native.Loop):
        job = Played(loop_class)
        with emitted() as spans:
            for operation in operations:
                job.play(*operation)
            job.loop.emit_pending()
        # what was lost to other threads is real time
        played.append(
            ([each for each in spans if each[0] != "user"], [each.calls for each in job.watches])
        )
    assert played[0] == played[1]


class Work:
    """What torch returns of an asynchronous collective."""

    def wait(self) -> str:
        return "waited"


class Hooks:
    """What hooks of collectives and passes ask of a `HookState`."""

    is_on, is_deferred, validates = True, False, False
    identity = SimpleNamespace(role="rank")

    def __init__(self, loop: Any, steps: Steps) -> None:
        self.per_thread = SimpleNamespace(current=SimpleNamespace(loop=loop, fetching=False))
        self.steps, self.in_progress = steps, WeakKeyDictionary[Any, Any]()
        self.deferred = 0

    def start_deferred(self) -> None:
        self.deferred += 1


@pytest.fixture
def watched() -> Iterator[None]:
    """Observers of the extension record meanwhile."""
    _native.watch(True, False, lambda: None)
    yield
    _native.watch(False, False, lambda: None)
    if (state := hooks.installed()) is not None:
        _native.follow(state, state.steps)


PASSES = st.lists(
    st.tuples(st.sampled_from(["train", "call", "step", "feed"]), st.integers(0, 1)), max_size=60
)
"""What a thread does, with one of two models."""


def play_passes(
    implementation: Any, loop_class: Callable[..., Any], done: list[tuple[str, int]], size: int
) -> tuple[list[Any], list[Any]]:
    """What is known of the passes after each thing done, and the spans of those that are apart."""
    steps = Steps()
    state = Hooks(loop_class(Watch(), Watch(), Evaluation()), steps)
    implementation.follow(state, steps)
    evaluation = state.per_thread.current.loop.evaluation
    models = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    call, seen = implementation.calling(lambda _model, _batch: None), []
    with emitted() as spans:
        for operation, number in done:
            match operation:
                case "train":
                    call(models[number], torch.zeros(4, 2))
                case "call":
                    with torch.no_grad():
                        call(models[number], torch.zeros(size, 2))
                case "step":
                    steps.number, steps.trains = steps.number + 1, True
                case "feed":
                    evaluation.was_fed = True
            trained = evaluation._trained() if evaluation._trained else None
            known = evaluation.num_passes, evaluation.is_known, evaluation.was_fed
            seen.append((*known, trained and models.index(trained)))
    apart = [(kind, name) for kind, _, _, name, *_ in spans if kind in ("user", "validate")]
    return seen, [each for each in apart if each[1] != "waiting for a core"]


@pytest.mark.usefixtures("watched")
@given(PASSES, st.integers(1, 8))
def test_both_know_the_same_of_passes(done: list[tuple[str, int]], size: int) -> None:
    """A model that is trained on batches of four, and called without gradients on others."""
    python_observers.watch(True, False, lambda: None)
    try:
        in_python = play_passes(python_step_hooks, compute.Loop, done, size)
    finally:
        python_observers.watch(False, False, lambda: None)
    assert in_python == play_passes(_native, _native.Loop, done, size)


@pytest.mark.usefixtures("watched")
def test_hooks_know_what_they_took() -> None:
    """Of a hundred calls of a model, less than all took; nothing in a new recording."""
    _native.forget()
    assert 0 == _native.hooks_ns()
    start_ns = time.monotonic_ns()
    play_passes(_native, _native.Loop, [("train", 0)] * 100, 4)
    assert 0 < _native.hooks_ns() < time.monotonic_ns() - start_ns
    _native.forget()
    assert 0 == _native.hooks_ns()


SENT = {
    "tensor": lambda: ((torch.zeros(3),), {}),
    "list": lambda: (([torch.zeros(2), torch.zeros(5)], torch.zeros(1)), {}),
    "named": lambda: ((), {"tensor": torch.zeros(7), "group": None}),
    "object": lambda: (([1, "a"], 0), {"async_op": False}),
    "elsewhere": lambda: ((torch.zeros(3, device="meta"), torch.zeros(1)), {}),
    "nothing": lambda: ((), {}),
}


@pytest.mark.usefixtures("watched")
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*SENT]),
            st.sampled_from([None, "work", "raises", "nested"]),
            st.integers(0, 2),
        ),
        max_size=12,
    )
)
def test_both_record_the_same_collectives(calls: list[tuple[str, str | None, int]]) -> None:
    """Name, bytes, step and place in the loop of each, also of those in progress; what is called
    within another is part of it, and an exception is the job's."""
    found = []
    for implementation in (python_step_hooks, _native):
        loop_class = compute.Loop if implementation is python_step_hooks else _native.Loop
        loop, steps = loop_class(Watch(), Watch(), Evaluation()), Steps()
        state = Hooks(loop, steps)
        implementation.follow(state, steps)
        steps.begun = True
        results = []
        with emitted() as spans:
            for sent, ends, steps.number in calls:
                args, kwargs = SENT[sent]()
                loop.nested = 1  # what the loop does not compute is a gap of the backward pass
                observed = implementation.exchanging(ended(ends, implementation), "all_reduce")
                try:
                    results.append(observed(*args, **kwargs))
                except ValueError as error:
                    results.append(str(error))
            in_progress = [known[1:] for known in state.in_progress.values()]
            wait = implementation.awaiting(Work.wait)
            waited = [wait(each) for each in results if isinstance(each, Work)]
        found.append(
            (
                [(kind, *fields) for kind, _, _, *fields in spans],
                (in_progress, len(state.in_progress), waited),
                [type(each) if isinstance(each, Work) else each for each in results],
                [end - start >= 0 for start, end in loop.backward_gaps],
                loop.in_collective,
            )
        )
    assert found[0] == found[1]


def ended(how: str | None, implementation: Any) -> Callable[..., Any]:
    """A collective that ends so."""

    def original(*args: Any, **kwargs: Any) -> Any:
        match how:
            case "work":
                return Work()
            case "raises":
                raise ValueError(how)
            case "nested":
                return implementation.exchanging(lambda *_, **__: "inner", "within")(
                    *args, **kwargs
                )
        return how

    return original
