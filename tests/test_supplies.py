"""Whether what a pool returns may be a batch, and how much of a time is spent in torch."""

import time
from typing import Any

import numpy as np
import pytest
import torch

from ioprof.clock import monotonic_ns
from ioprof.instrument.hooks.pytorch import losses
from ioprof.instrument.hooks.pytorch.losses import TensorWatch
from ioprof.instrument.hooks.supplies import Supply, holds_values, may_be_batch


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        0.5,
        "text" * 100,
        (),
        [],
        {},
        (1.0, 2.0),
        {"loss": 0.1, "top5": 0.9},
        b"ok",
        np.ones(3),
    ],
)
def test_results_without_data_are_no_batches(value: Any) -> None:
    """Of metrics, and of functions that write something."""
    assert not may_be_batch(value)


@pytest.mark.parametrize(
    "value",
    [
        np.ones((4, 8)),
        torch.ones(4, 8),
        {"x": np.ones(8), "y": 1},
        [[0.5] * 8] * 4,
        [(np.ones(9), 3)],
        bytes(100),
        object(),
    ],
)
def test_results_with_data_may_be_batches(value: Any) -> None:
    """Arrays, however they are packed, and what is not known."""
    assert may_be_batch(value)


@pytest.mark.parametrize(
    ("arguments", "computed"),
    [
        (([3, 4, 5] * 20,), False),
        ((np.arange(64),), False),
        ((torch.randperm(64),), False),
        ((["a.jpg"] * 32, b"bytes" * 100), False),
        ((np.zeros((8, 8, 3), np.uint8),), False),
        ((3, 0.5, 0.25), False),
        ((np.ones(3),), False),
        ((torch.ones(4, 8), torch.arange(4)), True),
        (({"scores": np.ones(32, np.float32)},), True),
        (([0.5] * 8, "auc"), True),
    ],
)
def test_tasks_that_are_given_what_a_model_computed(arguments: Any, computed: bool) -> None:
    """Floating-point numbers; a loader's tasks are given none, or few."""
    assert computed is holds_values((arguments, {}))


def test_what_each_task_is_given_was_not_computed_since() -> None:
    """A table of features that goes with each task is the dataset; new ones are outputs."""
    table, supply = {"features": np.ones((100, 8))}, Supply()
    for number in range(4):
        supply.give(None, table, np.arange(number, number + 16))
        assert not supply.evaluates
    supply.give(None, table, np.ones(64))
    assert supply.evaluates


def test_the_time_in_torch_is_counted_with_operators() -> None:
    """Methods, functions and operators of tensors are computation; Python that takes as long is
    not."""
    for computes in (True, False):
        watch, tensor = TensorWatch(of_gradients=True), torch.ones(2000, 2000, requires_grad=True)
        ((tensor - 1) * 2).square().mean()
        watch.begin()
        assert watch.is_on
        loss = ((tensor - 1) * 2).square().mean()
        if not computes:
            sum(value * value for value in range(3_000_000))
        watch.end(monotonic_ns())
        assert not watch.is_on
        loss.backward()
        assert torch.overrides._get_current_function_mode() is None
        assert computes == watch.is_computation


@pytest.mark.parametrize("of_gradients", [False, True])
def test_what_no_gradient_is_wanted_of_counts_only_where_all_counts(of_gradients: bool) -> None:
    """A search among stored tensors uses torch, and is no loss."""
    watch, stored = TensorWatch(of_gradients=of_gradients), torch.ones(2000, 2000)
    ((stored - 1) * 2).square().mean()  # the first call of each loads code, which is not counted
    watch.begin()
    assert not ((stored - 1) * 2).square().mean().requires_grad
    watch.end(monotonic_ns())
    # the mode is taken away at the next call, at the latest
    assert not torch.ones(1).add(1).requires_grad
    assert watch.is_computation is not of_gradients


@pytest.mark.parametrize("sleeps", [False, True])
def test_time_in_which_others_had_the_core_does_not_count(
    sleeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preemption is longer than many a loss; what the thread slept is the loop's own."""
    watch, tensor, elsewhere_ns = (
        TensorWatch(of_gradients=True),
        torch.ones(2000, 2000, requires_grad=True),
        0,
    )
    monkeypatch.setattr(losses, "monotonic_ns", lambda: monotonic_ns() + elsewhere_ns)
    watch.begin()
    loss = (tensor - 1).square().mean()
    if sleeps:
        time.sleep(0.1)
    else:
        elsewhere_ns = 100_000_000
    assert (loss * 2).requires_grad
    watch.end(monotonic_ns() + elsewhere_ns)
    assert watch.is_computation is not sleeps


def test_only_some_times_are_observed() -> None:
    """The second to fourth, then seldom; none without gradients."""
    watch, wanted = TensorWatch(of_gradients=True), []
    for _ in range(600):
        watch.count()
        wanted.append(watch.wanted)
    assert [0, 1, 2, 255, 511] == [place for place, is_wanted in enumerate(wanted) if is_wanted]
    with torch.no_grad():
        watch.begin()
        assert not watch.is_on
