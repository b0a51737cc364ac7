"""The emulated device: its engines run at the same time, and its clock keeps the device's rate."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from ioprof.clock import monotonic_ns
from ioprof.loaders.base import Batch
from ioprof.train.accelerators import emulated
from ioprof.train.accelerators.emulated import RESNET50_GRADIENT_BYTES, Completion, EmulatedAccelerator, Engine, gradient_buckets
from ioprof.train.config import EmulatedDevice, emulated_devices

DEVICE = EmulatedDevice("test", samples_per_s=2000.0, h2d_bytes_per_s=1e9, exchange_bytes_per_s=10e9)
SHAPE = (8, 3, 8, 8)


@pytest.fixture
def spans(monkeypatch):
    """What the device records, as (kind, begin, end, step)."""
    recorded = []
    monkeypatch.setattr(
        emulated, "emit", lambda kind, begin, end, name=None, *, step=-1, **_: recorded.append((kind, begin, end, step))
    )
    return recorded


def batch(number: int, samples: int = 8) -> Batch:
    return Batch(number, torch.zeros((samples, *SHAPE[1:]), dtype=torch.uint8), torch.zeros(samples, dtype=torch.int64), 0)


def run_steps(accelerator: EmulatedAccelerator, steps: int) -> None:
    for step in range(steps):
        accelerator.launch(batch(step), step)
        if step:
            accelerator.synchronize(step - 1)
    accelerator.synchronize(steps - 1)
    accelerator.close()


def test_a_step_takes_the_known_time_on_the_devices_own_clock(spans):
    """A step of n samples takes n / rate, to the nanosecond, however late the host wakes up."""
    run_steps(EmulatedAccelerator(DEVICE, 1, SHAPE), 5)

    assert [4_000_000] * 5 == [end - begin for kind, begin, end, _ in spans if kind == "compute"]


def test_queued_steps_follow_without_a_gap(spans, monkeypatch):
    """A step that was launched while the one before ran begins at that one's end: the host's wake-up costs the device nothing."""
    accelerator = EmulatedAccelerator(replace(DEVICE, h2d_bytes_per_s=math.inf), 1, SHAPE)
    with monkeypatch.context() as clock:  # it stands still until all steps are launched, however long that takes
        now_ns = monotonic_ns()
        clock.setattr(emulated, "monotonic_ns", lambda: now_ns)
        for step in range(6):
            accelerator.launch(batch(step), step)
    accelerator.synchronize(5)
    accelerator.close()

    computes = sorted((begin, end) for kind, begin, end, _ in spans if kind == "compute")
    assert [now_ns, *(end for _, end in computes[:-1])] == [begin for begin, _ in computes]


def test_a_copy_runs_beside_the_step_before(spans):
    """The copy engine and the compute engine work at the same time."""
    slow_copies = EmulatedDevice("test", samples_per_s=2000.0, h2d_bytes_per_s=1e6, exchange_bytes_per_s=1e9)
    run_steps(EmulatedAccelerator(slow_copies, 1, SHAPE), 6)

    copies = {step: (begin, end) for kind, begin, end, step in spans if kind == "h2d"}
    computes = {step: (begin, end) for kind, begin, end, step in spans if kind == "compute"}
    assert all(copies[step][1] <= computes[step][0] for step in copies)
    assert any(copies[step][0] < computes[step - 1][1] for step in range(1, 6))


def test_the_exchange_waits_for_the_slowest_rank_and_takes_the_ring_formulas_time(spans, monkeypatch):
    """A bucket's exchange begins when the slowest rank has it, in order, and the sum is 2L(p-1)/p over the link."""
    late_ns = 3_000_000
    monkeypatch.setattr(emulated, "_latest_over_ranks", lambda times: [time_ns + late_ns for time_ns in times])
    run_steps(EmulatedAccelerator(DEVICE, 4, SHAPE), 2)

    comms = [(begin, end) for kind, begin, end, step in spans if kind == "comm" and step == 0]
    compute = next((begin, end) for kind, begin, end, step in spans if kind == "compute" and step == 0)
    exchange_ns = 2 * RESNET50_GRADIENT_BYTES * 3 / 4 / DEVICE.exchange_bytes_per_s * 1e9
    assert comms[0][0] > compute[0] + 4_000_000 // 3
    assert comms[-1][1] >= compute[1] + late_ns
    assert all(first[1] <= second[1] for first, second in itertools.pairwise(comms))
    assert comms[-1][1] - comms[0][0] >= exchange_ns


def test_the_next_step_begins_after_the_exchange(spans, monkeypatch):
    """Parameters are updated from exchanged gradients: step i + 1 computes only after step i was exchanged."""
    monkeypatch.setattr(emulated, "_latest_over_ranks", lambda times: [time_ns + 2_000_000 for time_ns in times])
    run_steps(EmulatedAccelerator(DEVICE, 2, SHAPE), 3)

    exchanged = {step: max(end for kind, _, end, of in spans if kind == "comm" and of == step) for step in range(3)}
    begins = {step: begin for kind, begin, _, step in spans if kind == "compute"}
    assert all(exchanged[step] <= begins[step + 1] for step in range(2))


def test_buckets_hold_all_gradients_and_the_last_is_ready_at_the_end():
    """Buckets are as DistributedDataParallel makes them: 1 MiB first, then 25 MiB, filled through the backward pass."""
    buckets = gradient_buckets(RESNET50_GRADIENT_BYTES)

    assert RESNET50_GRADIENT_BYTES == sum(bucket.num_bytes for bucket in buckets)
    assert 1 << 20 == buckets[0].num_bytes
    assert all(25 << 20 == bucket.num_bytes for bucket in buckets[1:-1])
    assert pytest.approx(1.0) == buckets[-1].ready_ratio
    assert all(1 / 3 < bucket.ready_ratio <= 1 + 1e-9 for bucket in buckets)


def test_what_goes_wrong_in_an_engine_is_raised_where_the_host_waits():
    """An engine that fails does not hang the job: whoever synchronises gets the error, and later operations still run."""

    def broken(_: int) -> int:
        raise RuntimeError("peer is gone")

    engine, failed, fine = Engine("test"), Completion(), Completion()
    engine.launch(broken, failed)
    engine.launch(lambda earliest: earliest + 1, fine)

    with pytest.raises(RuntimeError, match="peer is gone"):
        failed.end_ns()
    assert fine.end_ns() > 0
    engine.close()


def test_known_devices_have_the_rates_of_their_sources():
    """The rates are those of the published runs that devices.toml names."""
    assert {"p100": 194.0, "v100": 1385.0, "a100": 919.5, "h100": 1785.7} == {
        name: device.samples_per_s for name, device in emulated_devices().items()
    }
