"""Hooks of training steps: those of the extension do what those in Python do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ioprof import _native
from ioprof.instrument import span
from ioprof.instrument.hooks.pytorch import compute
from ioprof.instrument.hooks.pytorch.evaluations import Evaluation

Emitted = tuple[str, int, int, str | None, int]
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

    def count(self) -> None:
        self.calls.append("count")
        self.wanted = self.calls.count("count") % 2 == 1

    @property
    def is_computation(self) -> bool:
        return len(self.calls) % 3 == 2


@contextmanager
def emitted() -> Iterator[list[Emitted]]:
    """What is emitted meanwhile: kind, start, end, name, step."""
    found: list[Emitted] = []

    def emit(kind: str, start_ns: int, end_ns: int, name: Any = None, **fields: int) -> None:
        found.append((kind, start_ns, end_ns, name, fields.get("step", -1)))

    span.redirect(lambda *_: None, emit, lambda _: -1)
    try:
        yield found
    finally:
        span.redirect()


TIMES = st.sampled_from([0, 1, 900, 7 * US, 49 * US, 51 * US, 2_000 * US])
"""Nanoseconds that pass before an operation: shorter and longer than what counts as small."""
OPERATIONS = st.sampled_from(
    ["forward", "backward", "backward within", "step", "nested step", "closure", "gap", "wait"]
)


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
            case "forward":
                loop.begin_forward(start_ns, self.step)
                loop.end_forward(self.now_ns)
            case "backward":
                loop.begin_backward(start_ns)
                loop.end_backward(self.now_ns)
            case "backward within":
                loop.begin_forward(start_ns, self.step)
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
