"""The decision where the bytes of a read came from, case by case: native/capture/source.c, without
a file system or a disk."""

import re
import subprocess
from pathlib import Path

import pytest
from compiling import compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from repository import NATIVE
from strategies import examples

pytestmark = pytest.mark.job

CASES = """
# What the type of the file system decides alone.
memory     bytes=8192                                               -> page_cache 8192
memory     bytes=8192 blocks=16 waited                              -> page_cache 8192
unreliable bytes=8192                                               -> unknown 8192
unreliable bytes=8192 blocks=16 waited                              -> unknown 8192
blocks     bytes=8192 direct                                        -> storage 8192
unreliable bytes=8192 direct                                        -> storage 8192

# One call between two readings of the counters: blocks are bytes from storage, waited for or not. (Readahead 1 is explained below.)
blocks     bytes=8192                                               -> page_cache 8192
unknown    bytes=8192                                               -> page_cache 8192
blocks     bytes=8192 blocks=16                                     -> storage 8192, readahead 1
blocks     bytes=8192 blocks=16 waited                              -> storage 8192, readahead 1
blocks     bytes=8192 blocks=8 waited                               -> storage 4096 + page_cache 4096, readahead 1
blocks     bytes=8192 preempted                                     -> page_cache 8192

# A wait without blocks is for a page that another thread requested, if blocks are counted at all.
blocks     bytes=8192 waited                                        -> storage 8192
unknown    bytes=8192 waited                                        -> unknown 8192

# Blocks beyond the read's own bytes are readahead for the next read.
blocks     bytes=8192 blocks=256 waited                             -> storage 8192, readahead 122880
blocks     bytes=8192 readahead=122880                              -> storage 8192, readahead 114688
blocks     bytes=8192 waited readahead=122880                       -> storage 8192, readahead 114688
unknown    bytes=8192 waited readahead=122880                       -> storage 8192, readahead 114688
blocks     bytes=8192 readahead=4096                                -> storage 4096 + page_cache 4096
blocks     bytes=8192 readahead=4096 blocks=8                       -> storage 8192, readahead 1
blocks     bytes=8192 readahead=8192                                -> storage 8192

# Readahead 1: the read before submitted blocks and used them up. A wait right behind it may be for the same request.
blocks     bytes=8192 waited readahead=1                            -> storage 1 + page_cache 8191
unknown    bytes=8192 waited readahead=1                            -> storage 1 + page_cache 8191
blocks     bytes=8192 readahead=1                                   -> page_cache 8192

# First with RWF_NOWAIT, which returned all.
blocks     bytes=8192 nowait=8192                                   -> page_cache 8192
blocks     bytes=8192 nowait=8192 preempted                         -> page_cache 8192
blocks     bytes=8192 nowait=8192 blocks=16 nowait_blocks=16        -> storage 8192, readahead 1
blocks     bytes=8192 nowait=8192 blocks=256 nowait_blocks=256      -> storage 8192, readahead 122880
blocks     bytes=8192 nowait=8192 readahead=8192                    -> storage 8192

# It returned a part; a second call fetched the rest, or found it fetched by then.
blocks     bytes=8192 nowait=4096 missed blocks=8 waited            -> page_cache 4096 + storage 4096, readahead 1
blocks     bytes=8192 nowait=4096 missed blocks=16 nowait_blocks=16 -> storage 4096 + storage 4096, readahead 1
blocks     bytes=8192 nowait=4096 missed                            -> page_cache 4096 + storage 4096
unknown    bytes=8192 nowait=4096 missed                            -> page_cache 4096 + unknown 4096
blocks     bytes=8192 nowait=4096 missed readahead=1                -> page_cache 4096 + storage 1 + page_cache 4095

# It returned nothing: a miss counts as a wait, whoever submitted.
blocks     bytes=8192 missed                                        -> storage 8192
blocks     bytes=8192 missed blocks=16 nowait_blocks=16             -> storage 8192, readahead 1
unknown    bytes=8192 missed                                        -> unknown 8192
blocks     bytes=8192 missed blocks=16 waited                       -> storage 8192, readahead 1

# A miss that was not expected: the counters before it are older, and some blocks may be another file's.
blocks     bytes=8192 nowait=4096 missed stale blocks=16            -> page_cache 4096 + storage 4096, readahead 4096
blocks     bytes=8192 missed stale blocks=16                        -> storage 8192, readahead 1
blocks     bytes=8192 nowait=8192 stale blocks=16                   -> storage 8192, readahead 1

# One call under a switch watch: a thread that stayed waited for nothing, and a quick read fetched nothing.
blocks     bytes=8192 stayed us=2                                   -> page_cache 8192
unknown    bytes=8192 stayed us=2                                   -> page_cache 8192
blocks     bytes=8192 stayed us=2 blocks=16 waited                  -> page_cache 8192
blocks     bytes=8192 stayed us=50                                  -> page_cache 8192
blocks     bytes=8192 stayed us=50 waited preempted                 -> page_cache 8192
blocks     bytes=8192 stayed us=50 blocks=16                        -> storage 8192, readahead 1
blocks     bytes=8192 switched us=50 waited                         -> storage 8192
unknown    bytes=8192 switched us=50 waited                         -> unknown 8192
blocks     bytes=8192 switched us=50 preempted                      -> page_cache 8192
blocks     bytes=8192 switched us=50 waited blocks=16 preempted     -> storage 8192, readahead 1
blocks     bytes=8192 switched us=50 waited preempted               -> unknown 8192
"""  # noqa: E501
"""Facts of a read -> its parts by source, and the readahead for the next one; decide_sources.c
explains the words."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reads lines of facts, prints lines of sources."""
    options = ("-fsanitize=undefined", str(NATIVE / "capture" / "source.c"))
    return compiled(
        "decide_sources.c", tmp_path_factory.mktemp("decision") / "decide_sources", *options
    )


def decided(program: Path, lines: list[str]) -> list[str]:
    """The decision for each line."""
    ended = subprocess.run([program], input="\n".join(lines) + "\n", capture_output=True, text=True)
    assert (0, "") == (ended.returncode, ended.stderr)
    return ended.stdout.splitlines()


def test_cases(program: Path) -> None:
    """Each line of the table above."""
    lines = [line for line in CASES.splitlines() if line and not line.startswith("#")]
    facts = [line.partition("->")[0].rstrip() for line in lines]
    found = [
        f"{line.partition('->')[0]}-> {sources}"
        for line, sources in zip(lines, decided(program, facts), strict=True)
    ]
    assert lines == found


@st.composite
def reads(draw: st.DrawFn) -> str:
    """Facts of a read that could be measured."""
    num_bytes = draw(st.integers(1, 1 << 20))
    words = [
        draw(st.sampled_from(["blocks", "memory", "unreliable", "unknown"])),
        f"bytes={num_bytes}",
    ]
    words += [word for word in ("direct", "waited", "preempted", "stale") if draw(st.booleans())]
    if draw(st.booleans()):
        nowait = draw(st.integers(0, num_bytes))
        words += [f"nowait={nowait}", *(["missed"] if nowait < num_bytes else [])]
    else:
        words += [draw(st.sampled_from(["stayed", "switched"])), f"us={draw(st.integers(0, 1000))}"]
    blocks = draw(st.integers(0, 4096))
    words += [f"blocks={blocks}", f"nowait_blocks={draw(st.integers(0, blocks))}"]
    return " ".join([*words, f"readahead={draw(st.integers(0, 1 << 20))}"])


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(reads(), min_size=20, max_size=60))
def test_every_byte_has_one_source(program: Path, lines: list[str]) -> None:
    """The parts of a read add up to what it returned."""
    sums = [
        sum(map(int, re.findall(r"[a-z_]+ (\d+)", sources.partition(",")[0])))
        for sources in decided(program, lines)
    ]
    assert [int(re.findall(r"\bbytes=(\d+)", line)[0]) for line in lines] == sums


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(reads(), min_size=20, max_size=60), st.integers(1, 1 << 40))
def test_only_differences_of_counters_matter(program: Path, lines: list[str], offset: int) -> None:
    """What the thread did before the read changes nothing."""
    assert decided(program, lines) == decided(
        program, [f"{line} offset={offset}" for line in lines]
    )
