"""How many threads of other programs competed with the job for its cores.

The run-queue delay of the job's processes says by how much waiting for a core stretched their work.
A part of that is their own competition, which the replay has. The rest is as many other threads as
it takes for the replay to have the measured delay, but not more than the CPU time that other
programs used can be of. Then threads may have shared a core while another one was idle
(`engine.Resource.scattered`), as far as that explains the delay, and if the replay comes closer to
the run with it. Delay that nothing of this explains is the time until a thread that was woken runs,
which processes that sleep often have on an idle machine too: `CpuUse.wake_ratio`. Without the waits
it would not be there. Of the delay after reads, which is a part of their time, that which is not
explained stays in it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from ioprof.model.changed import filled, shortened
from ioprof.model.engine import Simulation
from ioprof.model.pace import measured, replayed
from ioprof.model.pipeline import STAGES, CpuUse, Iteration, Pipeline, Rank
from ioprof.model.plan import plan

_ROUNDS: Final = 7
_MOST_THREADS: Final = 16.0
_MOST_ACTIONS: Final = 300
MOST_COMPARED: Final = 2_000
"""Actions of each rank by which ways to replay a run are compared."""
_GOOD_ERROR: Final = 0.05
_MOST_ERROR: Final = 0.1
"""Of the replay with shared cores, up to which they are kept: it cancels in a ratio of replays.
That nobody waits for a core does not: where a loop waited for more than a tenth of its time, half
of that is as good as `_GOOD_ERROR`, up to `_MOST_ERROR`, at which a replay is refused."""
_LEAST_DELAY: Final = 1.01
"""Dilation from which on there is a delay to explain."""


def with_others(recorded: Pipeline, used_cores: Mapping[str, float]) -> Pipeline:
    """The pipeline with the other threads of each host.

    `used_cores`: by host, the cores that other programs used on average; a host whose value is not
    known is not there.
    """
    found = spread = recorded
    for host in dict.fromkeys(rank.host for rank in recorded.ranks):
        wanted = _measured([rank for rank in recorded.ranks if rank.host == host])
        most = _MOST_THREADS
        # they compete as long as the job does, without its wake-ups
        if (used := used_cores.get(host)) is not None:
            most = used * min(wanted, _simulated(recorded, host, used)) if used else 0.0
        if wanted <= _LEAST_DELAY:  # there were cores for all; with a change there may not be
            if used:
                found, spread = _with_threads(found, host, most), _with_threads(spread, host, most)
            continue
        threads = _bisected(partial(_simulated, recorded, host), _MOST_THREADS, wanted)
        found, spread = (_with_threads(each, host, min(threads, most)) for each in (found, spread))
        if threads > most:
            scattered = _scattered(recorded, host, most, wanted)
            spread = replace(spread, scattered={**spread.scattered, host: scattered})
            found, spread = (
                _with_delay(
                    each,
                    host,
                    max(0.0, min(1.0, (_simulated(recorded, host, most, part) - 1) / (wanted - 1))),
                )
                for each, part in ((found, 0.0), (spread, scattered))
            )
    return found if found is recorded else _better(found, spread)


def _with_threads(recorded: Pipeline, host: str, threads: float) -> Pipeline:
    return replace(recorded, others={**recorded.others, host: threads})


def _scattered(recorded: Pipeline, host: str, threads: float, wanted: float) -> float:
    """How far the job's threads were scattered over the cores, beside so many threads of other
    programs.
    """
    if recorded.cores.get(host, 1.0) <= 1:
        return 0.0
    return _bisected(lambda part: _simulated(recorded, host, threads, part), 1.0, wanted)


def _with_delay(recorded: Pipeline, host: str, part: float) -> Pipeline:
    """The pipeline with this part of the delay of a host's processes."""

    def less(use: CpuUse) -> CpuUse:
        dilation = 1 + part * (use.dilation - 1)
        return replace(
            use,
            dilation=dilation,
            wake_ratio=1 - dilation / use.dilation,
            reads_delay_ratio=part * use.reads_delay_ratio,
        )

    def waiting(each: Iteration) -> Iteration:
        stages, delay_s = each.tasks.stages_s.copy(), each.tasks.reads_delay_s
        stages[:, STAGES.index("storage")] += (1 - part) * delay_s
        return replace(
            each, tasks=replace(each.tasks, stages_s=stages, reads_delay_s=part * delay_s)
        )

    def of_rank(rank: Rank) -> Rank:
        iterations = tuple(map(waiting, rank.iterations))
        return replace(
            rank,
            iterations=iterations,
            loop_cpu=less(rank.loop_cpu),
            worker_cpu=less(rank.worker_cpu),
        )

    return replace(
        recorded,
        ranks=tuple(of_rank(rank) if rank.host == host else rank for rank in recorded.ranks),
    )


def _better(shared: Pipeline, spread: Pipeline) -> Pipeline:
    """The pipeline with cores that are shared, with threads `spread` over them if that reproduces
    the run better, or with the times as measured if only those reproduce it.

    The delays are known per process, not per stage: where a few long ones count, such as those of a
    thread beside the loop's own, shared cores spread them over work that was not delayed.
    """
    short = shortened(shared, MOST_COMPARED)
    step_s = measured(short).step_s

    def error(each: Pipeline) -> float:
        return abs(replayed(each).step_s / step_s - 1)

    least = error(short)
    if (
        any(spread.scattered.values())
        and (other := error(shortened(spread, MOST_COMPARED))) < least
    ):
        shared, short, least = spread, shortened(spread, MOST_COMPARED), other
    dilation = max(rank.loop_cpu.dilation for rank in shared.ranks)
    good = max(_GOOD_ERROR, min(_MOST_ERROR, (dilation - 1) / 2))
    if least <= good or least <= error(replace(short, shares_cores=False)):
        return shared
    return replace(shared, shares_cores=False)


def _measured(ranks: list[Rank]) -> float:
    """The dilation of all processes of a host together."""
    uses = [use for rank in ranks for use in (rank.loop_cpu, rank.worker_cpu)]
    cpu_s = sum(use.cpu_s for use in uses)
    return sum(use.cpu_s * use.whole_dilation for use in uses) / cpu_s if cpu_s else 1.0


def _bisected(dilation: Callable[[float], float], most: float, wanted: float) -> float:
    """The value up to `most` at which a dilation that rises with it is what is wanted."""
    low, high = 0.0, most
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        low, high = (middle, high) if dilation(middle) < wanted else (low, middle)
    return (low + high) / 2


def _simulated(recorded: Pipeline, host: str, threads: float, scattered: float = 0.0) -> float:
    """The dilation in a replay with so many threads of other programs, and threads that are so far
    scattered over the cores.
    """
    short = replace(
        shortened(recorded, _MOST_ACTIONS), others={host: threads}, scattered={host: scattered}
    )
    simulation = Simulation(plan(filled(short)))
    simulation.run()
    return simulation.dilation(
        list(dict.fromkeys(rank.host for rank in recorded.ranks)).index(host)
    )
