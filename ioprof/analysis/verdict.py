"""The answer: what the job waited for most, in a word and a sentence, and what to change, each with the number it rests on."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from ioprof.analysis.demand import Fetched
from ioprof.analysis.facts import Facts
from ioprof.analysis.lineage import LEAVES
from ioprof.analysis.result import Advice, CauseShare, Demand, Overlap, Steps, Storage, Verdict
from ioprof.schema import CAUSES

IDLE_RATIO: Final = 0.10
"""Share of the steps' time from which on an idle accelerator makes something else the bound."""

UNEVEN_RATIO: Final = 1.1
"""How much longer a rank computes than the fastest one before its load is called uneven."""


@dataclass(frozen=True)
class Evidence:
    """All that a verdict may rest on."""

    facts: Facts
    steps: Steps
    storage: Storage
    demand: Demand
    overlap: dict[str, Overlap]
    fetched: Fetched
    wall_s: float
    """From the first step's start to the last step's end."""
    warmup_ratio: dict[str, float]
    """For each cause, the share of its time that lies in the warm-up steps."""
    making: dict[str, int]
    """What the workers spent their time on, see `lineage.making`."""

    @property
    def charged(self) -> dict[str, CauseShare]:
        """The causes that were measured, by name."""
        return {entry.cause: entry for entry in self.steps.causes if entry.seconds is not None}

    @property
    def behind_peers(self) -> dict[str, float]:
        """Share of the steps' time that ranks waited for slower ones, by what those did, or by what had made them late.

        A late rank that computes has either more to compute, which `communication` names best, or has begun later than the others.
        """
        total_s = sum(entry.seconds or 0.0 for entry in self.charged.values())
        found: dict[str, float] = {}
        for rank, causes in self.steps.behind_peers.items():
            for cause, waited_s in causes.items():
                parts = self._delays_of(int(rank)) if cause == "compute" else {cause: 1.0}
                for part, ratio in parts.items():
                    if part != "communication" and total_s:
                        found[part] = found.get(part, 0.0) + ratio * waited_s / total_s
        return found

    def _delays_of(self, rank: int) -> dict[str, float]:
        """What lets a rank begin to compute later than others: its own causes outside compute and exchange, as shares of 1.

        Nothing if it computes longer than the others do: then it is not late but busy.
        """
        rows = {int(row["rank"]): row for row in self.steps.per_rank}
        computed = {other: float(row["compute_s"] or 0.0) for other, row in rows.items()}
        if rank not in rows or computed[rank] > UNEVEN_RATIO * min(computed.values()):
            return {}
        own = {cause: float(rows[rank][f"{cause}_s"] or 0.0) for cause in CAUSES if cause not in ("compute", "communication")}
        total_s = sum(own.values())
        return {cause: seconds / total_s for cause, seconds in own.items()} if total_s else {}

    @property
    def shares(self) -> dict[str, float]:
        """Share of the steps' time by cause, where waiting for a slower rank counts as what that rank did."""
        own = {cause: entry.share or 0.0 for cause, entry in self.charged.items()}
        moved = self.behind_peers
        own |= {cause: own.get(cause, 0.0) + share for cause, share in moved.items()}
        return own | ({"communication": own["communication"] - sum(moved.values())} if moved else {})

    def seconds_per_step(self, cause: str) -> float:
        """Mean of a cause over all steps of all ranks."""
        count = sum(int(rank["steps"]) for rank in self.steps.per_rank)
        return (self.charged[cause].seconds or 0.0) / count if cause in self.charged and count else 0.0


def verdict(evidence: Evidence) -> Verdict:
    """`bound_by`, and why. Whatever an emulated device takes part in is called emulated in the text."""
    shares = evidence.shares
    if not sum(shares.values()):
        return Verdict(None, "No step was completed, so there is nothing to say about what the job waited for.")
    bound = _bound_by(shares, evidence.making)
    return Verdict(bound, _text(evidence, bound, shares), tuple(Advice(action) for action in _ADVICE[bound](evidence)))


def _bound_by(shares: dict[str, float], making: dict[str, int]) -> str:
    """The greatest cause after compute, where all that holds up a batch counts as one.

    Which of these it is: of a worker that always works, the consumer sees the last stages only, since its wait begins when half the
    work is done. So a stage is chosen by what it takes of all the workers' time, not of the part that lies in a wait.
    """
    if shares.get("compute", 0.0) > 1 - IDLE_RATIO:
        return "compute"
    waits = {cause: share for cause, share in shares.items() if cause in LEAVES}
    others = {cause: share for cause, share in shares.items() if cause != "compute" and cause not in waits}
    if max(others.values(), default=0.0) > sum(waits.values()):
        return max(others, key=lambda cause: others[cause])
    if making and sum(waits.get(cause, 0.0) for cause in making) >= 0.5 * sum(waits.values()):
        return max(making, key=lambda cause: making[cause])
    return max(waits, key=lambda cause: waits[cause])


def _text(evidence: Evidence, bound: str, shares: dict[str, float]) -> str:
    devices = f"{'emulated ' if evidence.facts.emulated else ''}accelerators"
    if "compute" not in shares:
        return (
            f"Of the steps' time {shares[bound]:.1%} went to {_MEANING[bound]}; what the {devices} computed was not recorded, "
            "so how much of it was hidden is not known."
        )
    if bound == "compute":
        return f"Compute-bound: the {devices} computed for {shares['compute']:.1%} of the steps' time{_next(shares)}."
    if bound in evidence.making:
        waited = sum(share for cause, share in shares.items() if cause in LEAVES)
        return (
            f"{_NAME[bound]}-bound: the {devices} stood still for {1 - shares['compute']:.1%} of the steps' time, "
            f"and {waited:.1%} went to waiting for batches{_of_peers(evidence, LEAVES)}; "
            f"the workers spent {_stages(evidence.making)}.{_startup(evidence, bound)}"
        )
    return (
        f"{_NAME[bound]}-bound: the {devices} stood still for {1 - shares['compute']:.1%} of the steps' time, "
        f"and {shares[bound]:.1%} went to {_MEANING[bound]}{_of_peers(evidence, (bound,))}"
        f"{_next(shares, bound)}.{_startup(evidence, bound)}"
    )


def _next(shares: dict[str, float], bound: str = "compute") -> str:
    rest = {cause: share for cause, share in shares.items() if cause not in ("compute", bound)}
    after = max(rest, key=lambda cause: rest[cause], default=None)
    return f"; next comes {after.replace('_', ' ')} with {rest[after]:.1%}" if after and rest[after] >= 0.001 else ""


def _stages(making: dict[str, int]) -> str:
    """The stages of making a batch, the longest first, as shares of the workers' time."""
    total_ns = sum(making.values())
    stages = sorted(making, key=lambda cause: -making[cause])
    return ", ".join(
        f"{making[cause] / total_ns:.1%} {'of their work on' if place == 0 else 'on'} {cause.replace('_', ' ')}"
        for place, cause in enumerate(stages)
        if making[cause] / total_ns >= 0.01
    )


def _of_peers(evidence: Evidence, causes: Collection[str]) -> str:
    share = sum(evidence.behind_peers.get(cause, 0.0) for cause in causes)
    return f" ({share:.1%} of the time on a slower rank that the others waited for)" if share >= 0.01 else ""


def _startup(evidence: Evidence, bound: str) -> str:
    ratio = evidence.warmup_ratio.get(bound, 0.0)
    if ratio < 0.5 or not evidence.steps.warmup:
        return ""
    return f" Of that, {ratio:.0%} fell into the first {evidence.steps.warmup} steps, the start-up: a longer run would show less."


_NAME: Final = {
    "communication": "Communication", "h2d": "Copy", "storage": "Storage", "page_cache": "Page-cache",
    "decode": "Decode", "transform": "Transform", "collate": "Collate", "delivery": "Delivery", "loader": "Loader", "host": "Host",
}  # fmt: skip
_MEANING: Final = {
    "communication": "exchanging gradients, or waiting for ranks that had more to compute",
    "h2d": "copies between host and device",
    "storage": "waiting for reads from storage",
    "page_cache": "reads served from memory",
    "decode": "waiting for images to be decoded",
    "transform": "waiting for images to be cropped and resized",
    "collate": "waiting for samples to be put together into batches",
    "delivery": "handing finished batches from workers to ranks",
    "loader": "the loader's own work around reading and decoding",
    "host": "the ranks' own Python, which no span covers",
}


# ------------------------------------------------------------------------------------------------ advice


def _compute(evidence: Evidence) -> Iterator[str]:
    yield (
        f"Leave the input side as it is: all that is not compute took {1 - (evidence.charged['compute'].share or 0.0):.1%} "
        "of the steps' time; only a faster model or device makes this job faster"
    )


def _storage(evidence: Evidence) -> Iterator[str]:
    seen, need, facts = evidence.storage, evidence.demand, evidence.facts
    if need.bytes_per_s and need.reads_per_s and seen.accesses and evidence.wall_s:
        yield (
            f"Put the dataset where it is read at {_rate(need.bytes_per_s)} in {need.reads_per_s:,.0f} reads/s "
            f"({seen.bytes / seen.accesses / 1e3:,.0f} kB each): the devices need that, and this run got "
            f"{_rate(seen.bytes / evidence.wall_s)} in {seen.accesses / evidence.wall_s:,.0f} reads/s"
        )
    if facts.layout == "files" and seen.accesses:
        yield (
            f"Convert to LMDB (ioprof convert imagenet SRC DST --layout lmdb): now each of the {seen.accesses:,} reads, "
            f"{seen.bytes / seen.accesses / 1e3:,.0f} kB on average, opens a file of its own"
        )
    yield from _staging(evidence)
    yield from _more_workers(evidence, f"each waits for one read at a time, which takes {_ms(seen.read_p50_s)} (p50)")


def _staging(evidence: Evidence) -> Iterator[str]:
    size, memory = evidence.facts.dataset_bytes, evidence.facts.memory_bytes
    if size:
        fits = f", and memory ({memory / 1e9:,.1f} GB) holds it after the first epoch" if memory and size < 0.8 * memory else ""
        yield f"Copy the dataset ({size / 1e9:,.2f} GB) to node-local storage before the job starts{fits}"


def _page_cache(evidence: Evidence) -> Iterator[str]:
    seen = evidence.storage
    if seen.accesses:
        yield (
            f"Read less per sample: {seen.bytes / seen.accesses / 1e3:,.0f} kB on average came from memory "
            f"{seen.accesses:,} times, {_ms(seen.read_p50_s)} each (p50); smaller images (--image rgb256) are read faster"
        )
    yield from _more_workers(evidence, f"a step waits {_ms(evidence.seconds_per_step('page_cache'))} for reads from memory")


def _decode(evidence: Evidence) -> Iterator[str]:
    facts, sample_s = evidence.facts, _decode_s(evidence)
    cost = f"decoding one image takes {_ms(sample_s)} of a worker" if sample_s else "decoding holds the workers up"
    yield from _more_workers(evidence, cost)
    if facts.image == "original":
        yield f"Convert to 256-pixel images (ioprof convert imagenet SRC DST --image rgb256): {cost} at the original size"
    need = evidence.demand.at_samples_per_s
    if sample_s and need and need * sample_s > (facts.ranks or 1) * (facts.workers or 1):
        cores = f", and {facts.cpus} cores are here" if facts.cpus else ""
        yield f"Provide cores: the devices' {need:,.0f} samples/s keep {need * sample_s:,.1f} workers decoding{cores}"


def _transform(evidence: Evidence) -> Iterator[str]:
    spent = f"a step waits {_ms(evidence.seconds_per_step('transform'))} for cropping and resizing"
    yield from _more_workers(evidence, spent)
    if evidence.facts.image == "original":
        yield f"Store the images resized (ioprof convert imagenet SRC DST --image rgb256): {spent}"


def _collate(evidence: Evidence) -> Iterator[str]:
    spent = (
        f"a step waits {_ms(evidence.seconds_per_step('collate'))} for a batch of {evidence.facts.batch_size} to be put together"
    )
    yield f"Have samples written straight into the batch's memory instead of stacking them afterwards: {spent}"
    yield from _more_workers(evidence, spent)


def _delivery(evidence: Evidence) -> Iterator[str]:
    yield (
        f"Keep the rank's main thread free to take batches: a finished batch waits {_ms(evidence.seconds_per_step('delivery'))} "
        f"a step until the rank has it ({evidence.facts.workers} workers per rank, batches of {evidence.facts.batch_size})"
    )


def _loader(evidence: Evidence) -> Iterator[str]:
    spent = f"a step waits {_ms(evidence.seconds_per_step('loader'))} for worker time that no read, decode or transform covers"
    if not evidence.facts.reads_captured:
        yield f"Record the reads as well: {spent}, and reads were not captured"
    if evidence.warmup_ratio.get("loader", 0.0) >= 0.5 and evidence.steps.warmup:
        ratio = evidence.warmup_ratio["loader"]
        yield f"Run more steps than {evidence.steps.count}: {ratio:.0%} of this time lies in the first {evidence.steps.warmup}"
    yield from _more_workers(evidence, spent)


def _h2d(evidence: Evidence) -> Iterator[str]:
    found, pageable = evidence.overlap["h2d"], evidence.charged["h2d"].reason
    if pageable:
        yield f"Set pin_memory=True in the DataLoader, and copy with non_blocking=True: {pageable}"
    hidden = f"{found.hidden_ratio:.0%} of the copies are" if found.hidden_ratio is not None else "too few copies are"
    yield (
        f"Copy from pinned memory on a stream of its own, one batch ahead: {hidden} hidden behind compute, "
        f"and a step stands still for {_ms(evidence.seconds_per_step('h2d'))} of copying"
    )


def _communication(evidence: Evidence) -> Iterator[str]:
    spent = f"a step stands still for {_ms(evidence.seconds_per_step('communication'))} in the gradient exchange"
    batch = f"a batch of {evidence.facts.batch_size} per rank"
    yield f"Exchange less often: {spent} at {batch}; twice the batch halves the exchanges per sample"
    least = _least_held_up(evidence)
    if least:
        yield least


def _least_held_up(evidence: Evidence) -> str | None:
    """The rank that others wait for waits least itself."""
    waited = {int(rank["rank"]): float(rank["communication_s"] or 0.0) for rank in evidence.steps.per_rank}
    if len(waited) < 2 or max(waited.values()) < 2 * min(waited.values()) + 1e-3:
        return None
    slow, fast = min(waited, key=lambda rank: waited[rank]), max(waited, key=lambda rank: waited[rank])
    return (
        f"Look at what rank {slow} does before the exchange: it spent {waited[slow]:.2f} s in it, "
        f"rank {fast} {waited[fast]:.2f} s, so the others wait for rank {slow}"
    )


def _host(evidence: Evidence) -> Iterator[str]:
    yield (
        f"Put ioprof.span around the parts of the training loop: a step spends {_ms(evidence.seconds_per_step('host'))} "
        "in the ranks' own Python between waiting, copying and computing"
    )


def _more_workers(evidence: Evidence, why: str) -> Iterator[str]:
    """More workers while cores are free; else say that there are none. One core per rank is left to the rank itself."""
    facts = evidence.facts
    if facts.workers is None or facts.ranks is None or facts.cpus is None:
        return
    free = facts.cpus // max(facts.ranks, 1) - 1
    now = f"{facts.ranks} rank{'s' if facts.ranks > 1 else ''} with {facts.workers} worker{'s' if facts.workers != 1 else ''} each"
    if free > facts.workers:
        yield f"Use --workers {free} instead of {facts.workers}: {facts.cpus} cores serve {now}, and {why}"
    elif evidence.charged.get("decode") and facts.workers > 0:
        yield f"Leave --workers at {facts.workers}: {facts.cpus} cores serve {now}, more would only share them, and {why}"


def _decode_s(evidence: Evidence) -> float | None:
    samples = evidence.fetched.batches * (evidence.facts.batch_size or 0)
    return evidence.fetched.decode_ns / 1e9 / samples if samples and evidence.fetched.decode_ns else None


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:,.1f} MB/s"


def _ms(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else f"{seconds * 1e3:,.2f} ms"


_ADVICE: Final[dict[str, Callable[[Evidence], Iterator[str]]]] = {
    "compute": _compute,
    "communication": _communication,
    "h2d": _h2d,
    "storage": _storage,
    "page_cache": _page_cache,
    "decode": _decode,
    "transform": _transform,
    "collate": _collate,
    "delivery": _delivery,
    "loader": _loader,
    "host": _host,
}
