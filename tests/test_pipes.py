"""Files that reach a job through pipes, such as shards that `cat` reads for webdataset."""

import polars as pl
from timeline import timeline
from told import summarise

from ioprof.analysis.reads.pipes import sent_files
from ioprof.format.trace import Trace

SHARD, OTHER = "/data/000.tar", "/usr/lib/locale/C.utf8"
DECOMPRESSED, UNKNOWN = "pipe from cat (pid 103)", "pipe from curl (pid 999)"
DRAWING = """
    step            0000000000
    wait            00000000..
    compute         ........00
    fetch w0        00000000..
    read w0 pipe file=1 9000B  00000000..
    read w2 file=2 9000B       ######....
    read w2 file=3 100B        ......#...
    read w2 file=4 10B         .......#..
"""


def piped(name: str, drawing: str = DRAWING) -> Trace:
    """A worker that receives through a pipe of that name; processes 102 and 103 are what worker 1
    and 2 are drawn as."""
    paths = [name, SHARD, OTHER, UNKNOWN, DECOMPRESSED]
    trace = timeline(
        drawing,
        config={"workers": 1, "loader": "torch DataLoader", "libraries": ["webdataset 1.0.2"]},
    )
    files = pl.DataFrame(
        {"file": range(1, 6), "path": paths},
        schema_overrides=dict(trace.files.select("file", "path").schema),
    )
    return trace.with_facts(files=pl.concat([trace.files, files], how="diagonal"))


def test_the_file_behind_a_pipe_is_named() -> None:
    """It is the one of which its writer read most; the advice is that of a file."""
    found = summarise(piped("pipe from cat (pid 103)")).verdict
    assert "storage" == found.bound_by
    assert f"on {SHARD}" in found.text
    assert "pipe" not in found.text
    assert "receive_streams" not in [entry.code for entry in found.findings]


def test_a_file_is_found_behind_several_pipes() -> None:
    """`cat shard | gunzip`: the worker reads what gunzip writes, which reads what cat writes."""
    drawing = DRAWING + "read w1 pipe file=5 9000B ######....\n"
    assert SHARD == sent_files(piped("pipe from gunzip (pid 102)", drawing))[1]


def test_a_pipe_whose_writer_was_not_recorded_keeps_its_name() -> None:
    """Then it is a program that sends, and not known what it reads."""
    drawing = "\n".join(line for line in DRAWING.splitlines() if " w2 " not in line)
    found = summarise(piped(UNKNOWN, drawing)).verdict
    assert f"on {UNKNOWN}" in found.text
    first = found.findings[0]
    assert ("receive_streams", UNKNOWN) == (first.code, first.facts["file"])
    assert "by_socket" not in first.facts


def test_a_program_that_makes_what_it_sends_keeps_its_name() -> None:
    """What it read most of is one of its own modules, of which less came than through the pipe."""
    drawing = DRAWING.replace("read w2 file=2 9000B", "read w2 file=2 800B")
    assert {} == sent_files(piped("pipe from python (pid 103)", drawing))


def test_pipes_that_write_to_each_other_have_no_file() -> None:
    """Numbers of processes are used again; the search ends."""
    drawing = "read w1 pipe file=5 9B ###\nread w2 pipe file=1 9B ###"
    assert {} == sent_files(piped("pipe from sed (pid 102)", drawing))
