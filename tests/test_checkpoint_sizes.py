"""What a job wrote as checkpoints: by the sizes of their files, where these are known."""

import io
from pathlib import Path
from typing import Any

import pytest
from timeline import timeline

from ioprof.analysis.checkpoints import Saved, saved
from ioprof.analysis.summary import summarise
from ioprof.instrument.hooks.checkpoints import _bytes_written as bytes_written


class Hostile:
    """A target of the job's own, of which nothing can be asked."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_the_size_is_that_of_the_file(tmp_path: Path) -> None:
    """By its path in any form, or by the open file, whose end may not have been written yet."""
    path = tmp_path / "model.pt"
    path.write_bytes(bytes(1234))
    for target in (path, str(path)):
        assert 1234 == bytes_written((None, target), {}) == bytes_written((None,), {"f": target})
    assert 1234 == bytes_written((None,), {"filename": str(path)})
    with open(path, "wb") as file:
        file.write(bytes(77))
        assert 77 == bytes_written((None, file), {})


def test_what_is_no_file_has_no_size(tmp_path: Path) -> None:
    """A folder, to which other ranks write too; memory; what the job made itself."""
    for target in (tmp_path, tmp_path / "missing", io.BytesIO(bytes(10)), Hostile(), None, 3):
        assert -1 == bytes_written((None, target), {})
    assert -1 == bytes_written((), {})


def test_their_rate_is_told() -> None:
    """Of those whose size is known; what loads is none, nor is one without a size."""
    drawing = """
        step                        00000 11111 22222
        checkpoint 100B name=save   ..### .....  ..###
        checkpoint name=save        ..... ..###  .....
        checkpoint 50B name=load    ##... .....  .....
    """
    found = saved(timeline(drawing))
    assert found == Saved(2, 200, pytest.approx(60e-9))
    assert "2 checkpoints of 0.0 MB, at 3,333.3 MB/s" == found.text
    advice = [each.action for each in summarise(timeline(drawing)).verdict.advice]
    assert any(found.text in action for action in advice)
    assert saved(timeline("step 000111222")) is None
