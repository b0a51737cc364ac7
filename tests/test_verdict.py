"""The verdict where the shares of the causes alone would mislead."""

from io import StringIO

from rich.console import Console
from timeline import timeline

from ioprof.analysis.summary import summarise
from ioprof.report.caveats import caveats
from ioprof.report.text import comparison_text

FACTS = {"config": {"device": "cuda", "workers": 1, "batch_size": 4}}


def test_a_worker_that_always_works_is_judged_by_all_of_its_time():
    """A wait begins when half the work is done and so sees the last stages only: decode takes most, collate is what is seen."""
    drawing = """
        step       000000000011111111112222222222
        wait       .......000.......111.......222
        compute    #######...0000000...1111111...
        fetch w0   000000000011111111112222222222
        decode w0  #######...#######...#######...
        collate w0 .......###.......###.......###
    """
    found = summarise(timeline(drawing, **FACTS))

    shares = {entry.cause: entry.share for entry in found.steps.causes}
    assert (0.0, 0.3) == (shares["decode"], shares["collate"])
    assert "decode" == found.verdict.bound_by
    assert "70.0% of their work on decode, 30.0% on collate" in found.verdict.text


def test_a_rank_that_begins_late_is_judged_by_what_made_it_late():
    """Rank 0 waits in the exchange while rank 1 computes, because rank 1 got its batch late: decode, not an uneven load."""
    drawing = """
        step       000000000000
        wait       0...........
        fetch w0   0...........
        decode w0  #...........
        compute    .0000.......
        comm       .....0000000
        step r1      000000000000
        wait r1      000000......
        fetch r1 w0  000000......
        decode r1 w0 ######......
        compute r1   ......0000..
        comm r1      ..........00
    """
    found = summarise(timeline(drawing, **FACTS))

    assert "decode" == found.verdict.bound_by
    assert {"1": {"decode": 1e-8, "compute": 4e-8}} == found.steps.behind_peers


def test_a_machine_shared_with_others_is_no_ground_for_comparing():
    """More than a tenth of the CPU time taken by others is said in the report and in the comparison; less is not."""
    busy, quiet = (
        summarise(timeline("step 00\ncompute 00", hosts=[{"cpus": 2, "others_cpu_ratio": ratio}], name=name))
        for ratio, name in ((0.437, "busy"), (0.02, "quiet"))
    )
    said = "other programs took 43.7% of the host's CPU time"

    assert ["busy machine"] == [caveat.name for caveat in caveats(busy) if said in caveat.seen]
    assert not [caveat for caveat in caveats(quiet) if caveat.name == "busy machine"]
    assert f"busy: {said}" in text_of(comparison_text([busy, quiet]))


def text_of(report):
    console = Console(file=StringIO(), width=100, soft_wrap=True, color_system=None)
    console.print(report)
    return console.file.getvalue()


def test_a_rank_that_computes_longer_is_an_uneven_load():
    """Rank 0 waits in the exchange because rank 1 has more to compute: that is communication's to explain."""
    drawing = """
        step       000000000000
        wait       0...........
        fetch w0   0...........
        decode w0  #...........
        compute    .000........
        comm       ....00000000
        step r1      000000000000
        wait r1      0...........
        fetch r1 w0  0...........
        decode r1 w0 #...........
        compute r1   .0000000000.
        comm r1      ...........0
    """
    assert "communication" == summarise(timeline(drawing, **FACTS)).verdict.bound_by
