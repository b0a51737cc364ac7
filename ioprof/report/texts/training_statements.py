"""What the built-in job trained, how its device was made up, and what it learned, as lines of a
report.
"""

from collections.abc import Iterator

from ioprof.format.run_record import ExchangeRate, LearningRecord, RunRecord
from ioprof.report.texts.statements import Statement
from ioprof.report.texts.units import amount, clean, count, duration, percent, rate


def training_statements(run: RunRecord) -> tuple[Statement, ...]:
    """All lines of this module, for a run; none for a job that is not the built-in one."""
    return (*_model(run), *_learning(run.learning))


def network_statements(run: RunRecord, rate_of_job: ExchangeRate | None) -> Iterator[Statement]:
    """How fast gradients were exchanged, beside what the network delivered before the first step,
    where that was measured.
    """
    if rate_of_job is not None and rate_of_job.seconds:
        alone_s, while_computed, least = rate_of_job.alone_s, "", "="
        if alone_s is not None and alone_s < rate_of_job.seconds:
            while_computed, least = (
                f", {duration(alone_s)} of it after all gradients were computed",
                "is at least",
            )
        parts = [
            f"{amount(rate_of_job.gradient_bytes)} of gradients over {count(rate_of_job.ranks)}"
            f" ranks in {duration(rate_of_job.seconds)} of a median step{while_computed}: 2L(p-1)/p"
            f" / t {least} {amount(rate_of_job.bytes_per_s)}/s"
        ]
        known = [
            each
            for each in (run.network.all_reduces if run.network else ())
            if each.bytes_per_s and each.bytes
        ]
        if known and rate_of_job.bytes_per_s:
            near = min(
                known, key=lambda each: abs((each.bytes or 0) - (rate_of_job.gradient_bytes or 0))
            )
            ratio = rate_of_job.bytes_per_s / (near.bytes_per_s or 1)
            reached = f"{percent(ratio)} reached{'' if least == '=' else ', or more'}"
            parts.append(
                f"an all-reduce of {amount(near.bytes)} alone had {amount(near.bytes_per_s)}/s"
                f" ({reached})"
            )
        yield Statement("exchange", "; ".join(parts), run.device_basis)
    if run.network is not None and run.network.messages:
        largest = run.network.messages[-1]
        text = (
            f"{duration(run.network.latency_s)} one way; a message of {amount(largest.bytes)} at"
            f" {amount(largest.bytes_per_s)}/s"
        )
        yield Statement("network", f"{text}, before the first step", "measured")


def _model(run: RunRecord) -> Iterator[Statement]:
    device, config = run.device, run.config
    if device is None or device.model is None:
        return
    parts = [clean(device.model, 40)]
    if config.parallel == "fsdp" and (config.ranks or 1) > 1:
        parts.append(f"parameters divided among {count(config.ranks)} ranks (FSDP)")
    if config.stages:
        parts.append(f"{count(config.stages)} stages in a pipeline, one per rank")
    if device.rate_basis is not None:
        source = f": {clean(device.rate_source, 160)}" if device.rate_source else ""
        parts.append(
            f"{rate(device.samples_per_s)} samples/s per device,"
            f" {clean(device.rate_basis, 20)}{source}"
        )
    if config.copy is not None and config.device != "cpu":
        bandwidth = f" at {amount(device.h2d_bytes_per_s)}/s" if device.h2d_bytes_per_s else ""
        parts.append(f"{clean(config.copy, 20)} copies{bandwidth}")
    if device.gradient_bytes and (config.ranks or 1) > 1:
        ranks, per_node = config.ranks or 1, config.ranks_per_node or config.ranks or 1
        nodes = -(-ranks // per_node)
        where = f"{nodes} nodes of up to {per_node} ranks" if nodes > 1 else "one node"
        parts.append(
            f"{amount(device.gradient_bytes)} of gradients by"
            f" {clean(config.exchange or 'ring', 20)} in {where}"
        )
    yield Statement(
        "model", "; ".join(parts), run.device_basis if device.rate_basis is not None else None
    )


def _learning(learning: LearningRecord | None) -> Iterator[Statement]:
    if learning is None:
        return
    parts = []
    if learning.first_step:
        parts.append(f"went on after step {count(learning.first_step)}")
    if learning.losses:
        parts.append(
            f"loss of the first step {learning.losses[0]:.4g}, of the last"
            f" {learning.losses[-1]:.4g}"
        )
    for each in (*learning.evaluations[:1], *learning.evaluations[1:][-1:]):
        when = (
            f"after step {count(each.step)}"
            if each.epoch is None
            else f"after epoch {each.epoch:g}"
        )
        found = (
            "not known, since an emulated device learns nothing"
            if each.accuracy is None
            else percent(each.accuracy)
        )
        parts.append(f"accuracy {when} ({duration(each.seconds)}): {found}")
    if learning.checkpoints:
        parts.append(
            f"{count(len(learning.checkpoints))} checkpoints, the last after step"
            f" {count(learning.checkpoints[-1])}"
        )
    yield Statement("learning", "; ".join(parts), "measured")
