"""Makes the recordings that tests replay (`stored.py`) anew: `make recordings`, on a machine that
does nothing else.

    python tests/make_recordings.py [--only WORDS] [--keep FOLDER] [--pack]

Each case of the fault suite is recorded until its report is right, while other programs used less
than `MOST_OTHERS` of a core; at most `ATTEMPTS` times. In FOLDER, by default `build/recordings`,
are the recordings themselves: what is there is not recorded again, so that this goes on where it
was interrupted. `--pack` records nothing, and makes the archives of what is there. With `--only`
the other recordings stay in the archives.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import polars as pl
import pytest
import stored
from faults import all_cases
from faults.case import Case, outcome_of, run_case
from repository import PROGRAMS, ROOT

from ioprof.converters import GenerateOptions, generate
from ioprof.format.run_record import RunRecord
from ioprof.format.trace import Trace
from ioprof.ingest import read_spool
from ioprof.recording.used_storage import with_storage

ATTEMPTS: Final = 4
MOST_OTHERS: Final = 1.2
"""Processes of a job that nobody waited for count as others."""


def recorded(case: Case, images: Path, folder: Path) -> stored.Files:
    """A recording of the case."""
    output = run_case(case, images, folder, (sys.executable, PROGRAMS / "keep_spool.py", folder))
    known = json.loads((folder / "run.json").read_text())
    trace = with_storage(read_spool(folder / "spool", RunRecord.of(known)))
    known["storage"] = [each.to_dict() for each in trace.run.storage]
    record = json.dumps({"run": known, "folders": _folders(trace), "output": output})
    files = stored.spool_files(folder / "spool") | {stored.RECORD: record.encode()}
    return {name: stored.neutral(content) for name, content in files.items()}


def _folders(trace: Trace) -> list[tuple[str, str | None, str | None]]:
    """File system and device by the folder of the files that were read."""
    files = trace.files.drop_nulls(["path", "file_system"]).with_columns(
        folder=pl.col("path").str.replace("/[^/]*$", "")
    )
    return files.group_by("folder").agg(pl.first("file_system", "device")).sort("folder").rows()


def others(files: stored.Files) -> float:
    """How much of a core other programs used; 0: it is not known."""
    hosts = json.loads(files[stored.RECORD])["run"]["hosts"]
    return max((host["others_cpu_ratio"] or 0.0) * (host["online_cpus"] or 1) for host in hosts)


def wrong_in(case: Case, files: stored.Files) -> list[str]:
    """What the report of the recording says otherwise than it must."""
    with tempfile.TemporaryDirectory() as folder:
        run, output = stored.replay(files, Path(folder) / "spool")
        return outcome_of(run, output).faults_of(case)


def record_case(case: Case, images: Path, kept: Path) -> str:
    """Record a case into the folder `kept`; returns how that went."""
    tried = []
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            try:
                whole = recorded(case, images, Path(folder))
            except pytest.skip.Exception as skipped:
                return f"skipped: {skipped}"
        if (busy := others(whole)) > MOST_OTHERS:
            tried.append(f"others used {busy:.2f} cores")
            continue
        for files in [stored.thinned(whole), whole] if case.phase is None else [whole]:
            wrong = wrong_in(case, files)
            if not wrong:
                kept.mkdir(parents=True)
                for name, content in files.items():
                    (kept / name).write_bytes(content)
                return "recorded" if files is not whole else "recorded, not thinned"
        tried.append("; ".join(wrong))
    return " | ".join(tried)


def main() -> None:
    """Record what is asked for, and make the archives."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose subject and name contain this")
    parser.add_argument(
        "--keep", type=Path, default=ROOT / "build" / "recordings", metavar="FOLDER"
    )
    parser.add_argument("--pack", action="store_true", help="record nothing")
    options = parser.parse_args()
    os.chdir(ROOT)
    cases: list[tuple[str, Case]] = []
    for subject, case in all_cases():
        if options.only in f"{subject}: {case.name}":
            cases.append((subject, case))
    # those that the tests replay come first
    cases.sort(key=lambda each: bool(each[1].like or each[1].unsettled))
    with tempfile.TemporaryDirectory() as folder:
        images = Path(folder) / "images"
        generate(images, GenerateOptions(images=72, classes=2, workers=1))
        for subject, case in cases if not options.pack else []:
            kept = options.keep / subject / stored.slug(case.name)
            if not kept.exists():
                start_s = time.monotonic()
                said = record_case(case, images, kept)
                print(
                    f"{subject}: {case.name}: {said} ({time.monotonic() - start_s:.0f} s)",
                    flush=True,
                )
    for subject in sorted({subject for subject, _ in cases}):
        folders = (
            sorted((options.keep / subject).iterdir()) if (options.keep / subject).is_dir() else []
        )
        if folders:
            known = (
                {name: stored.recording(subject, name) for name in stored.names(subject)}
                if options.only
                else {}
            )
            recordings = known | {each.name: stored.spool_files(each) for each in folders}
            size = stored.write_archive(subject, recordings)
            print(f"{subject}: {len(recordings)} recordings, {size / 1000:,.0f} kB")
    if not options.only:
        stored.write_about()


if __name__ == "__main__":
    main()
