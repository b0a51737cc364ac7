"""A recorded run for notebooks and programs: its summary, tables in milliseconds, and figures."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from ioprof.analysis.charge.saves import saves
from ioprof.analysis.save_interval import SaveInterval, save_interval
from ioprof.errors import CommandError
from ioprof.format.run_record import RunRecord, Summary
from ioprof.format.schema import CAUSES, KINDS, SOURCES
from ioprof.format.trace import Trace
from ioprof.report.lanes import Window
from ioprof.report.page.stalls import around_moment, around_step
from ioprof.report.run import Run as AnalysedRun
from ioprof.report.texts.headline import headline
from ioprof.report.texts.statements import is_emulated, title
from ioprof.report.texts.units import clean, duration
from ioprof.report.views import around_longest, cause_text, chosen_ranks, longest_steps

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ioprof.model.prediction import Prediction

_MS: Final = 1e6
_COLUMNS: Final = (
    "rank",
    "step",
    "batch",
    "kind",
    "source",
    "start_ms",
    "took_ms",
    "bytes",
    "path",
    "offset",
    "name",
    "host",
    "pid",
    "tid",
)
_READS: Final = ("read", "fault")


@dataclass(frozen=True)
class Files:
    """The files of a run."""

    table: pl.DataFrame
    """All files that were opened or read: columns of `ioprof.format.schema.FILE_COLUMNS`."""
    summary: Summary

    def slowest(self, number: int = 10) -> pl.DataFrame:
        """The files whose reads for batches took longest in all, at most 10, as
        `path reads opens bytes took_ms slowest_ms`.
        """
        rows = [
            (
                entry.path,
                entry.accesses,
                entry.opens,
                entry.bytes,
                entry.seconds * 1e3,
                entry.max_s * 1e3,
            )
            for entry in self.summary.findings.reads.files[:number]
        ]
        schema = {
            "path": pl.String,
            "reads": pl.Int64,
            "opens": pl.Int64,
            "bytes": pl.Int64,
            "took_ms": pl.Float64,
            "slowest_ms": pl.Float64,
        }
        return pl.DataFrame(rows, schema, orient="row")

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        return f"{len(self.table):,} files; see .table and .slowest()"


@dataclass(frozen=True)
class StepView:
    """One step on all ranks."""

    number: int
    causes: pl.DataFrame
    """One row per rank: `rank step start_ms took_ms`, then the causes that took any time, in
    milliseconds."""
    reads: pl.DataFrame
    """The reads for the batches of this step, longest first; columns as of `Run.where`."""
    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from ioprof.report.page.markup import element

        reads = self.reads.head(10).select("rank", "batch", "source", "took_ms", "bytes", "path")
        tables = (
            table.with_columns(pl.selectors.float().round(3)) for table in (self.causes, reads)
        )
        return element("p", element("strong", self.text)) + "".join(
            table._repr_html_() for table in tables
        )


class Run:
    """A recorded run.

        run = ioprof.load("runs/first")
        run                                              # in a notebook a card; print(run) is one
                                                         line
        run.summary.verdict.text                         # all that summary.json says
        run.steps                                        # one row per rank and step, in
                                                         milliseconds
        run.timeline(step=68), run.timeline(around=8.4, ranks=[0, 1])
        run.step(68).reads                               # the reads for the batches of a step
        run.where(kind="read", source="storage")         # spans, as a table
        run.sql("select * from steps order by took_ms desc limit 5")
        run.files.slowest()
        run.whatif(workers=8).speedup

    It is analysed when that is first needed. Times of the run count from its first span.
    """

    def __init__(
        self, trace: Trace, folder: Path | None = None, analysed: AnalysedRun | None = None
    ) -> None:
        self.trace = trace
        """Spans, files and counters as they were recorded, in nanoseconds."""
        self.folder = folder
        """The run folder; None: there is none."""
        self._analysed = analysed

    @classmethod
    def load(cls, path: Path | str) -> "Run":
        """The run in a run folder; `RunError` says what is wrong with the folder."""
        return cls(Trace.load(path), Path(path))

    @classmethod
    def of(cls, analysed: AnalysedRun) -> "Run":
        """A run that was analysed already."""
        return cls(analysed.trace, analysed.folder, analysed)

    @property
    def analysed(self) -> AnalysedRun:
        """The same with the table of `ioprof.analysis.charge.blame` and the summary, as the
        functions of ioprof take it.
        """
        if self._analysed is None:
            self._analysed = (
                AnalysedRun.in_folder(self.trace, self.folder)
                if self.folder
                else AnalysedRun.of(self.trace)
            )
        return self._analysed

    @cached_property
    def summary(self) -> Summary:
        """All that the report says, as in summary.json; gains are predicted as `ioprof report` does
        it.
        """
        from ioprof.model.summary import with_gains

        found = self.analysed
        return found.summary if found.summary.replay else with_gains(found, is_asked=False).summary

    @property
    def spans(self) -> pl.DataFrame:
        """All spans as they were recorded, in nanoseconds; `where` is a part of them in
        milliseconds.
        """
        return self.trace.spans

    @property
    def counters(self) -> pl.DataFrame:
        """The sampled series of hosts and processes."""
        return self.trace.counters

    @property
    def run(self) -> RunRecord:
        """All that run.json says."""
        return self.trace.run

    def select(self, *predicates: pl.Expr, **equals: object) -> Trace:
        """The trace with only the spans that fit, see `Trace.select`."""
        return self.trace.select(*predicates, **equals)

    @property
    def steps(self) -> pl.DataFrame:
        """One row per rank and step: `rank step start_ms took_ms`, then each cause in milliseconds;
        a null was not measured.
        """
        return _in_ms(self.analysed.steps)

    @property
    def causes(self) -> pl.DataFrame:
        """`cause took_ms share basis` of all steps of all ranks."""
        rows = [
            (
                entry.cause,
                None if entry.seconds is None else entry.seconds * 1e3,
                entry.share,
                entry.basis,
            )
            for entry in self.summary.steps.causes
        ]
        return pl.DataFrame(
            rows,
            {"cause": pl.String, "took_ms": pl.Float64, "share": pl.Float64, "basis": pl.String},
            orient="row",
        )

    @property
    def overlap(self) -> pl.DataFrame:
        """`activity took_ms hidden_ms exposed_ms hidden_ratio basis`: how much of it ran while the
        device computed.
        """
        rows = [
            (
                name,
                _ms(found.total_s),
                _ms(found.hidden_s),
                _ms(found.exposed_s),
                found.hidden_ratio,
                found.basis,
            )
            for name, found in self.summary.overlap.items()
        ]
        names = ("took_ms", "hidden_ms", "exposed_ms", "hidden_ratio")
        return pl.DataFrame(
            rows,
            {"activity": pl.String, **dict.fromkeys(names, pl.Float64), "basis": pl.String},
            orient="row",
        )

    @cached_property
    def checkpoints(self) -> pl.DataFrame:
        """One row for each checkpoint of each rank, with what its time went to, in nanoseconds: see
        `ioprof.analysis.charge.saves.saves`.
        """
        return saves(self.trace)

    def save_interval(self, mtbf_s: float) -> SaveInterval | None:
        """How often the job should save if it fails every `mtbf_s` seconds on average; None: it
        saved nothing.
        """
        return save_interval(self.summary, mtbf_s)

    @property
    def files(self) -> Files:
        """The files that were read: `run.files.slowest()`, `run.files.table`."""
        return Files(self.trace.files, self.summary)

    def where(
        self,
        *predicates: pl.Expr,
        kind: str | Sequence[str] | None = None,
        source: str | Sequence[str] | None = None,
        rank: int | None = None,
        step: int | None = None,
        batch: int | None = None,
        path: str | None = None,
    ) -> pl.DataFrame:
        """The spans that fit, by their start, in milliseconds; `path` is a part of the file's path.

            run.where(kind=["read", "fault"], source="storage", rank=0).sort("took_ms", descending=True)

        Raises `CommandError` for a kind, source or rank that is not one; it names the nearest.
        """  # noqa: E501
        wanted = [*predicates]
        for name, given, known in (("kind", kind, KINDS), ("source", source, SOURCES)):
            if given is not None:
                words = [given] if isinstance(given, str) else list(given)
                for word in words:
                    _check(name, word, known)
                wanted.append(pl.col(name).is_in(words))
        if rank is not None:
            _check("rank", rank, self.trace.ranks)
        wanted += [
            pl.col(name) == value
            for name, value in (("rank", rank), ("step", step), ("batch", batch))
            if value is not None
        ]
        names = self.trace.files.select("file", "path").unique("file")
        if path is not None:
            wanted.append(
                pl.col("file").is_in(
                    names.filter(pl.col("path").str.contains(path, literal=True))["file"].implode()
                )
            )
        found = self.trace.found(lambda part: part.filter(*wanted) if wanted else part)
        times = {
            "start_ms": pl.col("start_ns") / _MS,
            "took_ms": (pl.col("end_ns") - pl.col("start_ns")) / _MS,
        }
        return (
            found.sort("start_ns")
            .with_columns(**times)
            .join(names, on="file", how="left", maintain_order="left")
            .select(_COLUMNS)
        )

    def sql(self, query: str) -> pl.DataFrame:
        """The result of a query in SQL, as Polars understands it, over the tables `spans`,
        `blocks`, `counters` (nanoseconds, as recorded), `steps`, `causes` and `overlap`
        (milliseconds), and `files`.

        >>> run.sql("select source, sum(bytes) from spans where kind = 'read' group by source")

        Raises `CommandError` with what is wrong with the query.
        """
        names = ("spans", "counters", "steps", "causes", "overlap")
        tables = {name: getattr(self, name) for name in names}
        tables |= {"blocks": self.trace.blocks, "files": self.files.table}
        try:
            return pl.SQLContext(tables, eager=True).execute(query)
        except pl.exceptions.PolarsError as error:
            known = ", ".join(sorted(tables))
            raise CommandError(f"sql: {error} (tables: {known})") from error

    def step(self, number: int) -> StepView:
        """What a step did on all ranks; `CommandError` if the run has no such step."""
        steps = self.analysed.steps.filter(pl.col("step") == number)
        if not len(steps):
            raise CommandError(f"step {number}: {self._known_steps}")
        used = self.trace.rows(
            pl.col("step") == number,
            pl.col("batch").is_not_null(),
            kinds=("wait", "h2d", "compute"),
        )
        batches = used.select("rank", "batch").unique()
        reads = self.where(pl.col("batch").is_in(batches["batch"].unique().implode()), kind=_READS)
        reads = reads.join(batches, on=["rank", "batch"], how="semi", nulls_equal=True).sort(
            "took_ms", descending=True
        )
        row = longest_steps(steps, 1).row(0, named=True)
        text = (
            f"step {number}: rank {row['rank']} took {duration(row['wall_ns'] / 1e9)},"
            f" {cause_text(row)}"
        )
        causes = _in_ms(steps)
        idle = [f"{cause}_ms" for cause in CAUSES if not causes[f"{cause}_ms"].fill_null(0).sum()]
        return StepView(number, causes.drop(idle), reads, text)

    def timeline(
        self,
        step: int | None = None,
        around: float | None = None,
        ranks: Sequence[int] | None = None,
    ) -> "go.Figure":
        """What ranks and workers did around a step, or around a second of the run; without either,
        around the longest step.
        """
        from ioprof.report.figures import timeline

        for rank in ranks or ():
            _check("rank", rank, self.trace.ranks)
        return _shown(
            timeline(
                self.trace,
                Window(*self._window(step, around)),
                ranks or chosen_ranks(self.analysed.steps),
                is_emulated(self.summary),
            )
        )

    def _window(self, step: int | None, around: float | None) -> tuple[int, int]:
        steps = self.analysed.steps
        if step is not None and around is not None:
            raise CommandError("timeline: give step= or around=, not both")
        if around is not None:
            return around_moment(steps, round(around * 1e9))
        if step is None and not len(steps):
            raise CommandError(
                "timeline: the run has no step; give a second of the run: around=8.4"
            )
        if step is None:
            return around_longest(steps, self.summary.steps.warmup)
        if (bounds := around_step(steps, step)) is None:
            raise CommandError(f"step {step}: {self._known_steps}")
        return bounds

    @property
    def _known_steps(self) -> str:
        steps = self.analysed.steps["step"]
        return (
            f"the run has the steps {min(steps)} to {max(steps)}"
            if len(steps)
            else "the run has no step"
        )

    def throughput(self) -> "go.Figure":
        """Samples per second of each rank over time; steps per second where the batch size is not
        known.
        """
        from ioprof.report.figures import throughput

        batch, device = self.trace.run.config.batch_size, self.trace.run.device
        own = device.samples_per_s if batch and device else None
        figure = throughput(self.analysed.steps, batch or 1, own, is_emulated(self.summary))
        return _shown(figure if batch else figure.update_yaxes(title_text="steps/s of one rank"))

    def bandwidth(self) -> "go.Figure":
        """Bytes per second of reads for batches over time, by where they came from, against what
        the devices need.
        """
        from ioprof.report.bandwidth import bandwidth

        return _shown(bandwidth(self.trace, self.analysed.steps, self.summary.demand))

    def latency(self) -> "go.Figure":
        """How long reads for batches took, by where their bytes came from."""
        from ioprof.report.figures import read_latency

        return _shown(read_latency(self.trace))

    def by_cause(self, unit: str = "share") -> "go.Figure":
        """What the time of the steps went to, for each rank and for all; `unit` is `share` or
        `seconds`.
        """
        from ioprof.report.figures import time_by_cause

        return _shown(time_by_cause(self.analysed.steps, self._emulated, unit))

    def step_causes(self) -> "go.Figure":
        """What each step's time went to, for the rank that delayed it."""
        from ioprof.report.figures import step_causes

        return _shown(step_causes(self.analysed.steps, self._emulated))

    @property
    def _emulated(self) -> list[str]:
        return [entry.cause for entry in self.summary.steps.causes if entry.basis == "emulated"]

    def whatif(
        self,
        *,
        workers: int | None = None,
        prefetch: int | None = None,
        persistent_workers: bool = False,
        batch: int | None = None,
        cores: float | None = None,
        ranks: int | None = None,
        cache: str | None = None,
        layout: str | None = None,
        image: str | None = None,
        like: "Run | Path | str | None" = None,
        device: str | None = None,
        copy: str | None = None,
        **speeds: float | str | None,
    ) -> "Prediction":
        """What a change would bring, see `ioprof.whatif`."""
        from ioprof.model.changes import Change, parse_speed
        from ioprof.model.prediction import whatif
        from ioprof.report.texts.catalogue.answer import prediction_in_words

        factors = {
            cause: parse_speed(f"--{cause}", str(speed))
            for cause, speed in speeds.items()
            if speed is not None
        }
        other = None if like is None else like if isinstance(like, Run) else Run.load(like)
        change = Change(
            workers=workers,
            prefetch=prefetch,
            cores=cores,
            batch=batch,
            ranks=ranks,
            persistent_workers=persistent_workers,
            cache=cache,
            layout=layout,
            image=image,
            like=None if other is None else title(other.summary),
            device=device,
            copy=copy,
            speeds=factors,
        )
        found = whatif(self.trace, change, None if other is None else other.trace)
        return prediction_in_words(found)

    def write_html(self, path: Path | str) -> None:
        """Write the report as one page that opens offline; as `ioprof report --html`."""
        from ioprof.report.page.html import write_html

        write_html(self.trace, self.analysed.steps, self.summary, Path(path))

    def __repr__(self) -> str:
        return f"{title(self.summary)}: {headline(self.summary)}"

    def _repr_html_(self) -> str:
        from ioprof.report.card import run_card

        return run_card(self.summary)


def _shown(figure: "go.Figure") -> "go.Figure":
    """The figure, which stays visible in what is made of a notebook."""
    from ioprof.report.notebook_figure import NotebookFigure

    return NotebookFigure(figure)


def _in_ms(steps: pl.DataFrame) -> pl.DataFrame:
    times = {
        "start_ms": pl.col("start_ns") / _MS,
        "took_ms": (pl.col("end_ns") - pl.col("start_ns")) / _MS,
    }
    causes = {f"{cause}_ms": pl.col(f"{cause}_ns") / _MS for cause in CAUSES}
    return steps.select("rank", "step", **times, **causes)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _check(name: str, given: object, known: Sequence[object]) -> None:
    """CommandError, with the nearest that is known, unless it is one of those."""
    if given in known:
        return
    near = difflib.get_close_matches(str(given), [str(each) for each in known], 1, 0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise CommandError(
        f"{name} {clean(str(given), 40)!r}: not known; {hint}there are"
        f" {', '.join(map(str, known)) or 'none'}"
    )
