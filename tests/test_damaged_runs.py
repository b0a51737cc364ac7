"""A run folder that was damaged, edited or made by a stranger: an error of one line, the same
numbers, or a note."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from damaged_runs import claim_rows
from repository import PROGRAMS, ROOT

from ioprof.analysis.kept import ANALYSIS
from ioprof.errors import RunError
from ioprof.format.parquet_footer import num_rows
from ioprof.format.run_files import DERIVED, TABLES, stored_file, write_run
from ioprof.format.trace import Trace
from ioprof.recording.run_writer import write_run_folder
from ioprof.report.run import Run

RECORDED: Final = ROOT / "tests" / "data" / "runs" / "torch-script"
CASES: Final = int(os.environ.get("IOPROF_DAMAGED_RUNS", "30"))
PROGRAM: Final = ROOT / "tests" / "damaged_runs.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recorded run, written as this version writes it."""
    made = tmp_path / "made"
    made.mkdir()
    write_run_folder(Run.of(Trace.load(RECORDED), made), made)
    return made


def refusal(folder: Path) -> str:
    """Why a folder is refused."""
    with pytest.raises(RunError) as raised:
        Run.load(folder)
    (line,) = str(raised.value).splitlines()
    return line


def test_run_json_has_the_checksums_of_all_files_that_are_read(folder: Path) -> None:
    """Of the report and the log there are none: nothing is read from them. A loaded run has none:
    they are the folder's."""
    run = json.loads((folder / "run.json").read_bytes())

    there = {name for name in (*TABLES, *DERIVED) if (folder / name).exists()}
    assert there == set(run["files"])
    assert {name: stored_file(folder / name).to_dict() for name in there} == run["files"]
    loaded = Trace.load(folder).run
    assert ({}, None, ()) == (loaded.files, loaded.check, loaded.kept.damaged)


@pytest.mark.parametrize("name", ["spans.parquet", "files.parquet", "counters.parquet"])
def test_a_flipped_bit_of_a_table_is_found_wherever_it_is(folder: Path, name: str) -> None:
    """No number is made of it: the line names the file, and those that are whole."""
    whole, chance = (folder / name).read_bytes(), random.Random(name)
    for _ in range(16):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(data)

        line = refusal(folder)

        assert f"{name}: damaged (its bytes are not those that were written" in line
        assert "are whole; copy the run again" in line
    (folder / name).write_bytes(whole)
    assert () == Trace.load(folder).run.kept.damaged


def test_what_was_computed_is_computed_again_where_it_is_damaged(folder: Path) -> None:
    """The same numbers, and a note."""
    before = Run.load(folder).summary
    for name in DERIVED:
        (folder / name).write_bytes((folder / name).read_bytes()[:-1])

    found = Run.load(folder).summary

    notes = [
        f"{name} is damaged; it was not used, and what it says was computed anew"
        for name in DERIVED
    ]
    assert (before.steps, before.verdict) == (found.steps, found.verdict)
    assert notes == [text for text in found.capture.not_seen if text not in before.capture.not_seen]


def test_a_run_json_that_was_edited_loads_with_a_note(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """White space and the order of keys do not count."""
    value = json.loads((folder / "run.json").read_bytes())
    (folder / "run.json").write_text(json.dumps(value, sort_keys=True))
    assert () == Trace.load(folder).run.kept.damaged
    (folder / "run.json").write_text(json.dumps({**value, "name": "mine"}))

    loaded = Trace.load(folder).run

    assert ("mine", ("run.json",)) == (loaded.name, loaded.kept.damaged)
    assert [
        "run.json is not as ioprof wrote it" in record.getMessage() for record in caplog.records
    ] == [True]


def test_a_run_without_checksums_loads_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """Those of earlier versions have none."""
    assert "check" not in json.loads((RECORDED / "run.json").read_bytes())
    assert ((), []) == (Trace.load(RECORDED).run.kept.damaged, caplog.records)


def test_what_is_saved_is_whole(folder: Path, tmp_path: Path) -> None:
    """Wherever it is saved, its own folder and that of another run included, and whatever was noted
    of the folder it came from."""
    (folder / "summary.json").write_text("{}")
    (folder / "run.json").write_text(
        (folder / "run.json").read_text().replace('"torch-script"', '"renamed"')
    )
    trace = Trace.load(folder)
    assert ("run.json", "summary.json") == trace.run.kept.damaged
    for place in (tmp_path / "elsewhere", folder):
        trace.save(place)
        loaded = Trace.load(place)
        assert (trace.run, ()) == (loaded.run, loaded.run.kept.damaged)
        assert trace.spans.equals(loaded.spans)


def test_writing_stops_anywhere_and_no_whole_file_mismatches(folder: Path) -> None:
    """The analysis is written after the run: without its checksums it is not compared, and with
    them it is noted."""
    run = Trace.load(folder).run
    Trace.load(folder).save(folder)  # its run.json knows nothing of the analysis that is there
    for name in DERIVED:
        (folder / name).write_bytes(b"of another analysis")
        assert () == Trace.load(folder).run.kept.damaged
    write_run(folder, run, DERIVED)
    assert () == Trace.load(folder).run.kept.damaged
    write_run(folder, run.replace(name="another"))
    assert ("another", ()) == ((loaded := Trace.load(folder).run).name, loaded.kept.damaged)


@pytest.mark.job(every=4)
@pytest.mark.parametrize("is_again", [False, True])
def test_a_kill_at_any_rename_leaves_no_file_that_mismatches(
    folder: Path, tmp_path: Path, is_again: bool
) -> None:
    """Neither while a run folder is written first, nor while the same run is written there
    again."""
    program, number, code = PROGRAMS / "killed_while_writing.py", 0, -9
    while code == -9:
        written = tmp_path / str(number)
        if is_again:
            shutil.copytree(folder, written)
        code = subprocess.run(
            [sys.executable, program, folder, written, str(number)], check=False
        ).returncode
        if (written / "run.json").exists():
            assert () == Trace.load(written).run.kept.damaged
        number += 1
    assert (0, True) == (code, number > len(TABLES))


@pytest.mark.system
def test_a_save_that_fails_leaves_the_run_as_it_was(
    folder: Path, tmp_path: Path, small_disk
) -> None:
    """All is written before the first file is replaced."""
    disk = small_disk(1 << 18)
    Trace.load(folder).save(disk / "run")
    before = {path.name: path.read_bytes() for path in (disk / "run").iterdir()}
    large = Trace.load(folder)
    large = large.with_facts(
        files=large.files.with_columns(path=large.files["path"] + "x" * 7),
        run=large.run.replace(
            environment={str(number): os.urandom(99).hex() for number in range(1500)}
        ),
    )

    with pytest.raises(OSError, match="No space"):
        large.save(disk / "run")

    assert before == {path.name: path.read_bytes() for path in (disk / "run").iterdir()}


def test_a_kept_analysis_is_of_all_modules_that_analyse() -> None:
    """Those of its subjects too: another version of any of them analyses the run anew."""
    from ioprof.analysis import kept
    from ioprof.analysis.charge import blame
    from ioprof.analysis.reads import read_patterns

    assert {Path(blame.__file__), Path(read_patterns.__file__)} <= set(kept._sources())


def test_a_kept_analysis_is_used_only_for_the_run_it_was_made_of(folder: Path) -> None:
    """`analysis.json` names the checksum of run.json, which has those of all others."""
    from ioprof.analysis.kept import keep_analysis, kept_analysis

    keep_analysis(folder)
    assert kept_analysis(folder) is not None
    (folder / "steps.parquet").write_bytes((folder / "steps.parquet").read_bytes() + b"x")
    assert kept_analysis(folder) is None
    Trace.load(folder).save(folder)
    assert ((folder / ANALYSIS).exists(), None) == (True, kept_analysis(folder))


def test_a_table_is_not_loaded_that_claims_more_rows_than_it_can_have(folder: Path) -> None:
    """A stranger's table, which no checksum knows: 168 million rows took 20 GB before they were
    found not to be there."""
    run = Trace.load(folder).run
    (folder / "run.json").write_text(run.to_json())
    assert num_rows(folder / "spans.parquet") == Trace.load(folder).num_spans
    data = claim_rows(bytearray((folder / "spans.parquet").read_bytes()), 168_000_000)
    (folder / "spans.parquet").write_bytes(data)

    assert f"spans.parquet: damaged (it claims 168,000,000 rows in {len(data):,} bytes)" in refusal(
        folder
    )


def test_a_table_is_not_loaded_that_does_not_fit_in_memory(folder: Path) -> None:
    """As large as its rows need to be believed, and most of it a hole."""
    run = Trace.load(folder).run
    (folder / "run.json").write_text(run.to_json())
    data = (folder / "files.parquet").read_bytes()
    rows = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 32
    with open(folder / "files.parquet", "wb") as file:
        file.truncate(rows // 50)
        file.seek(0, 2)
        file.write(claim_rows(bytearray(data), rows))

    assert f"files.parquet: cannot be loaded (its {rows:,} rows take more than" in refusal(folder)


@pytest.mark.job(every=4)
@pytest.mark.parametrize("is_checked", [True, False])
def test_any_damage_gives_an_error_the_same_numbers_or_a_note(
    folder: Path, tmp_path: Path, is_checked: bool
) -> None:
    """Of report, compare, inspect, whatif, export and watch; `IOPROF_DAMAGED_RUNS=300` tries more.

    A run without checksums may give other numbers, but neither a traceback, nor an abort, nor a
    wait.
    """
    if not is_checked:
        (folder / "run.json").write_text(Trace.load(folder).run.to_json())
    count = CASES if is_checked else CASES // 2

    ended = subprocess.run(
        [sys.executable, PROGRAM, folder, tmp_path / "work", "0", str(count)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == ended.returncode, ended.stderr[-500:]
    *wrong, found = ended.stdout.splitlines()
    assert ([], {"refused", "same"}) == (wrong, json.loads(found).keys() - {"noted"})
