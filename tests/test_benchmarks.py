"""Programs of benchmarks/: what they do without arguments, and what they write."""

import os
import sys
from pathlib import Path

import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import result_files
import small_steps


def test_small_steps_measures_all_kinds_of_loops(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without arguments, as `make bench` calls it; with some only these, if there are such."""
    both = small_steps.Measured(100.0, 5.0), small_steps.Measured(99.0, 5.1, (0.001, 0.02))
    monkeypatch.setattr(small_steps, "pair", lambda *_: both)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for arguments, kinds in (([], small_steps.KINDS), (["rnn", "dqn"], ("rnn", "dqn"))):
        monkeypatch.setattr(sys, "argv", ["small_steps.py", *arguments])
        small_steps.main()
        lines = capsys.readouterr().out.splitlines()
        assert list(kinds) == [line.split()[0] for line in lines]
        assert all("stated 0.10% to 2.00%" in line for line in lines)
    monkeypatch.setattr(sys, "argv", ["small_steps.py", "rnm"])
    with pytest.raises(SystemExit):
        small_steps.main()
    assert "no such KIND: rnm" in capsys.readouterr().err


def test_remarks_stay_when_a_result_is_made_anew(tmp_path: Path) -> None:
    """All above them is what the program wrote last."""
    path = tmp_path / "result.md"
    result_files.write_result(path, "# Result\n\n| 1 |\n")
    assert "# Result\n\n| 1 |\n" == path.read_text()
    remarks = f"{result_files.REMARKS}\nTwo cores.\n"
    path.write_text(path.read_text() + remarks)
    for text in ("| 2 |\n", "| 3 |"):
        result_files.write_result(path, text)
    assert f"| 3 |\n{remarks}" == path.read_text()
