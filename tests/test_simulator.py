"""The simulator of jobs on systems: laws of its engine, of its caches and exchanges, its files, and
a real run beside its simulation."""

import json
import math
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ioprof
from ioprof.errors import CommandError
from ioprof.model.simulator.cache import hit_ratio
from ioprof.model.simulator.engine import ALL, NODE, Load, Shared, Simulated, run
from ioprof.model.simulator.exchange_time import by_formula, exchange_s
from ioprof.model.simulator.jobs import (
    MEASURED,
    NOTHING,
    described,
    job_names,
    with_workers,
    workload_devices,
)
from ioprof.model.simulator.simulation import (
    TURNS,
    Setting,
    contention,
    held,
    setting,
    simulate,
)
from ioprof.model.simulator.sizing import size
from ioprof.model.simulator.system import FIELDS, is_cost, load_system, system_names
from ioprof.model.simulator.validation import VALIDATES, comparisons, summed
from ioprof.model.simulator.values import parse_value
from ioprof.train.accelerators.exchange import SCHEMES, Exchange
from ioprof.train.devices import Links

LINKS = Links(1e9, 1e-5, 3e8, 5e-5)


def load(
    ranks: int = 4,
    *,
    per_node: int = 2,
    workers: int = 2,
    prefetch: int = 2,
    storage: float = 1e9,
    cores: float = 8.0,
    batch_bytes: float = 1e6,
    size_cv: float = 0.2,
    alone_s: float = 0.01,
    compute_s: float = 0.02,
) -> Load:
    return Load(
        ranks=ranks,
        ranks_per_node=per_node,
        workers=workers,
        prefetch=prefetch,
        shared={
            "storage": Shared(storage, ALL, batch_bytes, True),
            "cores": Shared(cores, NODE, alone_s, False),
        },
        alone_s=alone_s,
        size_cv=size_cv,
        compute_s=np.array([compute_s]),
        overhead_s=np.array([0.0]),
        after_s=0.0,
    )


def steady_s(found: Simulated) -> float:
    return float(found.steps_s[len(found.end_s) // 2 :].mean())


# ------------------------------------------------------------------------------------ the engine


@settings(max_examples=25)
@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 4),
    st.floats(1e6, 1e9),
    st.floats(1.0, 10.0),
    st.integers(0, 5),
)
def test_faster_storage_is_never_slower(
    ranks: int, per_node: int, workers: int, rate: float, factor: float, seed: int
) -> None:
    """At every step, whatever the ranks, nodes and workers."""
    slow, fast = (
        run(load(ranks, per_node=per_node, workers=workers, storage=each), 30, seed)
        for each in (rate, rate * factor)
    )
    assert (fast.end_s <= slow.end_s + 1e-9).all()


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 3), st.floats(0.001, 0.1), st.floats(0.001, 0.1))
def test_one_rank_takes_what_the_closed_form_says(
    workers: int, prefetch: int, alone_s: float, compute_s: float
) -> None:
    """With nobody else, a step is the computation, or a worker's batch divided by the workers."""
    one = load(
        1,
        workers=workers,
        prefetch=prefetch,
        alone_s=alone_s,
        compute_s=compute_s,
        size_cv=0.0,
        storage=1e15,
        cores=1e9,
    )
    found = run(one, 40 * workers)
    expected = max(compute_s, alone_s / workers)
    assert expected == pytest.approx(steady_s(found), rel=0.05)
    itself = run(replace(one, workers=0), 20)
    assert [alone_s + compute_s] * 20 == pytest.approx(itself.steps_s.tolist())


@settings(max_examples=15)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(0, 3))
def test_what_bounds_all_ranks_is_served_at_its_rate(ranks: int, per_node: int, seed: int) -> None:
    """Storage that is too slow delivers all that was asked for, at its rate, and no more."""
    bound = load(ranks, per_node=per_node, storage=1e7, compute_s=1e-4, alone_s=1e-5)
    found = run(bound, 200, seed)
    assert found.busy_s["storage"] == pytest.approx(found.asked["storage"] / 1e7)
    assert found.busy_s["storage"] <= found.end_s[-1] + 1e-9
    assert found.busy_s["storage"] == pytest.approx(found.end_s[-1], rel=0.03)


@settings(max_examples=15)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 4), st.integers(0, 5))
def test_the_parts_of_a_step_sum_to_it(ranks: int, per_node: int, workers: int, seed: int) -> None:
    """Waiting for data, computing, waiting for the slowest rank, and the rest."""
    found = run(load(ranks, per_node=per_node, workers=workers, storage=3e7), 30, seed)
    parts = found.wait_s + found.compute_s + found.straggler_s + found.other_s
    assert found.steps_s.tolist() == pytest.approx(parts.tolist())


def test_the_same_seed_gives_the_same_steps_and_another_one_others() -> None:
    """Nothing else is drawn from."""
    one, again, other = (run(load(storage=3e7), 50, seed) for seed in (1, 1, 2))
    assert one.end_s.tolist() == again.end_s.tolist()
    assert one.end_s.tolist() != other.end_s.tolist()


def test_twice_the_storage_and_the_nodes_serve_twice_the_ranks() -> None:
    """Without differences between batches, a step takes as long: the load of each rank is the
    same."""
    small = load(8, storage=2e7, size_cv=0.0)
    large = load(16, storage=4e7, size_cv=0.0)
    assert steady_s(run(small, 100)) == pytest.approx(steady_s(run(large, 100)), rel=1e-6)


def test_at_the_start_all_workers_share_the_storage() -> None:
    """The first batch is there when the first ones of all workers are: their bytes over the rate.
    So more workers wait longer at the start of an epoch."""
    for workers in (1, 4, 16):
        found = run(load(8, workers=workers, size_cv=0.0, storage=1e7), 20)
        assert 8 * workers * 1e6 / 1e7 + 0.02 == pytest.approx(found.end_s[0])


# ------------------------------------------------------------------------------------- the caches


def lru_hits(nodes: int, ratio: float, epochs: int, records: int = 2000) -> list[float]:
    """What a cache of the records that were used last does, record by record, in each epoch."""
    random = np.random.default_rng(0)
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(nodes)]
    found = []
    for _ in range(epochs):
        hits = 0
        for place, record in enumerate(random.permutation(records).tolist()):
            cache = caches[place % nodes]
            hits += record in cache
            cache[record] = None
            cache.move_to_end(record)
            if len(cache) > ratio * records:
                cache.popitem(last=False)
        found.append(hits / records)
    return found


@pytest.mark.parametrize(
    ("nodes", "ratio"), [(1, 0.3), (1, 0.9), (4, 0.1), (4, 0.5), (16, 0.05), (16, 0.9), (4, 1.5)]
)
def test_hits_of_each_epoch_are_those_of_a_cache(nodes: int, ratio: float) -> None:
    """The formula is compared with the cache itself: where any node may read a record, the caches
    fill over many epochs."""
    expected = lru_hits(nodes, ratio, 12)
    found = [hit_ratio(ratio, nodes, before) for before in range(12)]
    assert expected == pytest.approx(found, abs=0.03)


@given(st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.integers(1, 600), st.integers(0, 90))
def test_more_memory_never_hits_less(ratio: float, more: float, nodes: int, before: int) -> None:
    """And hits are a share of the reads."""
    few, many = hit_ratio(ratio, nodes, before), hit_ratio(ratio + more, nodes, before)
    assert 0.0 <= few <= many + 1e-9
    assert many <= 1.0 + 1e-9


# ----------------------------------------------------------------------------------- the exchange


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("ranks", "per_node"), [(2, 1), (4, 4), (8, 4), (8, 1), (16, 4), (32, 8)])
def test_the_formula_of_an_exchange_is_the_sum_of_its_messages(
    scheme: str, ranks: int, per_node: int
) -> None:
    """Which small jobs list one by one."""
    listed = Exchange(scheme, ranks, per_node, LINKS).seconds(10**8)
    assert listed == pytest.approx(by_formula(scheme, ranks, per_node, LINKS, 1e8))


def test_an_exchange_of_one_rank_takes_no_time_and_an_unknown_scheme_is_refused() -> None:
    """By its name."""
    assert 0.0 == exchange_s("ring", 1, 1, LINKS, 1e8)
    with pytest.raises(CommandError, match="--exchange star: unknown"):
        exchange_s("star", 2, 1, LINKS, 1e8)


# ------------------------------------------------------------------------------ systems and jobs


@pytest.mark.parametrize("name", system_names())
def test_each_value_of_a_system_has_a_source_or_is_assumed_with_a_range(name: str) -> None:
    """Nothing stands in a file without the one or the other, and its ends lie around it."""
    system = load_system(name)
    assert system.about
    worse, usual, better = (system.at(end) for end in ("worse", "value", "better"))
    for field, key in FIELDS.items():
        if key not in system.values:
            assert key in system.unknown
            continue
        assert system.values[key].source
        sign = -1 if is_cost(key) else 1
        ends = [sign * getattr(each, field) for each in (worse, usual, better)]
        assert sorted(ends) == ends


@pytest.mark.parametrize(
    ("given_value", "named"),
    [
        (1.0, "give { value"),
        ({"value": 1.0}, "with one of source"),
        ({"value": 1.0, "assumed": "so"}, "needs a range"),
        ({"value": 1.0, "low": 2.0, "high": 3.0, "source": "x"}, "does not lie in its range"),
    ],
)
def test_a_value_without_source_or_range_is_refused(given_value: object, named: str) -> None:
    """With what to write."""
    with pytest.raises(CommandError, match=named):
        parse_value("mine: storage.bytes_per_s", given_value)


def test_a_system_of_ones_own_is_a_file(tmp_path: Path) -> None:
    """What it lacks is named; what it has decides."""
    path = tmp_path / "mine.toml"
    path.write_text("about = 'mine'\n")
    with pytest.raises(CommandError, match=r"it lacks nodes\.accelerators"):
        load_system(str(path))
    given_values = {"accelerators": 4, "cores": 8, "memory_bytes": 1e9}
    lines = ["about = 'mine'", "device = 'a100'", "[nodes]"]
    lines += [f"{key} = {{ value = {each}, source = 'me' }}" for key, each in given_values.items()]
    lines += ["[storage]", "bytes_per_s = { value = 1e9, measured = 'fio' }"]
    path.write_text("\n".join(lines))
    found = ioprof.simulate(path, "resnet50", ranks=4, layout="rgb256", steps=500)
    assert "storage" == found.first.bound_by
    # 196,608 bytes per sample through 1 GB/s, without the wait at the start
    assert 32 * 4 * 196_608 / 1e9 == pytest.approx(found.first.step_s.value, rel=0.05)


@pytest.mark.parametrize("job", job_names())
def test_each_job_runs_on_a_system_within_its_range(job: str) -> None:
    """The value lies between the ends, and the same arguments give the same answer."""
    published = workload_devices(job)
    device = published[-1] if published else "h100"
    found, again = (
        ioprof.simulate("dgx-h100-pod", job, ranks=16, device=device, steps=20) for _ in range(2)
    )
    assert found == again
    for each in (found.first, found.later):
        for estimate in (each.seconds, each.use, each.samples_per_s, each.step_s):
            assert estimate.low <= estimate.value <= estimate.high
    told = json.loads(found.to_json())
    assert ("predicted", True) == (told["basis"], bool(told["validation"]))


def test_what_is_done_once_is_in_the_first_epoch_and_in_staging() -> None:
    """In no later epoch; one part as long on any number of nodes, one longer with each rank."""
    system = load_system("mlperf-hpc:perlmutter")
    job = described("hpc-cosmoflow", "a100", samples=4096)
    without = replace(job, once_s=NOTHING, once_per_rank_s=NOTHING, staging_start_s=NOTHING)
    for nodes in (4, 16):
        where = setting(system, 4 * nodes, reads_from="staged")
        more, less = (simulate(system, each, where, steps=20) for each in (job, without))
        assert job.once_s.value + 4 * nodes * job.once_per_rank_s.value == pytest.approx(
            more.first.seconds.value - less.first.seconds.value
        )
        assert more.later == less.later
        assert more.staging_s is not None
        assert less.staging_s is not None
        assert job.staging_start_s.value == pytest.approx(
            more.staging_s.value - less.staging_s.value
        )


def test_data_in_memory_are_not_read_again_and_staged_data_not_from_the_shared_storage() -> None:
    """Where a later epoch reads follows from memory and disks."""
    small = ioprof.simulate("dgx-h100-pod", "resnet50", ranks=8, steps=20)
    assert 0.0 == small.first.hit_ratio
    assert small.later.hit_ratio == pytest.approx(1.0)
    # the second of 32 nodes finds what it read itself in the first epoch
    many = ioprof.simulate("dgx-h100-pod", "resnet50", ranks=256, steps=20)
    assert 1 / 32 == pytest.approx(many.later.hit_ratio)
    large = ioprof.simulate("dgx-h100-pod", "resnet50", ranks=8, steps=20, dataset="100x")
    assert large.later.hit_ratio < 0.05
    staged = ioprof.simulate(
        "dgx-h100-pod", "resnet50", ranks=8, steps=20, dataset="100x", stage=True
    )
    assert staged.staging_s is not None
    assert "storage" not in staged.first.busy


@pytest.mark.parametrize("device", ["p100", "h200", "b200-derived"])
def test_what_a_step_is_made_of_sums_to_it(device: str) -> None:
    """Computation, and what it does not hide; the copies take no less than what is seen of them."""
    found = ioprof.simulate("tsubame3", "alexnet", ranks=4, device=device, layout="lmdb", steps=20)
    for epoch in (found.first, found.later):
        parts = found.beside_compute(epoch)
        assert epoch.step_s.value == pytest.approx(epoch.compute_s + sum(parts.values()))
        assert all(seconds >= 0 for seconds in parts.values())
        assert parts["copies"] <= found.whole_s(epoch)["copies"]


def test_one_file_has_the_servers_that_it_lies_on() -> None:
    """A database on one of 12 servers gets a twelfth of what many files get."""
    system = load_system("tsubame3")
    busy = {
        layout: simulate(
            system,
            described("resnet50", "p100", layout=layout),
            setting(system, 128),
            steps=30,
        ).first.busy["storage"]
        for layout in ("files", "lmdb")
    }
    assert 12 == pytest.approx(busy["lmdb"] / busy["files"], rel=0.2)


def test_what_a_system_does_not_have_is_refused() -> None:
    """With the option and the number."""
    system = load_system("piz-daint")
    with pytest.raises(CommandError, match="--stage: the nodes of piz-daint have no disk"):
        setting(system, 4, reads_from="staged")
    with pytest.raises(CommandError, match="--ranks 9000"):
        setting(system, 9000)
    with pytest.raises(CommandError, match="--link tcp"):
        setting(system, 4, link="tcp")
    with pytest.raises(CommandError, match="no such system; choose one of abci"):
        load_system("tsubame9")
    with pytest.raises(CommandError, match="unknown; choose one of mlperf-unet3d"):
        described("resnet5", "h100")


def test_the_accelerators_that_are_held_are_those_that_storage_feeds() -> None:
    """The storage's rate over what one accelerator reads at that use."""
    system = load_system("mlperf-storage:iei-400g")
    found = held(system, described("mlperf-unet3d", "h100"), nodes=1)
    one_bytes_per_s = 7 * 146_600_628 / 0.323
    assert math.floor(44.6e9 / (0.9 * one_bytes_per_s)) == pytest.approx(found, abs=1)


def test_a_size_is_what_the_accelerators_take() -> None:
    """Bytes of a sample times samples per second; twice the ranks need twice of all."""
    job = described("resnet50", "h100", batch=256)
    one, two = size(job, 512), size(job, 1024)
    need = one.needs[0]
    assert 512 * 7011.1 * 114_660.07 == pytest.approx(need.bytes_per_s.value)
    assert 512 * 7011.1 == pytest.approx(need.opens_per_s.value)
    assert 2 * need.bytes_per_s.value == pytest.approx(two.needs[0].bytes_per_s.value)
    assert need.bytes_per_s.low <= need.bytes_per_s.value <= need.bytes_per_s.high


@pytest.mark.parametrize("job", [job for job in job_names() if workload_devices(job)])
def test_a_workload_is_sized_as_it_was_published(job: str) -> None:
    """In the one layout that it has, and beside other devices only where those have a time."""
    found = ioprof.size(job, ranks=8)
    assert ["as published"] == [need.layout for need in found.needs]
    assert {each.device for each in found.next_devices} <= {*workload_devices(job)}
    device = "h100" if "h100" in workload_devices(job) else workload_devices(job)[-1]
    made = described(job, device)
    per_s = 8 * made.batch / float(made.compute_s.mean())
    assert per_s * made.sample_bytes == pytest.approx(found.needs[0].bytes_per_s.value)


@settings(max_examples=25)
@given(st.integers(1, 64), st.integers(0, 16), st.integers(1, 128))
def test_ranks_of_a_node_share_its_cores_in_what_a_step_takes_on_the_host(
    ranks: int, workers: int, cores: int
) -> None:
    """Where threads share a batch, all cores work for all ranks; else a rank has a core of its own
    until there are more processes than cores. A recorded job has had its own competition."""
    found = Setting(ranks, 1, ranks)
    torch = with_workers(described("mlperf-unet3d", "h100"), workers, None)
    tensorflow = described("mlperf-resnet50", "h100")
    more = max(0.0, ranks * (workers + 1) / cores - 1)
    assert 1 + TURNS * more == contention(torch, found, cores)
    assert ranks / cores == pytest.approx(contention(tensorflow, found, cores))
    # a batch of one sample has one thread
    assert contention(described("mlperf-cosmoflow", "h100"), found, cores) == max(
        1.0, ranks / cores
    )
    assert 1.0 == contention(replace(torch, basis=MEASURED), found, cores)


def test_the_comparisons_beside_each_answer_say_what_was_fitted() -> None:
    """Half of the published rows were not, and each of those that is missed has its reason."""
    rows = comparisons()
    validating = [each for each in rows if each.role == VALIDATES]
    assert len(validating) >= len(rows) / 2
    assert all(each.why for each in validating if abs(each.error) > each.bound)
    assert sum(each.count for each in summed()) == len(validating)
