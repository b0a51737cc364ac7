"""What the built-in job trained, how its device was made up, and what it learned, as lines of a
report.
"""

from collections.abc import Iterator
from typing import Final

from ioprof.format.run_record import ExchangeRate, LearningRecord, RunRecord
from ioprof.report.texts.catalogue.filling import tell
from ioprof.report.texts.statements import Statement

_EXCHANGE: Final = (
    "{found.gradient_bytes:amount} of gradients over {found.ranks:count} ranks in"
    " {found.seconds:duration} of a median step[{least:if}, {found.alone_s:duration} of it after"
    " all gradients were computed]: [{least:if}at least ]{found.bytes_per_s:amount}/s of bus"
    " bandwidth (2L(p-1)/p / t)[; an all-reduce of {near.bytes:amount} alone had"
    " {near.bytes_per_s:amount}/s ({ratio:percent} reached[{least:if}, or more])]"
)
_NETWORK: Final = (
    "{network.latency_s:duration} one way; a message of {largest.bytes:amount} at"
    " {largest.bytes_per_s:amount}/s, before the first step"
)
_MODEL: Final = (
    "{device.model:clean40}[{divided:if}; parameters divided among {config.ranks:count} ranks"
    " (FSDP)][{config.stages:if}; {config.stages:count} stages in a pipeline, one per rank][;"
    " {device.samples_per_s:rate} samples/s per device, {device.rate_basis:clean20}[:"
    " {device.rate_source:clean150}]][; {copies:clean20} copies[{device.h2d_bytes_per_s:if} at"
    " {device.h2d_bytes_per_s:amount}/s]][; {device.gradient_bytes:amount} of gradients by"
    " {exchange:clean20} in [{nodes} nodes of up to {per_node} ranks|one node]]"
)
_ACCURACY: Final = (
    "accuracy after [epoch {each.epoch:g}|step {each.step:count}] ({each.seconds:duration}):"
    " [{each.accuracy:percent}|not known, since an emulated device learns nothing]"
)
_LEARNING: Final = (
    "[{learning.first_step:if}; went on after step {learning.first_step:count}][; loss of the first"
    " step {first:.4g}, of the last {last:.4g}][; {tested}][; {checkpoints:count} checkpoints, the"
    " last after step {saved:count}]"
)


def training_statements(run: RunRecord) -> tuple[Statement, ...]:
    """All lines of this module, for a run; none for a job that is not the built-in one."""
    return (*_model(run), *_learning(run.learning))


def network_statements(run: RunRecord, rate_of_job: ExchangeRate | None) -> Iterator[Statement]:
    """How fast gradients were exchanged, beside what the network delivered before the first step,
    where that was measured.
    """
    if (found := rate_of_job) is not None and found.seconds:
        is_least = found.alone_s is not None and found.alone_s < found.seconds
        reduces = run.network.all_reduces if run.network else ()
        known = [each for each in reduces if each.bytes_per_s and each.bytes]
        wanted = found.gradient_bytes or 0
        near = min(known, key=lambda each: abs((each.bytes or 0) - wanted), default=None)
        rate_of_near = near.bytes_per_s if near and found.bytes_per_s else None
        text = tell(
            _EXCHANGE,
            found=found,
            least=is_least,
            near=near if rate_of_near else None,
            ratio=(found.bytes_per_s or 0.0) / rate_of_near if rate_of_near else None,
        )
        yield Statement("exchange", text, run.device_basis)
    if run.network is not None and run.network.messages:
        text = tell(_NETWORK, network=run.network, largest=run.network.messages[-1])
        yield Statement("network", text, "measured")


def _model(run: RunRecord) -> Iterator[Statement]:
    device, config = run.device, run.config
    if device is None or device.model is None:
        return
    ranks = config.ranks or 1
    per_node = config.ranks_per_node or ranks
    nodes = -(-ranks // per_node)
    text = tell(
        _MODEL,
        device=device,
        config=config,
        divided=config.parallel == "fsdp" and ranks > 1,
        copies=config.copy if config.device != "cpu" else None,
        exchange=(config.exchange or "ring") if device.gradient_bytes and ranks > 1 else None,
        nodes=nodes if nodes > 1 else None,
        per_node=per_node,
    )
    yield Statement("model", text, run.device_basis if device.rate_basis is not None else None)


def _learning(learning: LearningRecord | None) -> Iterator[Statement]:
    if learning is None:
        return
    tested = [
        tell(_ACCURACY, each=each)
        for each in (*learning.evaluations[:1], *learning.evaluations[1:][-1:])
    ]
    text = tell(
        _LEARNING,
        learning=learning,
        first=learning.losses[0] if learning.losses else None,
        last=learning.losses[-1] if learning.losses else None,
        tested="; ".join(tested),
        checkpoints=len(learning.checkpoints) or None,
        saved=learning.checkpoints[-1] if learning.checkpoints else None,
    )
    yield Statement("learning", text.removeprefix("; "), "measured")
