"""run.json and summary.json as types: nothing is lost on the way in and out, and runs of earlier
versions keep their summaries."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repository import ROOT

from ioprof.errors import RunError
from ioprof.format.run_record import (
    CaptureRecord,
    Failure,
    FailureCode,
    HostRecord,
    JobKind,
    RankTime,
    Reason,
    RunRecord,
    SampledSeries,
    Summary,
    merge,
)
from ioprof.format.run_record.json_schema import FILES, json_schema
from ioprof.format.run_record.reasons import reason_in
from ioprof.format.schema import CAUSES, RUN_SCHEMA
from ioprof.report.run import Run

DATA: Final = ROOT / "tests" / "data"
RUNS: Final = sorted(path.parent for path in DATA.glob("*/*/summary.json"))
"""Runs that were recorded, and summaries that were made, before run.json and summary.json became
types: three of the built-in job on an emulated device, one on the CPU with staging, a cold page
cache and a memory limit, and one script with torch's loader."""

WORDING: Final = {"text", "action", "reason", "not_seen"}
"""Keys of sentences for people, whose wording may change."""
ADDED: Final = {
    "evaluations",
    "slowest",  # reads of programs are none of data
    "ledger",
    "saves",
    "reason_code",
    "code",
    "signal",
    "job",
    "details",
    "unexplained_ratio",
    "cpu",
    "native",
    "overhead_reason",
    "overhead_ratio_most",
    "whole_job",
    "missing",
    "attempts",
    "time_ns",
    "pid",
    "storage_bytes_kernel",
    "storage_bytes_calls",
    "storage_bytes_faults",
    "storage_bytes_seen",
    "storage_coverage_ratio",
    "mapped_bytes_untimed",
    "mapped_bytes_imports",
    "bytes_socket",
    "bytes_pipe",
    "received",
    "stores",
    "unexplained",
    "libraries",
    "loading_rank",
    "doubts",
    "phase",
    "ceilings",
    "collectives",
    "replay",
    "prediction",
    "workers_share",
    "gain",
    "is_delivered",
    "is_least",
    "num_reads",
    "num_devices",
    "got_bytes_per_s",
    "devices_fed",
    "cores",
    "mean_bytes_per_s",
    "tenths_bytes_per_s",
    "by_loop",
    "findings",
    "offset",
    "first_epoch",
    "parallel",
    "stages",
    "microbatches",
    "start_ns",
    "beside_processes",
    "beside_cores",
    "beside_threads",
    "beside_programs",
    "program",
    "changed",
    "untimed",
    "negligible",
    "thread_accesses",
    "thread_bytes",
    "cpu_limits",
    "file_bytes",
    "times_read",
    "imported_from",
    "found_by",
    "period_kernels",
    "device_time",
    "import_damage",
    "uring_bytes_untimed",
    "uring_processes",
    "folder",
    "gaps",
    "negligible_gaps",
    "reason_facts",
    "facts",
    "why",
}
"""Keys that earlier versions did not write."""
CHARGED: Final = {
    "causes", "per_rank", "bound_by", "advice", "findings", "sentences", "candidates",
    "device_waits", "behind_peers",
}  # fmt: skip
"""Keys that depend on how time is charged, see `test_time_of_a_run_recorded_before`."""
TIMED: Final = {"read_p50_s", "read_p95_s", "read_p99_s"}
"""Percentiles of reads: earlier versions counted accesses without a time of their own as reads of 0
s."""

names = [f"{path.parent.name}/{path.name}" for path in RUNS]


def without(value: Any, keys: set[str]) -> Any:
    """A JSON value without the values of these keys, on every level."""
    if isinstance(value, dict):
        return {key: without(entry, keys) for key, entry in value.items() if key not in keys}
    return [without(entry, keys) for entry in value] if isinstance(value, list) else value


@pytest.mark.parametrize("folder", RUNS, ids=names)
def test_a_run_recorded_before_has_the_same_summary(folder: Path) -> None:
    """To the last digit; only sentences may be worded anew, and codes stand beside them. Causes are
    those of schema 2."""
    found = json.loads(Run.load(folder).summary.to_json())
    expected = json.loads(Summary.from_json((folder / "summary.json").read_text()).to_json())
    left_out = WORDING | ADDED | CHARGED | TIMED
    assert without(expected, left_out) == without(found, left_out)
    assert all(expected["storage"][name] <= found["storage"][name] for name in TIMED)
    assert len(expected["steps"]["per_rank"]) == len(found["steps"]["per_rank"])
    assert len(expected["capture"]["not_seen"]) == len(found["capture"]["not_seen"]) + len(
        found["capture"]["negligible"]
    )


@pytest.mark.parametrize("folder", RUNS, ids=names)
def test_time_of_a_run_recorded_before(folder: Path) -> None:
    """Since then the main thread's own reads, faults and decoding are charged first: time moved to
    these causes and from the others. Batches that their worker's next one kept from being sent are
    charged to that, not to delivery.

    The exchange and all sums stay; what the run did not record is null with a reason.
    """
    causes = (
        found.steps.causes
        for found in (
            Run.load(folder).summary,
            Summary.from_json((folder / "summary.json").read_text()),
        )
    )
    new, old = ({entry.cause: entry for entry in entries} for entries in causes)
    assert list(CAUSES) == list(new) == list(old)
    for cause in CAUSES:
        before, after = old[cause].seconds, new[cause].seconds
        assert (before is None) == (after is None)
        if before is None or after is None:
            assert old[cause].reason_code == new[cause].reason_code
        elif cause in ("exchange", "h2d"):
            assert before == pytest.approx(after, abs=1e-9)
        elif cause in ("compute", "straggler", "delivery", "loader", "host"):
            kept_back = (
                (old["delivery"].seconds or 0.0) - (new["delivery"].seconds or 0.0)
                if cause == "loader"
                else 0.0
            )
            assert before + kept_back >= after - 1e-9
    total, new_total = (
        sum(entry.seconds or 0.0 for entry in entries.values()) for entries in (old, new)
    )
    assert total == pytest.approx(new_total)


def test_a_summary_without_straggler_waits_is_not_divided() -> None:
    """What earlier versions called `communication` is all `exchange` then, and the reason says so;
    other waits are null."""
    value = json.loads((DATA / "runs" / "own-job" / "summary.json").read_text())
    joint = next(entry for entry in value["steps"]["causes"] if entry["cause"] == "communication")
    del value["steps"]["behind_peers"]
    found = {entry.cause: entry for entry in Summary.from_json(json.dumps(value)).steps.causes}
    assert (joint["seconds"], Reason.INCLUDES_STRAGGLER_WAIT) == (
        found["exchange"].seconds,
        found["exchange"].reason_code,
    )
    assert (None, Reason.NOT_DISTINGUISHED) == (
        found["straggler"].seconds,
        found["straggler"].reason_code,
    )


@pytest.mark.parametrize("folder", RUNS, ids=names)
def test_a_run_json_is_written_as_it_was_read(folder: Path) -> None:
    """Every key and value, in order."""
    text = (folder / "run.json").read_text()
    record = RunRecord.from_json(text)
    assert (text, ()) == (record.to_json() + "\n", record.problems)


@pytest.mark.parametrize("folder", RUNS, ids=names)
def test_a_summary_is_read_back(folder: Path) -> None:
    """A new one is the same; one that was written before codes gets them from its sentences."""
    summary = Run.load(folder).summary
    assert summary.to_json() == Summary.from_json(summary.to_json()).to_json()
    old = Summary.from_json((folder / "summary.json").read_text())
    assert old.to_json() == Summary.from_json(old.to_json()).to_json()
    assert {name: entry.reason_code for name, entry in summary.overlap.items()} == {
        name: entry.reason_code for name, entry in old.overlap.items()
    }
    assert summary.run.job == old.run.job


@pytest.mark.parametrize("name", FILES)
def test_the_committed_schemas_are_those_of_the_types(name: str) -> None:
    """To renew them: python -m ioprof.format.run_record."""
    assert json.loads(json.dumps(json_schema(FILES[name]))) == json.loads(
        (ROOT / "docs" / name).read_text()
    )


@pytest.mark.parametrize("name", FILES)
def test_every_record_says_what_it_is(name: str) -> None:
    """Records have docstrings, and fields whose unit or meaning the name does not say have a
    description."""
    parts = json_schema(FILES[name])["$defs"]
    assert [] == [
        key
        for key, part in parts.items()
        if part.get("type") == "object" and not part.get("description")
    ]
    assert (
        "samples per step and rank"
        in parts.get("ConfigRecord", parts.get("RunSummary"))["properties"]["batch_size"][
            "description"
        ].lower()
    )


# ----------------------------------------------------------------------------------------- any JSON

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS: Final = [*RunRecord.__struct_fields__[1:], "kept", "_kept", "later"]


@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        json_values | st.dictionaries(st.sampled_from(["name", "of", "kept", "x"]), json_values),
    )
)
def test_nothing_that_is_read_is_lost(value: dict[str, Any]) -> None:
    """Whatever a key holds, also where it does not fit: it is written again as it was."""
    document = {"schema": RUN_SCHEMA, **value}
    assert document == RunRecord.of(document).to_dict()


def test_unknown_keys_survive_a_change_of_their_neighbours() -> None:
    """On every level; a value that did not fit is gone once its field is set."""
    record = RunRecord.of(
        {
            "later": 1,
            "hosts": [{"name": "a", "later": [2]}],
            "stage": 7,
            "config": {"ranks": 2, "later": 3},
        }
    )
    hosts = tuple(host.replace(cpus=4) for host in record.hosts)
    changed = record.replace(hosts=hosts, exit_code=3).to_dict()
    assert {
        "later": 1,
        "stage": 7,
        "config": {"ranks": 2, "later": 3},
        "exit_code": 3,
    }.items() <= changed.items()
    assert [{"name": "a", "later": [2], "cpus": 4}] == changed["hosts"]
    assert ["stage is 7, not an object"] == [str(problem) for problem in record.problems]


def test_a_value_that_does_not_fit_is_named_in_the_report(tmp_path: Path) -> None:
    """A damaged part counts as not recorded, and the report says so; the parts without which
    nothing can be said are refused."""
    run = Run.load(DATA / "runs" / "own-job")
    run.trace.save(tmp_path / "run")
    content = json.loads((tmp_path / "run" / "run.json").read_text())
    spoiled = tmp_path / "spoiled.json"  # the file of the run itself must fit its schema in the end
    for key, value in (("stage", {**content["stage"], "seconds": "long"}), ("limit", [1])):
        spoiled.write_text(json.dumps({**content, key: value}))
        record = RunRecord.from_json(spoiled.read_text())
        found = Run.of(
            type(run.trace)(record, run.trace.spans, run.trace.files, run.trace.counters)
        ).summary
        assert any(f"run.json: {key}" in sentence for sentence in found.capture.not_seen)


@pytest.mark.parametrize("value", ["two", True, -1, 2**20 + 1, 1.5])
def test_true_is_no_number_and_a_number_no_text(value: Any) -> None:
    """`bool` is an `int` in Python, but not in a run."""
    record = RunRecord.of({"config": {"ranks": value}, "name": 5})
    assert (None, None) == (record.config.ranks, record.name)
    assert {"config.ranks", "name"} == {
        problem.path for problem in record.problems if problem.essential
    }


def test_a_damaged_summary_is_one_error() -> None:
    """That names the key."""
    text = (DATA / "demo" / "lmdb" / "summary.json").read_text()
    with pytest.raises(RunError, match=r"verdict.text"):
        Summary.from_json(text.replace('"text":', '"word":'))
    with pytest.raises(RunError, match=r"not a summary"):
        Summary.from_json("{}")


# -------------------------------------------------------------------------------------------- codes


@pytest.mark.parametrize(
    ("what", "code", "signal"),
    [
        ("was killed by SIGKILL", FailureCode.KILLED, "SIGKILL"),
        (
            "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed. ",
            FailureCode.KILLED,
            "SIGKILL",
        ),
        ("ended without saying why", FailureCode.SILENT, None),
        ("python exited with 1", FailureCode.ERROR, None),
        ("ValueError: no skill, the killer", FailureCode.ERROR, None),
        (
            "ioprof was killed before the job ended; how the job ended is not known",
            FailureCode.RECORDER_KILLED,
            None,
        ),
    ],
)
def test_failures_of_earlier_versions_get_their_codes(
    what: str, code: FailureCode, signal: str | None
) -> None:
    """From their sentences, when they are read; a failure may be a text alone."""
    for entry in ({"rank": 1, "what": what}, what):
        (failure,) = RunRecord.of({"failures": [entry]}).failures
        assert (code, signal, what) == (failure.code, failure.signal, failure.what)
    assert (code, signal) == (Failure.from_text(1, what).code, Failure.from_text(1, what).signal)


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_sentence_that_leads_back_to_it(reason: Reason) -> None:
    """But for the two that say the same of an overlap and of a cause."""
    assert reason.text
    assert reason_in(reason.text) in (reason, Reason.NO_EXCHANGE_OCCURRED)


def test_notes_of_samplers_name_the_file_systems_that_they_are_about() -> None:
    """The first note of each counts."""
    notes = [
        "Lustre: osc/stats is not sampled: root",
        "mountstats is not readable",
        "Lustre: osc/stats again",
        "no GPU",
    ]
    series = SampledSeries.of({"notes": notes})
    assert {"lustre": notes[0], "nfs": notes[1], "nfs4": notes[1]} == series.unsampled


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"loader": "lmdb", "steps": 100}, JobKind.BUILT_IN),
        ({"loader": "torch DataLoader", "prefetch": 2}, JobKind.TORCH),
        ({"loader": "DALI"}, JobKind.DALI),
        ({}, JobKind.OTHER),
    ],
)
def test_the_kind_of_job_is_known_by_its_settings(config: dict[str, Any], kind: JobKind) -> None:
    """Only the built-in job records how many steps it was asked for."""
    assert kind == RunRecord.of({"config": config}).job_kind


# ------------------------------------------------------------------------------------------ merging


def test_a_merge_keeps_what_any_record_knows() -> None:
    """The first that knows a field counts, or the rule for it; unknown keys are kept."""
    one = HostRecord.of({"name": "a", "cpus": 2, "mine": 1})
    other = HostRecord.of({"name": "b", "cpus": 4, "kernel": "6", "yours": None})
    assert {"name": "a", "cpus": 4, "mine": 1, "kernel": "6", "yours": None} == merge(
        [one, other], {"cpus": max}
    ).to_dict()
    assert (
        False
        is merge([CaptureRecord(reads=True), CaptureRecord(reads=False)], {"reads": all}).reads
    )


def test_each_cause_has_its_seconds() -> None:
    """A rank's row names every cause, in the order of the reports."""
    assert [f"{cause}_s" for cause in CAUSES] == list(RankTime.__struct_fields__[3:-1])
