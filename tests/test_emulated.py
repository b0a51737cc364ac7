"""The emulated device: its engines run at the same time, and its clock keeps the device's rate."""

import itertools
import math
import re
from dataclasses import replace

import pytest
import torch

from ioprof.clock import monotonic_ns
from ioprof.errors import CommandError
from ioprof.loaders.base import Batch
from ioprof.train.accelerators.emulated import (
    Completion,
    EmulatedAccelerator,
    Engine,
    gradient_buckets,
)
from ioprof.train.accelerators.exchange import Exchange
from ioprof.train.devices import (
    DERIVED,
    PUBLISHED,
    EmulatedDevice,
    Links,
    Rate,
    device_names,
    emulated_device,
)
from ioprof.train.models import MODELS

LINKS = Links(10e9)
DEVICE = EmulatedDevice(
    "test",
    Rate(2000.0, PUBLISHED, "a test"),
    h2d_bytes_per_s=1e9,
    pageable_bytes_per_s=0.5e9,
    links=LINKS,
)
RESNET50_GRADIENT_BYTES = MODELS["resnet50"].gradient_bytes
SHAPE = (8, 3, 8, 8)


class Spans(list):
    """What a device records, as (kind, begin, end, step)."""

    def emit(self, kind, begin, end, name=None, *, step=-1, **_):
        self.append((kind, begin, end, step))


@pytest.fixture
def spans():
    return Spans()


def batch(number: int, samples: int = 8) -> Batch:
    return Batch(
        number,
        torch.zeros((samples, *SHAPE[1:]), dtype=torch.uint8),
        torch.zeros(samples, dtype=torch.int64),
    )


def ring(num_ranks: int) -> Exchange:
    return Exchange("ring", num_ranks, num_ranks, LINKS)


def run_steps(accelerator: EmulatedAccelerator, steps: int) -> None:
    for step in range(steps):
        accelerator.launch(batch(step), step)
        if step:
            accelerator.synchronize(step - 1)
    accelerator.synchronize(steps - 1)
    accelerator.close()


def test_a_step_takes_the_known_time_on_the_devices_own_clock(spans):
    """A step of n samples takes n / rate, to the nanosecond, however late the host wakes up."""
    run_steps(EmulatedAccelerator(DEVICE, ring(1), SHAPE, emit=spans.emit), 5)

    assert [4_000_000] * 5 == [end - begin for kind, begin, end, _ in spans if kind == "compute"]


def test_queued_steps_follow_without_a_gap(spans):
    """A step that was launched while the one before ran begins at that one's end: the host's
    wake-up costs the device nothing."""
    now_ns = monotonic_ns()  # when all steps are launched, however long that takes
    instant_copies = replace(DEVICE, h2d_bytes_per_s=math.inf)
    accelerator = EmulatedAccelerator(
        instant_copies, ring(1), SHAPE, emit=spans.emit, now_ns=lambda: now_ns
    )
    for step in range(6):
        accelerator.launch(batch(step), step)
    accelerator.synchronize(5)
    accelerator.close()

    computes = sorted((begin, end) for kind, begin, end, _ in spans if kind == "compute")
    assert [now_ns, *(end for _, end in computes[:-1])] == [begin for begin, _ in computes]


def test_a_copy_runs_beside_the_step_before(spans):
    """The copy engine and the compute engine work at the same time."""
    run_steps(
        EmulatedAccelerator(replace(DEVICE, h2d_bytes_per_s=1e6), ring(1), SHAPE, emit=spans.emit),
        6,
    )

    copies = {step: (begin, end) for kind, begin, end, step in spans if kind == "h2d"}
    computes = {step: (begin, end) for kind, begin, end, step in spans if kind == "compute"}
    assert all(copies[step][1] <= computes[step][0] for step in copies)
    assert any(copies[step][0] < computes[step - 1][1] for step in range(1, 6))


def test_the_exchange_waits_for_the_slowest_rank_and_takes_the_ring_formulas_time(spans):
    """A bucket's exchange begins when the slowest rank has it, in order, and the sum is 2L(p-1)/p
    over the link."""
    late_ns = 3_000_000
    latest = lambda times: [time_ns + late_ns for time_ns in times]  # noqa: E731
    run_steps(EmulatedAccelerator(DEVICE, ring(4), SHAPE, emit=spans.emit, latest=latest), 2)

    comms = [(begin, end) for kind, begin, end, step in spans if kind == "comm" and step == 0]
    compute = next(
        (begin, end) for kind, begin, end, step in spans if kind == "compute" and step == 0
    )
    exchange_ns = 2 * RESNET50_GRADIENT_BYTES * 3 / 4 / LINKS.bytes_per_s * 1e9
    assert comms[0][0] > compute[0] + 4_000_000 // 3
    assert comms[-1][1] >= compute[1] + late_ns
    assert all(first[1] <= second[1] for first, second in itertools.pairwise(comms))
    assert comms[-1][1] - comms[0][0] >= exchange_ns


def test_the_next_step_begins_after_the_exchange(spans):
    """Parameters are updated from exchanged gradients: step i + 1 computes only after step i was
    exchanged."""
    latest = lambda times: [time_ns + 2_000_000 for time_ns in times]  # noqa: E731
    run_steps(EmulatedAccelerator(DEVICE, ring(2), SHAPE, emit=spans.emit, latest=latest), 3)

    exchanged = {
        step: max(end for kind, _, end, of in spans if kind == "comm" and of == step)
        for step in range(3)
    }
    begins = {step: begin for kind, begin, _, step in spans if kind == "compute"}
    assert all(exchanged[step] <= begins[step + 1] for step in range(2))


def test_buckets_hold_all_gradients_and_the_last_is_ready_at_the_end():
    """Buckets are as DistributedDataParallel makes them: 1 MiB first, then 25 MiB, filled through
    the backward pass."""
    buckets = gradient_buckets(RESNET50_GRADIENT_BYTES)

    assert RESNET50_GRADIENT_BYTES == sum(bucket.num_bytes for bucket in buckets)
    assert 1 << 20 == buckets[0].num_bytes
    assert all(25 << 20 == bucket.num_bytes for bucket in buckets[1:-1])
    assert pytest.approx(1.0) == buckets[-1].ready_ratio
    assert all(1 / 3 < bucket.ready_ratio <= 1 + 1e-9 for bucket in buckets)


def test_what_goes_wrong_in_an_engine_is_raised_where_the_host_waits():
    """An engine that fails does not hang the job: whoever synchronises gets the error, and later
    operations still run."""

    def broken(_: int) -> int:
        raise RuntimeError("peer is gone")

    engine, failed, fine = Engine("test"), Completion(), Completion()
    engine.launch(broken, failed)
    engine.launch(lambda earliest: earliest + 1, fine)

    with pytest.raises(RuntimeError, match="peer is gone"):
        failed.end_ns()
    assert fine.end_ns() > 0
    engine.close()


def spans_by_kind(spans: Spans, kind: str) -> dict[int, tuple[int, int]]:
    return {step: (begin, end) for found, begin, end, step in spans if found == kind}


@pytest.mark.parametrize("copy", ["pinned", "pageable"])
def test_copies_on_the_stream_of_the_computation_hide_nothing(spans, copy):
    """A copy begins when the step before has ended, and the step on it when the copy has, however
    late the host launches it."""
    slow, now_ns = replace(DEVICE, h2d_bytes_per_s=1e6, pageable_bytes_per_s=0.5e6), monotonic_ns()
    run_steps(
        EmulatedAccelerator(
            slow, ring(1), SHAPE, copy=copy, emit=spans.emit, now_ns=lambda: now_ns
        ),
        5,
    )

    copies, computes = spans_by_kind(spans, "h2d"), spans_by_kind(spans, "compute")
    rate = {"pinned": 1e6, "pageable": 0.5e6}[copy]
    assert {round((8 * 3 * 8 * 8 + 8 * 8) / rate * 1e9)} == {
        end - begin for begin, end in copies.values()
    }
    assert all(computes[step][0] == copies[step][1] for step in range(5))
    assert all(computes[step][1] <= copies[step + 1][0] for step in range(4))


def test_the_host_waits_for_a_pageable_copy_alone(spans):
    """`launch` returns at once from a page-locked copy, and after a pageable one has ended."""
    slow = replace(DEVICE, h2d_bytes_per_s=1e5, pageable_bytes_per_s=1e5)
    waited = {}
    for copy in ("overlapped", "pinned", "pageable"):
        accelerator = EmulatedAccelerator(slow, ring(1), SHAPE, copy=copy, emit=spans.emit)
        accelerator.launch(batch(0), 0)
        launched_ns = monotonic_ns()
        accelerator.synchronize(0)
        accelerator.close()
        waited[copy] = launched_ns >= spans_by_kind(spans, "h2d")[0][1]
    assert {"overlapped": False, "pinned": False, "pageable": True} == waited


def test_all_but_the_first_copy_are_hidden_where_they_fit_under_a_step(spans):
    """On an engine of their own, copies shorter than a step cost nothing but the first one."""
    copies_of_2_ms = replace(DEVICE, h2d_bytes_per_s=(8 * 3 * 8 * 8 + 8 * 8) / 2e-3)
    now_ns = monotonic_ns()
    accelerator = EmulatedAccelerator(
        copies_of_2_ms, ring(1), SHAPE, is_constant=True, emit=spans.emit, now_ns=lambda: now_ns
    )
    for step in range(20):
        accelerator.launch(batch(step), step)
    accelerator.synchronize(19)
    accelerator.close()
    copies, computes = spans_by_kind(spans, "h2d"), spans_by_kind(spans, "compute")
    first, last = computes[0][0], computes[19][1]
    assert (20 * 4_000_000, copies[0][1]) == (last - first, first)


def test_an_evaluation_takes_a_third_of_a_step(spans):
    """The forward pass alone, after the copy of its batch."""
    accelerator = EmulatedAccelerator(DEVICE, ring(1), SHAPE, emit=spans.emit)
    accelerator.launch(batch(0), 0)
    accelerator.synchronize(0)
    score = accelerator.evaluate(batch(1), 0)
    accelerator.close()

    assert (8, None, None) == (score.samples, score.loss_sum, score.correct)
    begin, end = spans_by_kind(spans, "compute")[0]
    assert 4_000_000 // 3 == pytest.approx(end - begin, abs=2)


def test_what_a_device_has_no_rate_for_is_derived_and_says_how():
    """By the ratio of two rates that one study measured, and only where there is none by
    operations."""
    alexnet = emulated_device("emulated:v100", MODELS["alexnet"]).rate
    assert (DERIVED, True) == (alexnet.basis, "1,393.8 of ResNet-50, times 13.6" in alexnet.source)
    assert pytest.approx(1393.8 * 2987 / 219) == alexnet.samples_per_s
    mlp = emulated_device("emulated:h100", MODELS["mlp"]).rate
    assert (DERIVED, True) == (mlp.basis, "the inverse ratio of their operations" in mlp.source)
    assert pytest.approx(7011.1 * 8_178_368_512 / 8_364_032) == mlp.samples_per_s


def test_every_published_rate_has_its_source_and_year():
    """A rate without both is none."""
    rates = [
        emulated_device(f"emulated:{name}", facts).rate
        for name in device_names()
        for facts in MODELS.values()
    ]
    published = [rate for rate in rates if rate.basis == PUBLISHED]
    assert 11 == len(published)
    assert all(rate.source and rate.year for rate in published)
    assert all(rate.year is None for rate in rates if rate.basis == DERIVED)


def test_known_devices_have_the_rates_of_their_sources():
    """The rates are those of the published runs that devices.toml names, and a newer device is
    never slower: rates of another kind are devices of their own."""
    rates = {
        name: emulated_device(f"emulated:{name}", MODELS["resnet50"]).samples_per_s
        for name in device_names()
    }
    comparable = {"p100": 194.0, "v100": 1393.8, "a100": 2802.6, "h100": 7011.1, "h200": 7944.9}
    storage = {"v100": 328.2, "a100": 919.5, "h100": 1785.7}
    derived = {"b200-derived": 13979.0}
    storage = {f"{name}-mlperf-storage": rate for name, rate in storage.items()}
    assert comparable | derived | storage == rates
    assert sorted(comparable.values()) == list(comparable.values())


def test_a_device_of_ones_own_is_a_few_lines(tmp_path):
    """It has what its file says, and the rest of the device that it is like."""
    path = tmp_path / "mine.toml"
    path.write_text(
        """[mine]
like = "h100"
h2d_bytes_per_s = 1e9
[mine.rates.resnet50]
samples_per_s = 5.0
source = "measured here"
year = 2026
"""
    )
    found = emulated_device(f"emulated:{path}", MODELS["resnet50"])
    like = emulated_device("emulated:h100", MODELS["resnet50"])
    assert ("mine", 5.0, 1e9, like.links) == (
        found.name,
        found.samples_per_s,
        found.h2d_bytes_per_s,
        found.links,
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[mine]\nlike = 'tpu'", "h2d_bytes_per_s"),
        ("[mine]\n[mine.rates.resnet50]\nsamples_per_s = 1.0", "rates.resnet50.source"),
        ("[a]\n[b]\n", "2 tables"),
        ("x", "mine.toml"),
    ],
)
def test_a_device_that_lacks_a_value_is_refused_by_its_name(tmp_path, text, named):
    """Not guessed: the message names what is missing."""
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(CommandError, match=re.escape(named)):
        emulated_device(f"emulated:{tmp_path / 'mine.toml'}", MODELS["resnet50"])


def test_a_device_like_another_has_the_rate_that_is_given() -> None:
    """Its copies and links are those of the other; other models are derived from the rate."""
    like, found = (
        emulated_device(f"emulated:{name}", MODELS["resnet50"]) for name in ("v100", "v100@512.5")
    )
    assert like is not None
    assert found is not None
    assert replace(found, name="v100", rate=like.rate) == like
    assert ("v100@512.5", 512.5, DERIVED) == (found.name, found.samples_per_s, found.rate.basis)


@pytest.mark.parametrize("name", ["v100@", "v100@0", "v100@-1", "v100@1e400", "mine@5", "@5"])
def test_a_rate_that_is_none_is_refused(name: str) -> None:
    """With an example of one."""
    with pytest.raises(CommandError, match=r"emulated:v100@500"):
        emulated_device(f"emulated:{name}", MODELS["resnet50"])
