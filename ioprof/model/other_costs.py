"""Costs that a run does not show: those of batches of another layout or of images in another form,
and of another device.

Batches are taken from a second run, a short one that read a sample in the other form. Times of an
emulated device follow from its rates. A change of which neither says anything is refused, with what
to type.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ioprof.errors import CommandError
from ioprof.format.run_record import JobKind, RunRecord
from ioprof.model.changes import Change
from ioprof.model.pipeline import OWN, Iteration, Op, Pipeline, Program, Rank, Tasks
from ioprof.train.copies import COPIES
from ioprof.train.devices import EmulatedDevice, emulated_device
from ioprof.train.models import default_model, model_facts

LEAST_LIKE: Final = 8
"""Batches after the first one of each worker that the other run must have."""
_OVERLAPPED, _PINNED, _PAGEABLE = COPIES


@dataclass(frozen=True)
class DeviceCosts:
    """What copies and computation take, as factors of what they took, and how batches are
    copied.
    """

    compute: float = 1.0
    exchange: float = 1.0
    copy: float = 1.0
    mode: str = _OVERLAPPED
    """One of `COPIES`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the factors rest on; empty: copies take as long as they did."""


@dataclass(frozen=True)
class Grounds:
    """What a change rests on besides the recorded run."""

    like: Pipeline | None = None
    """A run whose batches were made as those of the changed job would be."""
    device: DeviceCosts | None = None


NONE: Final = Grounds()


def grounds(
    run: RunRecord,
    recorded: Pipeline,
    change: Change,
    like: tuple[RunRecord, Pipeline] | None,
) -> Grounds:
    """The grounds of a change; CommandError where there are none."""
    if like is None and (change.layout or change.image):
        option = f"--layout {change.layout}" if change.layout else f"--image {change.image}"
        raise CommandError(
            f"{option}: this run does not show what such batches cost; convert a sample, record a"
            " short run of it (ioprof run SAMPLE --steps 50 --out LIKE), and add --like LIKE"
        )
    if like is not None:
        _check_like(run, recorded, change, like)
    has_other_device = change.device is not None or change.copy is not None
    device = _device_costs(run, recorded, change) if has_other_device else None
    return Grounds(None if like is None else like[1], device)


# --------------------------------------------------------------------------- batches of another run


def _check_like(
    run: RunRecord, recorded: Pipeline, change: Change, like: tuple[RunRecord, Pipeline]
) -> None:
    other, pipeline = like
    stored = other.dataset
    for option, wanted, found in (
        ("layout", change.layout, stored.layout if stored else None),
        ("image", change.image, stored.image.transform if stored and stored.image else None),
    ):
        if wanted is not None and wanted != found:
            raise CommandError(
                f"--{option} {wanted}: the run of --like read"
                f" {found or 'something that is not known'}"
            )
    if (recorded.batch_size is None) != (pipeline.batch_size is None):
        raise CommandError(
            "--like: of one of the two runs it is not known how many samples its batches have"
        )
    sides = [
        model_facts(each.config.model).sample_shape[-1]
        for each in (run, other)
        if each.config.model
    ]
    if len(set(sides)) > 1:
        raise CommandError(
            f"--like: its samples are {sides[1]} wide, those of this run {sides[0]}; record it with"
            " the same --model"
        )
    number = min(len(_batches(rank)[1]) for rank in pipeline.ranks)
    if number < LEAST_LIKE:
        raise CommandError(
            f"--like: a rank has {number} batches there after the first one of each worker, and"
            f" {LEAST_LIKE} are needed; record more steps"
        )


def with_batches_of(pipeline: Pipeline, like: Pipeline) -> Pipeline:
    """The pipeline with batches that cost what those of another run cost, one after the other; the
    batch size stays.

    The ranks are paired, since batches of different ranks that are made at the same time are slow
    together.
    """
    ratio = (pipeline.batch_size or 1) / (like.batch_size or 1)
    ranks = [
        _with_batches_of(rank, like.ranks[number % len(like.ranks)], ratio)
        for number, rank in enumerate(pipeline.ranks)
    ]
    reads = any(one.tasks.reads.any() for rank in like.ranks for one in rank.iterations)
    return replace(
        pipeline,
        ranks=tuple(ranks),
        storage=like.storage if reads else pipeline.storage,
        memory_s_per_byte=like.memory_s_per_byte,
        has_memory_reads=like.has_memory_reads,
        warm_open_ratio=like.warm_open_ratio,
    )


def _with_batches_of(rank: Rank, like: Rank, ratio: float) -> Rank:
    first, others = _batches(like)
    first_s = np.concatenate([each.first_s for each in like.iterations])
    iterations, num_first, num_others = list[Iteration](), 0, 0
    for each in rank.iterations:
        if each.is_validation:
            iterations.append(each)
            continue
        of_first = num_first + np.arange(_num_first(each))
        of_others = num_others + np.arange(len(each.tasks) - _num_first(each))
        num_first, num_others = num_first + len(of_first), num_others + len(of_others)
        made = _joined(
            [first.at(of_first % max(1, len(first))), others.at(of_others % len(others))]
        )
        names = ("stages_s", "reads", "read_bytes", "open_s", "reads_cpu_s", "reads_delay_s")
        costs = {name: ratio * getattr(made, name) for name in names}
        starting = each.workers if len(first_s) and each.starts_workers else 0
        more_s = first_s[np.arange(starting) % max(1, len(first_s))]
        iterations.append(replace(each, tasks=replace(each.tasks, **costs), first_s=more_s))
    return replace(
        rank,
        iterations=tuple(iterations),
        program=_with_loop_of(rank.program, like.program),
        worker_cpu=like.worker_cpu if like.worker_cpu.is_measured else rank.worker_cpu,
        loop_cpu=like.loop_cpu if like.loop_cpu.is_measured else rank.loop_cpu,
    )


def _with_loop_of(program: Program, like: Program) -> Program:
    """The loop's own Python takes as long as there: it competes with the workers for caches and
    memory, and they do other work.
    """
    takes, others = (np.flatnonzero([op is Op.TAKE for op in each.ops]) for each in (program, like))
    host, after = OWN.index("host"), program.after_s.copy()
    after[takes, host] = like.after_s[others[np.arange(len(takes)) % len(others)], host]
    return replace(
        program,
        after_s=after,
        arrive_s=program.arrive_s * after.sum(1) / np.maximum(program.after_s.sum(1), 1e-12),
    )


def _batches(like: Rank) -> tuple[Tasks, Tasks]:
    """The first batch of each worker, which pays for what is done once, and all others."""
    first, others = list[Tasks](), list[Tasks]()
    for each in (one for one in like.iterations if not one.is_validation):
        rows = np.arange(len(each.tasks))
        first.append(each.tasks.at(rows[: _num_first(each)]))
        others.append(each.tasks.at(rows[_num_first(each) :]))
    found = _joined(others)
    return (_joined(first) if any(map(len, first)) else found), found


def _num_first(each: Iteration) -> int:
    """Batches that are the first ones of the workers of an iteration."""
    return min(len(each.tasks), each.workers) if each.starts_workers else 0


def _joined(parts: list[Tasks]) -> Tasks:
    return Tasks(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])}
    )


# ----------------------------------------------------------------------------------- another device


def _device_costs(run: RunRecord, recorded: Pipeline, change: Change) -> DeviceCosts:
    before, after = _devices(run, change)
    was = run.config.copy or recorded.copy or _OVERLAPPED
    mode = change.copy or was
    if change.copy is not None and not recorded.copy_s:
        raise CommandError(
            f"--copy {change.copy}: no copy to the device was recorded, so it is not known what one"
            " takes"
        )
    if before is None or after is None:
        if _PAGEABLE in (mode, was) and mode != was:
            raise CommandError(
                f"--copy {mode}: how fast this device copies"
                f" {'from' if mode == _PAGEABLE else 'but from'} pageable memory was not measured;"
                " record a short run with it: ioprof run DATASET --device"
                f" {run.device_name or 'cuda'} --copy {mode}"
            )
        return DeviceCosts(mode=mode)
    rates = [
        device.pageable_bytes_per_s if how == _PAGEABLE else device.h2d_bytes_per_s
        for device, how in ((before, was), (after, mode))
    ]
    compute = exchange = 1.0
    if change.device is not None:
        # the run's own rate: the table may have had another one then
        compute = (run.device_samples_per_s or before.samples_per_s) / after.samples_per_s
        if recorded.ranks[1:]:
            exchange = before.links.bytes_per_s / after.links.bytes_per_s
    return DeviceCosts(
        compute=compute,
        exchange=exchange,
        copy=rates[0] / rates[1],
        mode=mode,
        facts={
            "device": after.name,
            "samples_per_s": after.samples_per_s,
            "basis": after.rate.basis,
            "source": after.rate.source,
            "copied_bytes_per_s": rates[1],
        },
    )


def _devices(run: RunRecord, change: Change) -> tuple[EmulatedDevice | None, EmulatedDevice | None]:
    """The run's device and the other one, if they are emulated."""
    name, model = run.config.device or "", run.config.model
    if model is None and run.job_kind is JobKind.BUILT_IN and name.startswith("emulated:"):
        model = default_model(name)  # of a run from before there was a choice
    if change.device is not None and (not name.startswith("emulated:") or model is None):
        raise CommandError(
            f"--device {change.device}: the rates of emulated devices are known, and this run"
            f" computed on {run.device_name or 'a device that is not known'}; give --compute 2x for"
            " one that is twice as fast"
        )
    if not name.startswith("emulated:") or model is None:
        return None, None
    other = emulated_device(change.device or name, model_facts(model))
    if other is None:
        raise CommandError(
            f"--device {change.device}: only emulated devices have rates; give --compute 2x for one"
            " twice as fast"
        )
    return emulated_device(name, model_facts(model)), other


def with_device(pipeline: Pipeline, costs: DeviceCosts) -> Pipeline:
    """The pipeline on that device, to which batches are copied that way."""
    copy_s = costs.copy * pipeline.copy_s
    compute, h2d, exchange = (OWN.index(cause) for cause in ("compute", "h2d", "exchange"))

    def of_rank(rank: Rank) -> Rank:
        program = rank.program
        after = program.after_s.copy()
        computes = after[:, compute] > 0
        after[:, compute] *= costs.compute
        after[:, exchange] *= costs.exchange
        exposed = (
            np.maximum(copy_s - after[:, compute], 0.0) if costs.mode == _OVERLAPPED else copy_s
        )
        after[:, h2d] = np.where(computes, exposed, 0.0)
        ratio = after.sum(1) / np.maximum(program.after_s.sum(1), 1e-12)
        changed = replace(
            program,
            device_s=program.device_s * costs.compute,
            after_s=after,
            arrive_s=program.arrive_s * ratio,
            transfer_s=program.transfer_s * costs.exchange,
            optimizer_s=program.optimizer_s * costs.compute,
        )
        waits_for_copy = rank.depth is not None and costs.mode == _PAGEABLE
        return replace(
            rank, program=changed, depth=min(rank.depth or 0, 1) if waits_for_copy else rank.depth
        )

    return replace(
        pipeline, ranks=tuple(map(of_rank, pipeline.ranks)), copy_s=copy_s, copy=costs.mode
    )
