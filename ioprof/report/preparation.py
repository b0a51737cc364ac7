"""What was done to storage and memory for a run, as lines of a report; from run.json, which may be damaged or hostile."""

from collections.abc import Iterator
from typing import Any

from ioprof.analysis.staging import StagingCost, staging_cost
from ioprof.report.facts import Fact
from ioprof.report.units import MISSING, amount, clean, duration, percent
from ioprof.trace import Trace


def run_facts(trace: Trace) -> tuple[Fact, ...]:
    """All lines of this module, for a run."""
    return (*prepared(trace.run), *staging_facts(trace.run, staging_cost(trace)))


def prepared(run: dict[str, Any]) -> tuple[Fact, ...]:
    """The lines on the dataset's scale, the page cache and the memory limit, where the run recorded them."""
    return (*_scale(run.get("dataset"), run.get("own_place")), *_cache(run.get("cache")), *_limit(run.get("limit")))


def _scale(dataset: object, place: object) -> Iterator[Fact]:
    scale = _number(dataset, "scale")
    if scale is None or scale == 1:
        return
    text = clean(str(_get(dataset, "source") or f"{scale:g}x of another dataset").partition(" (")[0], 120)
    shared, sampled, reason = _number(place, "shared_bytes"), _number(place, "bytes"), _get(place, "reason")
    if shared is not None and sampled:
        text += f"; {percent(1 - shared / sampled)} of a sample has its own place on the disk"
    elif reason:
        text += f"; {clean(reason, 120)}"
    yield Fact("scale", text, "measured")


def _cache(cache: object) -> Iterator[Fact]:
    if not isinstance(cache, dict):
        return
    states = [f"{_ratio(cache.get(when))} {words}" for when, words in _WHEN.items() if isinstance(cache.get(when), dict)]
    start = cache.get("start")
    methods = _get(start, "methods")
    by = f"; by {', '.join(clean(name, 40) for name in methods)}" if isinstance(methods, dict) and methods else ""
    reason = _get(start, "reason")
    unknown = f"; not known of {clean(_get(start, 'unknown_files'), 12)} files: {clean(reason, 150)}" if reason else ""
    held = cache.get("held_by")
    kept = f"; kept by {', '.join(clean(name, 60) for name in held[:3])}" if isinstance(held, list) and held else ""
    reclaim = f"; {clean(cache['reclaim'], 80)}" if cache.get("reclaim") else ""
    of = "; of this host: what its servers and their disks had in memory is not known" if cache.get("kind") == "shared" else ""
    text = f"asked: {clean(cache.get('asked'), 12)}; {', '.join(states)}{by}{unknown}{kept}{reclaim}{of}"
    yield Fact("page cache", text, "measured")


_WHEN = {"before": "resident before", "start": "at the start", "end": "at the end"}


def _limit(limit: object) -> Iterator[Fact]:
    asked = _number(limit, "asked_bytes")
    if asked is None:
        return
    peak, cached = _number(limit, "peak_bytes"), _number(limit, "page_cache_bytes")
    times = _number(limit, "times_at_limit")
    text = f"{amount(asked)} by {clean(_get(limit, 'by'), 20)}"
    text += f"; peak {MISSING if peak is None else amount(peak)}"
    text += f", {MISSING if cached is None else amount(cached)} of it page cache at the end"
    text += "" if times is None else f"; {times:,.0f} times at the limit"
    yield Fact("memory limit", text, "measured")


def _ratio(state: object) -> str:
    ratio = _number(state, "ratio")
    return MISSING if ratio is None else percent(ratio)


def _number(mapping: object, key: str) -> float | None:
    value = _get(mapping, key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**62 else None


def _get(mapping: object, key: str) -> Any:
    return mapping.get(key) if isinstance(mapping, dict) else None


def staging_facts(run: dict[str, Any], cost: StagingCost | None) -> tuple[Fact, ...]:
    """The lines on what staging took, and when it has paid."""
    stage = run.get("stage")
    if cost is None or not isinstance(stage, dict):
        return ()
    return Fact("staging", _staged(stage, cost), "measured"), Fact("break-even", _paid(cost), cost.basis if cost.epochs else None)


def _staged(stage: dict[str, Any], cost: StagingCost) -> str:
    size, to = _number(stage, "bytes"), clean(stage.get("to"), 60)
    if stage.get("mode") == "while-training":
        filled = _number(stage, "filled_ratio")
        return f"{percent(filled)} of {amount(size)} written to {to} while training, {duration(cost.cost_s)} of each worker's time"
    if stage.get("reused") is True:
        return f"{amount(size)} were in {to} already"
    copied, check_s = _number(stage, "copied_bytes"), _number(stage, "check_s")
    rate = amount(copied / cost.cost_s) if copied and cost.cost_s else MISSING
    checked = f", {duration(check_s)} of it comparing the digest" if check_s else ""
    return f"{amount(size)} copied to {to} before training in {duration(cost.cost_s)} ({rate}/s{checked})"


def _paid(cost: StagingCost) -> str:
    if cost.epochs is None:
        return clean(cost.reason or "not known", 150)
    each = f"an epoch takes {duration(cost.local_epoch_s)} on the copy, {duration(cost.shared_epoch_s)} from the shared path"
    return f"after {cost.epochs:,.1f} epochs: {each}, if nothing of it is in memory"
