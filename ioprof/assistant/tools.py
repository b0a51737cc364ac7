"""The tools of `ioprof mcp`: each method is a tool, its docstring the description that an assistant
reads, and its parameters the arguments.
"""

import signal
import subprocess
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from ioprof import api
from ioprof.assistant import answers
from ioprof.assistant.folders import Folders
from ioprof.errors import CommandError, IoprofError
from ioprof.format.run_record.run_json import RUN_FILE
from ioprof.model.summary import with_gains
from ioprof.process import own_python
from ioprof.report.run import Run
from ioprof.report.texts.markdown import markdown
from ioprof.report.texts.prediction import prediction_lines
from ioprof.report.texts.units import clean

TOOLS: Final = (
    "list_runs",
    "answer",
    "findings",
    "evidence",
    "whatif",
    "compare",
    "slowest_reads",
    "stacks",
)
"""Those that only read."""
RECORDING_TOOL: Final = "record"
"""The one that starts a program."""
_KEPT_RUNS: Final = 4
"""Analysed runs in memory: an assistant asks several questions about one run."""
_ENDING_S: Final = 60
"""For a job to end, and its run folder to be made, after an interrupt."""
_LAST_LINES: Final = 20

RunName = Annotated[str, Field(max_length=1000, description="A run, as list_runs prints it.")]
Limit = Annotated[int, Field(ge=1, le=answers.MOST_ROWS)]
Speed = Annotated[
    str | None, Field(max_length=20, description="A factor such as 2x, or none: at no cost.")
]
Whole = Annotated[int | None, Field(ge=0, le=100_000)]


class Tools:
    """The tools over the runs in `folders`; `environment` is that of recorded commands."""

    def __init__(self, folders: Folders, environment: Mapping[str, str]) -> None:
        self._folders, self._environment = folders, environment
        self._kept = lru_cache(_KEPT_RUNS)(_analysed)

    def list_runs(
        self, contains: Annotated[str, Field(max_length=200)] = "", limit: Limit = 20
    ) -> str:
        """List the recorded runs, the newest first, with the answer of each. `contains`: only runs
        whose name has this text.
        """
        names = {self._folders.name(folder): folder for folder in self._folders.runs()}
        chosen = [(name, folder) for name, folder in names.items() if contains in name]
        chosen.sort(key=lambda each: -(each[1] / RUN_FILE).stat().st_mtime)
        rows: list[dict[str, object]] = []
        for name, _ in chosen[:limit]:
            try:
                rows.append(answers.row_of_run(name, self._run(name).summary))
            except IoprofError as error:
                rows.append({"run": name, "error": clean(str(error), 300)})
        return answers.as_json({"runs": rows, "total": len(chosen)})

    def answer(self, run: RunName) -> str:
        """What a run waited for and what to change, with evidence, gains and limits, as Markdown.
        Call this first.
        """
        found = self._run(run)
        return answers.bounded(markdown(found.summary, found.steps))

    def findings(self, run: RunName) -> str:
        """All changes that could make a run faster, numbered, the best first, with predicted
        speed-up and its 95 % range.
        """
        return answers.as_json({"findings": answers.findings(self._run(run).summary)})

    def evidence(self, run: RunName, finding: Annotated[int, Field(ge=1, le=1000)] = 1) -> str:
        """What was measured that supports a finding: its cause, lines of code, reads, and
        statements. `finding`: its number in `findings`.
        """
        return answers.as_json(answers.evidence(self._run(run).summary, finding))

    def whatif(
        self,
        run: RunName,
        workers: Whole = None,
        prefetch: Whole = None,
        batch: Whole = None,
        ranks: Whole = None,
        cores: Annotated[float | None, Field(gt=0, le=100_000)] = None,
        persistent_workers: bool = False,
        cache: Annotated[str | None, Field(max_length=20, description="warm or cold")] = None,
        storage: Speed = None,
        decode: Speed = None,
        transform: Speed = None,
        collate: Speed = None,
        compute: Speed = None,
        exchange: Speed = None,
    ) -> str:
        """Predict what a change brings by a replay of the recorded pipeline, with the error of the
        replay and a 95 % range. Nothing is run.
        """
        found = api.whatif(
            self._folders.run(run),
            workers=workers,
            prefetch=prefetch,
            batch=batch,
            ranks=ranks,
            cores=cores,
            persistent_workers=persistent_workers,
            cache=cache,
            storage=storage,
            decode=decode,
            transform=transform,
            collate=collate,
            compute=compute,
            exchange=exchange,
        )
        return answers.bounded("\n".join(prediction_lines(found)))

    def compare(self, runs: Annotated[list[RunName], Field(min_length=2, max_length=8)]) -> str:
        """Compare runs with the first: rates with intervals, which causes differ, and what changed
        in command, code, versions, host, data and cache.
        """
        return answers.bounded(str(api.compare(*(self._folders.run(name) for name in runs))))

    def slowest_reads(self, run: RunName, limit: Limit = 10) -> str:
        """The slowest single reads of a run, and the files that took most time."""
        return answers.as_json(answers.slowest_reads(self._run(run).summary, limit))

    def stacks(
        self,
        run: RunName,
        cause: Annotated[
            str | None,
            Field(max_length=40, description="Such as loader, host, or workers; default: all."),
        ] = None,
        limit: Limit = 10,
    ) -> str:
        """The sampled lines of Python behind a cause, and the most frequent whole stacks."""
        found = self._run(run)
        return answers.as_json(
            {
                "lines": answers.lines(found.summary, cause, limit),
                "stacks": answers.stacks(found.trace, limit),
            }
        )

    def record(
        self,
        command: Annotated[
            list[Annotated[str, Field(max_length=4000)]],
            Field(min_length=1, max_length=200, description="The program and its arguments."),
        ],
        seconds: Annotated[int, Field(ge=1, le=3600)] = 600,
    ) -> str:
        """Run a command in the first folder of this server, record it, and return its answer. After
        `seconds` it is interrupted, and the answer is of what it did until then.
        """
        out = self._new_folder()
        words = [*own_python(), "-m", "ioprof", "record", "--quiet", "--out", str(out), "--"]
        log = out.with_name(f"{out.name}.log")
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*words, *command],
                cwd=self._folders.roots[0],
                env=dict(self._environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code = _end_of(process, seconds)
        name = self._folders.name(out)
        if not (out / RUN_FILE).is_file():
            said = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
            raise CommandError(
                f"no run was made (exit code {code}); the last lines:"
                f" {clean(' / '.join(said), 2000)}"
            )
        return answers.bounded(f"run: {name}\nexit code: {code}\n\n{self.answer(name)}")

    def _new_folder(self) -> Path:
        """A run folder in the first root that is not there yet."""
        first = self._folders.roots[0] / time.strftime("run-%Y%m%d-%H%M%S")
        number, out = 1, first
        while out.exists():
            number, out = number + 1, first.with_name(f"{first.name}-{number}")
        return out

    def _run(self, name: str) -> Run:
        folder = self._folders.run(name)
        return self._kept(folder, (folder / RUN_FILE).stat().st_mtime_ns)


def _analysed(folder: Path, _changed_ns: int) -> Run:
    return with_gains(Run.load(folder), is_asked=False)


def _end_of(process: "subprocess.Popen[bytes]", seconds: float) -> int:
    """The exit code of `ioprof record`, which is interrupted after `seconds`."""
    for wait_s, number in ((seconds, signal.SIGINT), (_ENDING_S, signal.SIGKILL)):
        try:
            return process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    return process.wait()
