"""A job's memory limit: which of the kernel's mechanisms is used, and that nothing is left of
it."""

import os
import subprocess
import sys

import pytest

from ioprof.errors import CommandError
from ioprof.storage.limits import (
    Group,
    Slice,
    group_name,
    group_parents,
    memory_limit,
    remove_stale_groups,
)

TAKE = "import sys; taken = bytearray(int(sys.argv[1])); print(len(taken))"
READ_TWICE = """
import resource, sys
for _ in range(2):
    with open(sys.argv[1], "rb", buffering=0) as stream:
        while stream.read(1 << 20):
            pass
    print(512 * resource.getrusage(resource.RUSAGE_SELF).ru_inblock)
"""


@pytest.fixture
def limited():
    try:
        with memory_limit(64 << 20) as made:
            yield made
    except CommandError as error:
        pytest.skip(str(error))


def run_in(limited, tmp_path, *arguments):
    script = tmp_path / "limited"
    script.write_text(limited.wrapping.script(sys.executable))
    script.chmod(0o755)
    return subprocess.run([script, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.job
def test_the_limit_holds_what_a_process_takes(limited, tmp_path):
    """Below it a program runs as ever, its arguments unchanged; beyond it the kernel kills it, and
    says so in the facts."""
    assert (0, "16777216\n") == (
        (fits := run_in(limited, tmp_path, "-c", TAKE, 16 << 20)).returncode,
        fits.stdout,
    )
    assert 0 == limited.facts()["killed_for_memory"]

    assert -9 == run_in(limited, tmp_path, "-c", TAKE, 128 << 20).returncode
    assert 1 == limited.facts()["killed_for_memory"]


@pytest.mark.job
def test_the_limit_holds_the_page_cache(limited, tmp_path):
    """A file of twice the limit, read twice, is fetched twice: the first half was dropped for the
    second."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(128 << 20))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)

    first, second = map(int, run_in(limited, tmp_path, "-c", READ_TWICE, path).stdout.split())

    assert 128 << 20 <= first
    assert 64 << 20 < second - first
    assert limited.facts()["peak_bytes"] <= 64 << 20


@pytest.mark.job
def test_nothing_is_left_of_a_limit(tmp_path):
    """The group is removed at the end of the block, also after an exception."""
    try:
        with memory_limit(64 << 20) as made:
            assert not isinstance(made, Group) or made.folder.is_dir()
    except CommandError as error:
        pytest.skip(str(error))
    assert not isinstance(made, Group) or not made.folder.exists()


def test_what_a_killed_job_left_goes_at_the_next_start(tmp_path):
    """A group bears the number and the start of its process: one whose process is gone is removed,
    another's and ours stay."""
    ours = group_name()
    for name in (
        ours,
        "ioprof-1-99999999999",
        "ioprof-999999999-5",
        "ioprof-x-y",
        "somebody-999999999-5",
    ):
        (tmp_path / name).mkdir()

    assert ["ioprof-1-99999999999", "ioprof-999999999-5"] == remove_stale_groups(tmp_path)
    assert sorted([ours, "ioprof-x-y", "somebody-999999999-5"]) == sorted(
        path.name for path in tmp_path.iterdir()
    )


def cgroups(tmp_path, mounts, own):
    """A /proc that says so."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mounts)
    (tmp_path / "proc" / "self" / "cgroup").write_text(own)
    return str(tmp_path / "proc")


def test_in_version_2_the_group_is_made_where_memory_is_delegated(tmp_path):
    """A group that holds processes delegates nothing: the nearest above it that does is taken, then
    those above."""
    top = tmp_path / "cgroup"
    own = top / "user.slice" / "user-7.slice" / "session-3.scope"
    own.mkdir(parents=True)
    for folder, delegated in (
        (top, "cpu memory"),
        (own.parent.parent, "memory pids"),
        (own.parent, "memory"),
        (own, ""),
    ):
        (folder / "cgroup.subtree_control").write_text(delegated + "\n")
    mounts = f"30 20 0:26 / {top} rw - cgroup2 cgroup2 rw,nsdelegate\n"

    proc = cgroups(tmp_path, mounts, "0::/user.slice/user-7.slice/session-3.scope\n")

    assert [("v2", own.parent), ("v2", own.parent.parent), ("v2", top)] == list(group_parents(proc))


def test_in_version_1_the_group_is_made_below_the_process(tmp_path):
    """So that the limits above hold, too; in a container, whose own group is not mounted, below the
    mount."""
    (tmp_path / "memory" / "job").mkdir(parents=True)
    mounts = (
        f"31 20 0:27 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n32 20 0:28 / {tmp_path}/cpu"
        " rw - cgroup cgroup rw,cpu\n"
    )

    proc = cgroups(tmp_path, mounts, "4:memory:/job\n3:cpu:/\n0::/\n")
    assert [("v1", tmp_path / "memory" / "job")] == list(group_parents(proc))
    (tmp_path / "proc" / "self" / "cgroup").write_text("4:memory:/elsewhere\n")
    assert [("v1", tmp_path / "memory")] == list(group_parents(proc))


@pytest.mark.parametrize("text", ["", "\0\n\n:::\n - \n", "30 - cgroup2\n", "x" * 10000])
def test_hostile_descriptions_are_passed_over(tmp_path, text):
    """What is not as the kernel writes it names no group, and is no error."""
    assert [] == list(group_parents(cgroups(tmp_path, text, text)))


@pytest.mark.job
def test_where_nothing_is_permitted_the_error_says_why_and_what_to_type(tmp_path, monkeypatch):
    """Every way that was tried with its reason, in one line."""
    monkeypatch.setenv("PATH", str(tmp_path))  # no systemctl
    with (
        pytest.raises(CommandError) as found,
        memory_limit(1 << 30, proc=cgroups(tmp_path, "", "")),
    ):
        pass
    for expected in (
        "systemd-run --user",
        "sbatch --mem=1024M",
        "systemd-run --scope -p MemoryMax=1073741824",
    ):
        assert expected in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.job
def test_a_slice_of_systemd_is_made_used_and_forgotten(tmp_path, monkeypatch):
    """The commands for the user's own systemd, as its manual pages have them; what runs here notes
    what it was asked."""
    note = tmp_path / "note"
    for name in ("systemctl", "systemd-run"):
        program = tmp_path / name
        program.write_text(
            f'#!/bin/sh\necho {name} "$@" >> {note}\nwhile [ $# -gt 0 ]; do [ "$1" = -- ] && shift'
            ' && exec "$@"; shift; done\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with memory_limit(1 << 30, proc=cgroups(tmp_path, "", "")) as made:
        ended = run_in(made, tmp_path, "-c", "print('ran')")

    assert (Slice(f"{group_name()}.slice"), "ran\n") == (made, ended.stdout)
    scope = f"systemd-run --user --scope --quiet --collect --slice={made.name} --"
    assert [
        f"systemctl --user set-property --runtime {made.name} MemoryMax=1073741824 MemorySwapMax=0",
        f"{scope} /bin/true",
        f"{scope} {sys.executable} -c print('ran')",
        f"systemctl --user revert {made.name}",
    ] == note.read_text().splitlines()


def test_a_group_that_cannot_be_made_is_an_error_and_leaves_nothing(tmp_path):
    """A folder that is not there, and one that is no control group, where the limit is no file that
    can be set."""
    with pytest.raises(OSError, match=r".+"):
        Group.create(tmp_path / "missing", "v1", 1 << 30)
    assert [] == list(tmp_path.iterdir())
