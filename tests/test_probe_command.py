"""`ioprof probe`: what it reads, what it prints, and that bad usage gives one clear line."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_datasets import made
from repository import ROOT

from ioprof.cli import main
from ioprof.format.dataset import MANIFEST_NAME
from ioprof.report.page.page_file import is_page
from ioprof.report.page.probe_page import page
from ioprof.storage.probe.scratch import PREFIX

QUICK = ("--clients", "2", "--seconds", "20", "--max-bytes", "4M")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """80 small files, and one of 6 MB."""
    root = tmp_path_factory.mktemp("folder")
    (root / "small").mkdir()
    for number in range(80):
        (root / "small" / str(number)).write_bytes(os.urandom(2000 + number))
    (root / "large").write_bytes(os.urandom(6_000_000))
    return root


@pytest.fixture(scope="module", params=["files", "lmdb", "webdataset"])
def dataset(request, small_tree, tmp_path_factory):
    """36 images in each layout."""
    return made(
        small_tree, tmp_path_factory.mktemp("dataset") / request.param, layout=request.param
    )


def facts(capsys, *arguments):
    """What `ioprof probe --json` prints."""
    assert 0 == main(["probe", "--json", *map(str, arguments)]), capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


# ------------------------------------------------------------------------------------- what is read


def test_a_dataset_is_read_by_its_own_records(capsys, dataset):
    """For each layout: each test of the plan, within the budget, with the record sizes of the
    dataset."""
    found = facts(capsys, dataset.path, *QUICK)
    assert {"path": str(dataset.path), "name": dataset.name, "layout": dataset.layout} == found[
        "dataset"
    ]
    quantiles = dataset.record_bytes_quantiles
    assert quantiles["min"] <= found["record_bytes_mean"] <= quantiles["max"]
    assert found["bytes"] == sum(level["bytes"] for level in found["levels"]) <= 4 << 20
    tests = {level["test"] for level in found["levels"]} | {
        entry["test"] for entry in found["missing"]
    }
    assert {"open", "sequential", "random"} == tests
    assert ("whole" in found["read"]) == (dataset.layout == "files")


def test_a_dataset_below_the_path_is_read_itself(capsys, dataset):
    """Also by a link to it."""
    found = facts(capsys, dataset.path.parent, "--dataset", dataset.path, *QUICK)
    assert found["read"] == facts(capsys, dataset.path, *QUICK)["read"]


def test_other_files_are_read_as_the_records_are_long(capsys, dataset, folder):
    """The rates of a path for the record sizes of a dataset stored elsewhere."""
    found = facts(capsys, folder, "--dataset", dataset.path, *QUICK)
    quantiles = dataset.record_bytes_quantiles
    assert quantiles["min"] <= found["record_bytes_mean"] <= quantiles["max"]
    assert found["read"].startswith("ranges as long as the records of")


def test_scratch_files_are_read_and_removed(capsys, dataset, tmp_path):
    """At the dataset's sizes where one is named; afterwards the folder is as it was."""
    found = facts(capsys, tmp_path, "--dataset", dataset.path, "--scratch", "1M", *QUICK)
    assert 1 << 20 == found["scratch_bytes"]
    assert "scratch" in found["read"]
    assert ("whole" in found["read"]) == (dataset.layout == "files")
    assert any(level["test"] == "random" for level in found["levels"])
    assert [] == list(tmp_path.iterdir())


def test_a_folder_and_a_file_need_no_dataset(capsys, folder):
    """Small files are read whole, a large one in ranges of the requested length."""
    assert None is facts(capsys, folder / "small", *QUICK)["dataset"]
    found = facts(capsys, folder / "large", "--record-bytes", "10000", *QUICK)
    assert (10_000.0, "ranges of 10,000 bytes, in 1 file") == (
        found["record_bytes_mean"],
        found["read"],
    )


def test_names_that_are_no_text_are_read(capsys, tmp_path):
    """File names are bytes; the folder's own may be, too."""
    place = os.fsencode(tmp_path) + b"/\xff[red]<b>\x1b[31m\n"
    Path(os.fsdecode(place)).mkdir()
    for number in range(20):
        Path(os.fsdecode(place + b"/\xfe%d" % number)).write_bytes(os.urandom(5000))
    assert 20 * 5000 == max(
        level["bytes"] for level in facts(capsys, os.fsdecode(place), *QUICK)["levels"]
    )
    assert 0 == main(["probe", os.fsdecode(place), *QUICK])
    assert "\x1b" not in capsys.readouterr().out


# ------------------------------------------------------------------------------------- what is said


def test_the_table_and_its_sentences(capsys, folder):
    """A row for each level, what was not measured and why, what was spent, and what to type
    next."""
    assert 0 == main(["probe", str(folder / "large"), *QUICK[:-1], "400M"])
    said = capsys.readouterr()
    rows = [
        line.split()[:3]
        for line in said.out.splitlines()
        if line.startswith(("sequential", "random"))
    ]
    assert [
        [test, mode, str(clients)]
        for test in ("sequential", "random")
        for clients in (1, 2)
        for mode in ("buffered", "direct")
    ] == rows
    assert re.search(r"^Random record reads, buffered: 1 client .*/s \(", said.out, re.MULTILINE)
    assert (
        "Not measured: open buffered with 1, 2: needs many small files that no process here has"
        " opened yet" in said.out
    )
    assert re.search(
        r"^Took .* of 20\.0 s and .* of 419 MB; of 8 levels ended ", said.out, re.MULTILINE
    )
    assert re.search(r"^Measuring took .* between two\.$", said.out, re.MULTILINE)
    assert said.err.splitlines()[-1].startswith("next: ioprof probe ")


def test_the_page_is_one_file(capsys, folder, tmp_path):
    """Written in addition to the table, and not overwritten without --force."""
    html = tmp_path / "probe.html"
    assert 0 == main(["probe", str(folder / "large"), *QUICK, "--html", str(html)])
    text = html.read_text()
    assert "default-src &#x27;none&#x27;" in text
    assert 1 == text.count("<h1>")
    assert not is_page(html)  # of runs: no report replaces it either
    assert all(f'id="figure-{name}-0"' in text for name in ("rates", "times"))
    capsys.readouterr()
    assert 2 == main(["probe", str(folder / "large"), *QUICK, "--html", str(html)])
    assert "is there already; replace it with --force" in capsys.readouterr().err


def test_nothing_in_a_page_is_taken_for_markup(capsys, folder):
    """Paths, names of hosts and reasons come from outside."""
    found = facts(capsys, folder / "large", *QUICK)
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b"
    found.update(path=evil, host=evil, read=evil, began=evil, storage_lines=[[evil, evil]])
    found["missing"] = [{**entry, "reason": evil} for entry in found["missing"]]
    for level in found["levels"]:
        level.update(failed={evil: 3}, stayed_bytes=None, stayed_by=evil)
    text = page(found)
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "\x1b" not in text


def test_a_page_without_a_level_says_so(capsys, folder):
    """Where nothing could be measured there is nothing to draw."""
    found = facts(capsys, folder / "large", *QUICK)
    assert "Nothing to show" in page({**found, "levels": []})


# ---------------------------------------------------------------------------------- what is refused

HOSTILE = [
    (["--clients", "0"], "--clients 0: give 1 to 256"),
    (["--clients", "-4"], "--clients -4"),
    (["--clients", "257"], "--clients 257"),
    (["--clients", "1e3"], "--clients 1e3: give a whole number"),
    (["--seconds", "0"], "--seconds 0"),
    (["--seconds", "-1"], "--seconds -1"),
    (["--seconds", "nan"], "--seconds nan"),
    (["--seconds", "inf"], "--seconds inf"),
    (["--seconds", "1e300"], "--seconds 1e+300"),
    (["--max-bytes", "0"], "--max-bytes '0': give 1 to"),
    (["--max-bytes", "-1"], "give bytes with a unit"),
    (["--max-bytes", ""], "give bytes with a unit"),
    (["--max-bytes", "2X"], "give bytes with a unit"),
    (["--max-bytes", "1e9"], "give bytes with a unit"),
    (["--max-bytes", "١٢"], "give bytes with a unit"),
    (["--max-bytes", "9" * 5000], "give bytes with a unit"),
    (["--max-bytes", "999999999999T"], "--max-bytes"),
    (["--record-bytes", "0"], "--record-bytes '0'"),
    (["--record-bytes", "2G"], "--record-bytes '2G': give 1 to 1073741824"),
    (
        ["--record-bytes", "1G"],
        "its 6000000 bytes hold no record of 1073741824 bytes; give --record-bytes",
    ),
    (["--scratch", "1K"], "--scratch '1K'"),
    (["--scratch", "1M"], "writes below a folder, and this is a file"),
    (["--dataset", "/nowhere"], "/nowhere: no such folder"),
    (["--html", "/nowhere/probe.html"], "there is no folder /nowhere"),
]


@pytest.mark.parametrize(("options", "message"), HOSTILE, ids=lambda value: str(value)[:40])
def test_what_is_typed_wrong_gets_one_line(capsys, folder, options, message):
    """It says what was typed and what to type; nothing is read."""
    assert 2 == main(["probe", str(folder / "large"), *options])
    said = capsys.readouterr()
    assert "" == said.out
    assert 1 == len(said.err.splitlines()), said.err
    assert message in said.err


def test_a_path_that_holds_nothing_gets_one_line(capsys, tmp_path):
    """No such path, a named pipe, a device, an empty folder, a broken manifest: never waited for,
    never a traceback."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / MANIFEST_NAME).write_text("{")
    expected = {
        tmp_path / "missing": "no such file or folder; name one to read",
        tmp_path / "pipe": "neither a file nor a folder",
        "/dev/zero": "neither a file nor a folder",
        tmp_path / "empty": "holds no file to read",
        tmp_path / "broken": "not JSON",
    }
    for path, message in expected.items():
        assert 2 == main(["probe", str(path), *QUICK])
        said = capsys.readouterr().err.splitlines()
        assert [True] == [message in line for line in said], said


def test_a_dataset_has_its_own_record_sizes(capsys, dataset):
    """Two answers to one question are refused."""
    assert 2 == main(["probe", str(dataset.path), "--record-bytes", "100K"])
    assert "have their own lengths" in capsys.readouterr().err


def test_a_file_that_is_missing_is_named(capsys, small_tree, tmp_path):
    """The dataset lists it, and the probe meant to read it."""
    dataset = made(small_tree, tmp_path / "dataset")
    gone = next(dataset.data_path.glob("*/*.JPEG"))
    gone.unlink()
    assert 1 == main(["probe", str(dataset.path), *QUICK])
    assert f"{gone}: cannot be read (No such file or directory)" in capsys.readouterr().err.replace(
        "\n", " "
    )


@pytest.mark.job
def test_a_signal_removes_the_scratch_files(tmp_path):
    """What a scheduler sends ends a probe as Ctrl-C does: nothing is left, and the exit code says
    so."""
    line = [
        sys.executable,
        "-m",
        "ioprof",
        "probe",
        str(tmp_path),
        "--scratch",
        "64M",
        "--seconds",
        "600",
        "--max-bytes",
        "1T",
    ]
    running = subprocess.Popen(
        line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while running.poll() is None and not list(tmp_path.glob(f"{PREFIX}*/*")):
        os.sched_yield()
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert (130, False) == (running.returncode, "Traceback" in said)
    assert [] == list(tmp_path.iterdir())
