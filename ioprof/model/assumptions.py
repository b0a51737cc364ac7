"""What a prediction rests on besides the recorded times, and changes that a run gives no ground
for.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ioprof.errors import CommandError
from ioprof.model.changes import Change
from ioprof.model.other_costs import Grounds
from ioprof.model.pipeline import OWN, Pipeline, Rank

LEAST_COLD_BATCHES: Final = 8
"""Batches read from storage, from which on it is known what that costs."""
_LEAST_OTHERS: Final = 0.1
"""Threads of other programs, from which on a prediction mentions them."""


@dataclass(frozen=True)
class Assumption:
    """One thing that a prediction takes for granted."""

    code: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The numbers and names that the words are about."""
    text: str = ""
    """In words, see `ioprof.report.texts.catalogue.answer.prediction_in_words`."""


def check_change(recorded: Pipeline, change: Change) -> None:
    """CommandError for a change of which the run does not show the costs."""
    keeps = change == Change(persistent_workers=True) and starts_anew(recorded)
    if not recorded.has_loader and not keeps and (option := _of_loader(change)):
        raise CommandError(f"{option}: no loader gave this job its batches")
    if recorded.takes_turns and (
        option := _of_loader(change) or ("--batch" if change.batch else None)
    ):
        raise CommandError(
            f"{option}: the loop takes batches of several loaders in turn, whose workers are"
            " replayed as those of one"
        )
    iterations = [each for rank in recorded.ranks for each in rank.iterations]
    num_cold = sum(int((each.tasks.read_bytes > 0).sum()) for each in iterations)
    if change.cache == "cold" and num_cold < LEAST_COLD_BATCHES:
        raise CommandError(
            f"--cache cold: only {num_cold} batches of this run were read from storage, too few to"
            " know what others would cost; record a run whose first epoch is cold"
        )
    if change.batch is not None and recorded.batch_size is None:
        raise CommandError(
            f"--batch {change.batch}: the run does not say how many samples its batches have"
        )
    if (
        (change.prefetch is not None or (change.persistent_workers and not keeps))
        and not any(each.workers for each in iterations)
        and not change.workers
    ):
        option = "--prefetch" if change.prefetch is not None else "--persistent-workers"
        raise CommandError(f"{option}: this run's loader has no workers; add --workers N")
    if change.cores is not None and not any(_is_sampled(rank) for rank in recorded.ranks):
        raise CommandError(
            f"--cores {change.cores:g}: the CPU time of the job's processes was not sampled long"
            " enough; record a longer run"
        )
    if (
        change.speeds.get("storage")
        and not any(each.tasks.reads.any() for each in iterations)
        and not _loop_reads(recorded)
    ):
        raise CommandError(
            "--storage: no read of this run needed storage, so faster storage changes nothing"
        )


def starts_anew(recorded: Pipeline) -> bool:
    """Whether workers that make batches to train on were started again, in place of others."""
    training = [
        each for rank in recorded.ranks for each in rank.iterations if not each.is_validation
    ]
    return any(rank.program.again_s.any() for rank in recorded.ranks) or sum(
        each.starts_workers for each in training
    ) > len(recorded.ranks)


def _of_loader(change: Change) -> str | None:
    """The option of a change that is one of the loader."""
    options = {
        "--workers": change.workers,
        "--prefetch": change.prefetch,
        "--persistent-workers": change.persistent_workers or None,
        "--cache": change.cache,
        "--like": change.like,
    }
    return next((option for option, value in options.items() if value is not None), None)


def _loop_reads(recorded: Pipeline) -> bool:
    """Whether a loop itself waited for storage."""
    return any(rank.program.after_s[:, OWN.index("storage")].any() for rank in recorded.ranks)


def loses_workers(recorded: Pipeline, change: Change) -> bool:
    """Whether the loop is to make batches that workers made."""
    return change.workers == 0 and any(
        each.workers and not each.is_validation
        for rank in recorded.ranks
        for each in rank.iterations
    )


def _is_sampled(rank: Rank) -> bool:
    return rank.worker_cpu.is_measured or rank.loop_cpu.is_measured


def assumptions(recorded: Pipeline, change: Change, found: Grounds) -> tuple[Assumption, ...]:
    """Those that matter for this run and change, and for what it rests on."""
    return (*_of_grounds(recorded, change, found), *_assumptions(recorded, change))


def _of_grounds(recorded: Pipeline, change: Change, found: Grounds) -> Iterator[Assumption]:
    if found.like is not None:
        like = found.like
        number = sum(len(each.tasks) for rank in like.ranks for each in rank.iterations)
        workers = max(each.workers for rank in like.ranks for each in rank.iterations)
        facts = {"run": change.like, "batches": number, "workers": workers}
        if like.batch_size != recorded.batch_size:
            facts |= {"batch_size": recorded.batch_size, "other_size": like.batch_size}
        yield Assumption("like", facts)
    if found.device is not None:
        yield Assumption("device", found.device.facts)


def _assumptions(recorded: Pipeline, change: Change) -> Iterator[Assumption]:
    iterations = [each for rank in recorded.ranks for each in rank.iterations]
    use = recorded.storage
    reads = any(each.tasks.reads.any() for each in iterations)
    if reads and use.is_rate_bound:
        yield Assumption("storage_rate", {"bytes_per_s": use.bytes_per_s})
    elif reads and use.is_alone and (change.workers or 0) > 1:
        yield Assumption("storage_alone")
    elif reads:
        yield Assumption("storage_latency")
    if not any(_is_sampled(rank) for rank in recorded.ranks):
        yield Assumption("cpu_not_sampled")
    elif (others := sum(recorded.others.values())) >= _LEAST_OTHERS:
        yield Assumption("others", {"threads": others})
    if change.workers and not all(each.workers for each in iterations):
        yield Assumption("no_start")
    if loses_workers(recorded, change):
        yield Assumption("collate_by_loop")
    if change.batch is not None:
        yield Assumption("batch")
    if change.cache == "warm" and not recorded.has_memory_reads:
        yield Assumption("free_memory")
    if change.cache == "cold":
        yield Assumption("cold_like")
    if change.ranks is not None and change.ranks > 1:
        yield Assumption("no_exchange" if len(recorded.ranks) == 1 else "ring")
