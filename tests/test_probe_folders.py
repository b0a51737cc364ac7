"""What a probe finds to read in a folder that is no dataset."""

import os

import numpy as np
import pytest

from ioprof.errors import CommandError
from ioprof.storage.probe import Ranges, RecordSizes, WholeFiles
from ioprof.storage.probe.folders import find_read_targets, regular_files


def random():
    return np.random.default_rng(0)


def files(folder, *sizes):
    """Files of those sizes in a new folder."""
    folder.mkdir(parents=True)
    for number, size in enumerate(sizes):
        (folder / str(number)).write_bytes(os.urandom(size))
    return [str(folder / str(number)) for number in range(len(sizes))]


def test_a_folder_is_read_as_its_files_are(tmp_path):
    """Small files whole, large ones in ranges, links and pipes not at all; an empty folder says
    what to type."""
    small, large = (
        files(tmp_path / name, *sizes)
        for name, sizes in (("small", (1000, 3000)), ("large", (6_000_001, 3_000_123)))
    )
    assert isinstance(find_read_targets(str(tmp_path / "small"), None, random())[0], WholeFiles)
    material, is_all = find_read_targets(str(tmp_path / "large"), RecordSizes.fixed(1000), random())
    assert (Ranges, True, large) == (type(material), is_all, sorted(material.paths))
    material.close()
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "empty" / "pipe")
    (tmp_path / "empty" / "link").symlink_to(small[0])
    with pytest.raises(CommandError, match=r"holds no file to read; .*--scratch 1G"):
        find_read_targets(str(tmp_path / "empty"), None, random())
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "deeper" / "file").write_bytes(b"1")
    assert ([str(tmp_path / "deep" / "deeper" / "file")], True) == regular_files(
        str(tmp_path / "deep"), random()
    )


def test_of_a_thousand_folders_some_are_listed(tmp_path):
    """Listing ends when its time is over, but not before there is a file; the folders are drawn,
    not the first by name."""
    for number in range(100):
        (tmp_path / f"n{number:03d}").mkdir()
        for name in "abc":
            (tmp_path / f"n{number:03d}" / name).write_bytes(b"1")
    some = [
        regular_files(str(tmp_path), np.random.default_rng(seed), seconds=0) for seed in range(5)
    ]
    assert [(3, False)] * 5 == [(len(found.paths), found.is_all) for found in some]
    assert 1 < len({found.paths[0] for found in some})
    assert (7, False) == (
        len((few := regular_files(str(tmp_path), random(), most=7)).paths),
        few.is_all,
    )
    everything = regular_files(str(tmp_path), random())
    assert (300, True) == (len(set(everything.paths)), everything.is_all)
    material, is_all = find_read_targets(str(tmp_path), None, random())
    assert (300, True) == (len(material.paths), is_all)
