"""What summary.json says of the bound of a job: the ceilings, the verdict and its advice."""

from typing import Any

from msgspec import field

from ioprof.format.run_record.reasons import Cost, CpuLimit, Doubt, NoGain
from ioprof.format.run_record.record import Number, Record, SmallCount


class Residual(Record, frozen=True):
    """A part of a step that the two ceilings do not explain."""

    name: str
    """One of `ioprof.analysis.ceilings.RESIDUALS`."""
    seconds: float
    """Per step."""


class Ceilings(Record, frozen=True):
    """What the workers can make and what the consumer can take, as seconds per step: means over the
    steady steps of all ranks.
    """

    step_s: float
    """What a step took. Near `predicted_s`: the ceilings explain it."""
    supply_s: float
    """The time that workers fetched for the batches of a step, over their number. High against
    `consumer_s`: the workers are the bound."""
    consumer_s: float
    """The step without its waits for batches, but with its sampler; or the device's compute if that
    is longer."""
    workers: int
    """Workers of a rank that fetched; 0: the rank fetches itself."""
    is_serial: bool
    """The rank fetches itself, so that a step takes both."""
    predicted_s: float
    """The greater of the two; their sum if it is serial."""
    residual_s: float
    """`step_s` - `predicted_s`. Below 0: work for batches that were made ahead."""
    residuals: tuple[Residual, ...] = ()
    """The residual by reason, if it is above 0."""


class JobChange(Record, frozen=True, omit_defaults=True):
    """What is different in a changed job. Null: as it was."""

    workers: SmallCount | None = None
    """Loader workers of each rank."""
    prefetch: SmallCount | None = None
    """Batches per worker that are prepared ahead."""
    batch: SmallCount | None = None
    """Samples per batch."""
    persistent_workers: bool = False
    reused: Number = 0.0
    """Part of the work for a batch that workers do once for each sample, if they are kept: their
    dataset keeps what it made."""
    in_order: bool = False
    """Each of them makes the same samples in each epoch; else any other ones."""
    pin_memory: bool = False
    """Of torch's DataLoader: batches are copied to page-locked memory. A replay does not know
    it."""
    skip_discarded: bool = False
    """Batches with which nothing is done are not made."""
    cache: str | None = None
    """`warm` or `cold` page cache."""
    speeds: dict[str, float | None] = field(default_factory=dict)
    """Cause to by how many times it becomes faster; `calls`: how many calls of the dataset
    become one. Null: it costs nothing."""


Facts = dict[str, Any]
"""Numbers and names, by their own names, that words are about."""


def known(facts: Facts) -> Facts:
    """Those that are known: neither null, nor false, nor an empty text."""
    return {
        name: value for name, value in facts.items() if value or (value == 0 and value is not False)
    }


class Subject(Record, frozen=True):
    """What a finding is about."""

    kind: str
    """`line`, `stage`, `worker`, `rank`, `loader`, `file`, `thread`, `setting` or `job`."""
    name: str
    """Such as `train.py:42 in main` of a line, `decode` of a stage, `workers` of a setting."""


class Finding(Record, frozen=True):
    """One thing to change: with what it would bring, predicted by a replay of the recorded
    pipeline, or why that is not known.
    """

    code: str
    """What it is, one of `ioprof.report.texts.catalogue.ACTIONS`: `workers`, `prefetch`,
    `transform_line` ... `other`: of a run of before 2026-11-29, which has `action` alone."""
    action: str = ""
    """What to change, in words that name the options of the job; made of `code` and `facts`."""
    subject: Subject | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """The numbers and names that `action` has, in units of their names, or seconds and bytes."""
    gain: float | None = None
    """Steps per second with the change over those without; where the batch size changes, samples.
    Null: see `no_gain`."""
    error: float | None = None
    """The largest error, but for one in twenty, of such predictions in runs that were made with the
    change, or an assumed one, and what makes this prediction less sure. Null: not known."""
    low: float | None = None
    """`gain` at least: by the variation of the steps, the replay's error and `error`."""
    high: float | None = None
    """The same at most."""
    basis: str = "unknown"
    """Of `gain`: `predicted` by a replay, `derived` from what was measured, or `unknown`."""
    is_bound: bool = False
    """`gain` is the most that it can bring: what the job gains if `cause`, or the `part` of it,
    costs nothing."""
    is_least: bool = False
    """`gain` is of the part of that cost which was seen; there is more, so that it may bring
    more."""
    cause: str | None = None
    """The cause whose time it makes less."""
    part: float | None = None
    """The part of `cause` that it can make less, such as that of a line of code, 0 to 1. Null: all
    of it."""
    part_error: float | None = None
    """How far off `part` may be, by two standard errors of the samples that show it. Null: it is
    not of samples."""
    waits: float | None = None
    """How much of that part is waiting, 0 to 1; the rest needs a core. Null: as much as of all of
    `cause`."""
    change: JobChange | None = None
    """What it changes, if that can be replayed. Null: it makes `cause` cost less by an amount that
    is not known."""
    no_gain: NoGain | None = None
    """Why there is no prediction, as a code. Null with a prediction, and before the run was
    replayed."""
    reason: str | None = None
    """`no_gain` in words."""
    costs: Cost | None = None
    """What the change itself costs. Null: nothing in the job changes; or a run of before
    2026-11-29."""
    price: str | None = None
    """`costs` in words. Null: not known."""
    can_be_proved: bool = False
    """Whether `ioprof prove RUN --advice N` can make the change, run the job again with it and
    without it, and measure the gain."""

    @classmethod
    def upgrade(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Versions before 2026-11-29 called them advice, with sentences alone."""
        if "code" in value:
            return value
        gain = value.get("predicted_speedup")
        basis = "unknown" if gain is None else "predicted"
        told = {"code": "other", "gain": gain, "basis": basis, "price": value.get("costs")}
        return {**value, **told, "costs": None}

    @property
    def predicted_speedup(self) -> float | None:
        """`gain`, as it was called before 2026-11-29."""
        return self.gain


class Sentence(Record, frozen=True):
    """A sentence of the verdict."""

    code: str
    """One of `ioprof.report.texts.catalogue.SENTENCES`."""
    facts: dict[str, Any] = field(default_factory=dict)
    """As those of a finding."""


def sentence(code: str, **facts: Any) -> Sentence:
    """Facts that are not known, null or false, are left out."""
    return Sentence(code, known(facts))


class Verdict(Record, frozen=True):
    """The answer: what the job waited for most, in a word and in a sentence."""

    bound_by: str | None
    """`compute` if the accelerators were idle for less than 10 % of the time; else the greatest
    cause after it, where all causes of waiting for a batch count as one, which is named for the
    stage that takes most of the workers' time. Waiting for a straggler counts as what made that
    rank late (`Steps.straggler_wait_s`), except for `compute`, which stays `straggler`. Null: no
    step."""
    text: str
    """In words, made of `sentences`."""
    findings: tuple[Finding, ...] = ()
    """What could be changed, best first; the first is the answer. Called `advice` before
    2026-11-29."""
    sentences: tuple[Sentence, ...] = ()
    """What `text` says. Empty: of a run of before 2026-11-29."""
    candidates: tuple[Finding, ...] = ()
    """Changes of causes that took less of the time. When the run is replayed, those that bring
    something come to `findings`, and none is left here."""
    doubts: tuple[Doubt, ...] = ()
    """Why it is unsure; the text says so with the numbers. Empty: nothing that was recorded speaks
    against it."""
    device_waits: bool = False
    """`bound_by` is `compute`, but by the replay a device twice as fast brings next to nothing:
    what else the job does takes as long beside it."""
    first_epoch: str | None = None
    """The bound of the first epoch, where `bound_by` is that of the later ones alone: `storage`, of
    which they need none, or the making of what workers keep."""
    cpu_limits: tuple[CpuLimit, ...] = ()
    """What limits the CPU time (`Summary.cpu`), where that can be why the steps took as long as
    they did; the text says so first, but for `cores`."""
    phase: str | None = None
    """A part of the whole job that took much of its time besides the steps: one of
    `ioprof.analysis.ledger.PHASES`. The text begins with it."""

    @classmethod
    def upgrade(cls, value: dict[str, Any]) -> dict[str, Any]:
        """See `findings`."""
        return value if "findings" in value else {**value, "findings": value.get("advice")}

    @property
    def advice(self) -> tuple[Finding, ...]:
        """`findings`, as they were called before 2026-11-29."""
        return self.findings

    def said(self, code: str, *, first: bool = False, **facts: Any) -> "Verdict":
        """The verdict with one more sentence, at its end or first of all."""
        more = (sentence(code, **facts),)
        both = (*more, *self.sentences) if first else (*self.sentences, *more)
        return self.replace(sentences=both)
