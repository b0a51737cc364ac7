"""The verdict where the shares of the causes alone would mislead."""

import re
from io import StringIO

import polars as pl
import pytest
from pipeline_simulator import Pipeline
from rich.console import Console
from timeline import block, pid, timeline, with_blocks
from told import summarise

from ioprof.analysis.cpu.code_lines import shortened
from ioprof.format.trace import Trace
from ioprof.report.texts.caveats import caveats
from ioprof.report.texts.text import comparison_text, summary_text

MS = 1_000_000
FACTS = {"config": {"device": "cuda", "workers": 1, "batch_size": 4}}


def test_a_worker_that_always_works_is_judged_by_all_of_its_time():
    """A wait begins when half the work is done and so sees the last stages only: decode takes most,
    collate is what is seen."""
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


def test_workers_that_always_work_in_no_named_stage_are_not_bound_by_the_stage_that_a_wait_sees():
    """The dataset's own code takes 80 % of the workers' time; the wait begins after it."""
    drawing = """
        step       000000000011111111112222222222
        wait       ........00........11........22
        compute    ########..00000000..11111111..
        fetch w0   000000000011111111112222222222
        collate w0 ........##........##........##
    """
    found = summarise(timeline(drawing, **FACTS))

    shares = {entry.cause: entry.share for entry in found.steps.causes}
    assert (0.0, 0.2) == (shares["loader"], shares["collate"])
    assert "loader" == found.verdict.bound_by
    assert (
        "80.0% of their work on Python and waiting in the dataset, 20.0% on collate"
        in found.verdict.text
    )
    assert not [advice.action for advice in found.verdict.findings if "waits 0.00" in advice.action]


def test_a_batch_that_takes_longer_to_make_than_to_use_is_no_matter_of_delivery():
    """A worker makes a batch for 16 of 19 ms, and waits until the loop, which needs 14 ms for one,
    has got it."""
    found = summarise(Pipeline([16 * MS] * 60, [14 * MS] * 60, prefetch=1, deliver=3 * MS).trace())
    waited = {entry.cause: entry.seconds or 0.0 for entry in found.steps.causes}
    assert waited["delivery"] > waited["decode"] > 0
    assert "decode" == found.verdict.bound_by


def test_a_rare_slow_read_of_an_idle_worker_is_the_bound():
    """Its own code takes more of the worker's time, but is done long before its batch is asked
    for."""
    drawing = """
        step       0000011111222223333344444444444444
        wait       .....................44444444.....
        fetch w0   000.111..222..333..44444444444....
        read w0    ......................#######.....
        compute    #####00000111112222233...........#
    """
    found = summarise(timeline(drawing, **FACTS))
    assert "storage" == found.verdict.bound_by


def test_a_rank_that_begins_late_is_judged_by_what_made_it_late():
    """Rank 0 waits in the exchange while rank 1 computes, because rank 1 got its batch late:
    decode, not an uneven load."""
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
    assert {"1": {"decode": 1e-8, "compute": 4e-8}} == found.steps.straggler_wait_s


def test_a_machine_shared_with_others_is_no_ground_for_comparing():
    """More than a tenth of the CPU time taken by others is said in the report and in the
    comparison; less is not."""
    busy, quiet = (
        summarise(
            timeline(
                "step 00\ncompute 00", hosts=[{"cpus": 2, "others_cpu_ratio": ratio}], name=name
            )
        )
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
    """Rank 0 waits in the exchange because rank 1 has more to compute: that is a straggler's."""
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
    assert "straggler" == summarise(timeline(drawing, **FACTS)).verdict.bound_by


# -------------------------------------------------------------------- hints in the words of the job

DECODING = """
    step 0000000
    wait 00000..
    fetch w0 00000
    decode w0 #####
    compute .....00
"""
SLOW_START = (
    "step 0000000000001123344\nwait 00000000000.\nfetch w0 00000000000.\ncompute"
    " ............0000000"
)
JOBS = {
    "built-in": {"loader": "lmdb", "steps": 5, "seed": 0, "workers": 2, "batch_size": 4},
    "torch": {"loader": "torch DataLoader", "prefetch": 2, "workers": 2, "batch_size": 4},
    "DALI": {"loader": "DALI", "workers": 2, "batch_size": 4},
    "other": {"loader": None, "workers": 2, "batch_size": 4},
}


def advice(drawing, job, **run):
    found = summarise(timeline(drawing, config={"device": "cuda", **JOBS[job]}, **run))
    return found, " | ".join(entry.action for entry in found.verdict.findings)


@pytest.mark.parametrize(
    ("job", "setting"),
    [
        ("built-in", "Use --workers 7 instead of 2"),
        ("torch", "Use num_workers=7 instead of 2"),
        ("DALI", "Use num_threads=7 instead of 2"),
        ("other", "Use 7 threads or processes that make batches instead of 2"),
    ],
)
def test_workers_are_named_as_the_job_names_them(job, setting):
    """An option of another program's command line helps nobody."""
    _, actions = advice(DECODING, job, hosts=[{"cpus": 8}])
    assert setting in actions
    assert job == "built-in" or "--" not in actions


@pytest.mark.parametrize(
    ("shards", "workers", "says"),
    [
        (100, [7], "Use num_workers=7 of the WebLoader instead of 2"),
        (4, [4], "Use num_workers=4 of the WebLoader instead of 2"),
        (2, [], "Divide the data into more shards"),
        (1, [], "Divide the data into more shards"),
        (None, [7], "Use num_workers=7 of the WebLoader instead of 2"),
    ],
)
def test_no_more_workers_are_advised_than_there_are_shards(shards, workers, says):
    """webdataset gives each shard to one worker. The gain of what a replay proposes has the same
    limit."""
    config = {
        "loader": "torch DataLoader",
        "prefetch": 2,
        "workers": 2,
        "batch_size": 4,
        "device": "cuda",
        "shards": shards,
    }
    trace = timeline(
        DECODING, config=config | {"libraries": ["webdataset 1.0.2"]}, hosts=[{"cpus": 8}]
    )
    found = summarise(trace).verdict
    assert workers == [entry.change.workers for entry in found.findings if entry.change is not None]
    assert says in " | ".join(entry.action for entry in found.findings)
    assert ("more shards" in " | ".join(entry.action for entry in found.findings)) == (
        shards in (1, 2, 4)
    )


@pytest.mark.parametrize(
    ("job", "setting"), [("built-in", "(--steps 50 or more)"), ("torch", "(50 steps or more)")]
)
def test_a_short_run_is_told_how_to_get_longer(job, setting):
    """`--steps` is an option of `ioprof run` alone; in the advice and in the caveat."""
    found, actions = advice(SLOW_START, job)
    assert setting in actions
    (few,) = [caveat for caveat in caveats(found) if caveat.name == "few steps"]
    assert ("--steps 102 or more" in few.remedy) == (job == "built-in")
    assert "102 steps or more" in few.remedy or job == "built-in"


@pytest.mark.parametrize(
    ("job", "remedy"),
    [
        ("built-in", "reduce --workers, the prefetch depth or --batch-size"),
        ("torch", "reduce num_workers=, prefetch_factor= or batch_size="),
        ("DALI", "reduce num_threads=, prefetch_queue_depth= or batch_size="),
        ("other", "reduce the number of loader workers, the prefetch depth or the batch size"),
    ],
)
def test_a_killed_worker_is_answered_with_settings_of_the_job(job, remedy):
    """Also where the message is torch's own."""
    what = "RuntimeError: DataLoader worker (pid 5) is killed by signal: Killed."
    found, _ = advice(DECODING, job, failures=[{"rank": 0, "what": what}], status="failed")
    (killed,) = [caveat for caveat in caveats(found) if caveat.name == "process killed"]
    assert remedy in killed.remedy


def test_storage_hints_name_options_of_the_built_in_job_only():
    """`--cache` belongs to `ioprof run`; a dataset that is not ioprof's cannot be converted by
    it."""
    reading = DECODING.replace("decode w0 #####", "read w0 cache 9B #####")
    for job in JOBS:
        found, actions = advice(reading, job)
        (cached,) = [caveat for caveat in caveats(found) if caveat.name == "storage not tested"]
        assert ("--cache cold" in cached.remedy) == (job == "built-in")
        assert "ioprof convert" not in actions


# ---------------------------------------------------------------------- the training process itself


OWN = {"config": {"device": "cpu", "loader": None, "workers": None}}


def with_paths(trace, *paths):
    """The trace with these paths as files 0, 1 and so on."""
    rows = [{"file": number, "path": path} for number, path in enumerate(paths)]
    return Trace(trace.run, trace.spans, pl.DataFrame(rows, schema=trace.files.schema))


def test_a_loop_that_reads_is_storage_bound_and_its_file_is_named():
    """In the sentence, in the table and in the advice, which speaks of no loader."""
    trace = timeline("step 0000000000\nread file=0 ########\ncompute main ........00", **OWN)
    found = summarise(with_paths(trace, "/data/shard.bin"))
    assert "storage" == found.verdict.bound_by
    assert "80.0% on /data/shard.bin" in found.verdict.text
    assert "/data/shard.bin" in found.verdict.findings[0].action
    said = text_of(summary_text(found))
    assert "80.0% /data/shard.bin" in said
    assert not re.search("worker|DataLoader", said)


def test_a_library_on_slow_storage_is_named():
    """Page faults within a computation on the CPU."""
    trace = timeline("step 0000000000\nfault file=0 .#######\ncompute main 0000000000", **OWN)
    found = summarise(
        with_paths(trace, "/env/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so")
    ).verdict
    assert "storage" == found.bound_by
    assert "…/site-packages/torch/lib/libtorch_cpu.so" in found.text
    assert (
        "Copy the environment of …/site-packages/torch/lib/libtorch_cpu.so"
        in found.findings[0].action
    )


def test_a_loop_that_decodes_beside_a_loader_is_decode_bound():
    """Its workers may read for longer: they are not what the rank waits for."""
    drawing = """
        step         0000000000
        wait         00........
        fetch w0     0000000000
        read w0      ##########
        decode       ..######..
        compute main ..00000000
    """
    found = summarise(timeline(drawing, config={"device": "cpu", "workers": 1})).verdict
    assert "decode" == found.bound_by
    assert "The training process itself spent 60.0% of the steps' time on decoding" in found.text
    assert "in the loader's workers" in found.findings[0].action


def test_an_epoch_of_validation_or_a_checkpoint_is_a_bound():
    """With what it was spent on, and a number."""
    for kind, bound in (("validate", "validation"), ("checkpoint", "checkpoint"), ("gc", "gc")):
        found = summarise(
            timeline(f"step 0000000000\n{kind} name=part main ######\ncompute .......000")
        ).verdict
        assert bound == found.bound_by
        assert "60.0%" in found.text
        assert found.findings


def test_time_without_a_name_is_counted():
    """Of `host` and `loader`, without what details cover."""
    trace = timeline(
        "step 0000000000\nuser name=metric ..#.......\nwait .....000..\nsampler .....#\ncompute"
        " ........00"
    )
    assert 0.6 == pytest.approx(summarise(trace).unexplained_ratio)
    assert summarise(timeline("read ###")).unexplained_ratio is None


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("/data/a.bin", "/data/a.bin"),
        (
            "/a/very/long/path/with/many/folders/that/ends/in/shard-000017.tar",
            "…/folders/that/ends/in/shard-000017.tar",
        ),
        (
            "/a/very/long/path/with/many/folders/that/ends/in/train/",
            "…/with/many/folders/that/ends/in/train/",
        ),
        ("rank 17: page cache", "rank 17: page cache"),
    ],
)
def test_a_path_keeps_its_end(name, short):
    """As much of it as fits."""
    assert short == shortened(name, 40)


def test_what_another_thread_of_a_worker_waits_for_is_not_less_than_its_own_stages():
    """A thread of the worker that sends each batch reads mapped pages for that: storage, though the
    worker itself collates only."""
    drawing = """
        step          000000000011111111112222222222
        wait          000000000.111111111.222222222.
        compute       .........0.........1.........2
        fetch w0      000.......111.......222.......
        read w0       #.........#.........#.........
        collate w0    .##........##........##.......
        read w0 t0    ...######....######....######.
    """
    trace = timeline(drawing, **FACTS)
    [sender] = trace.spans.filter(pl.col("kind") == "read", pl.col("tid") != pid(0, 0))[
        "tid"
    ].unique()
    queue = ("channel", 9)
    waits = [block(at, at + 9, pid(0), sender, of=queue) for at in (0, 10, 20)]
    found = summarise(with_blocks(trace, *waits))

    shares = {entry.cause: entry.share for entry in found.steps.causes}
    assert (0.7, 0.2) == pytest.approx((shares["storage"], shares["collate"]))
    assert "storage" == found.verdict.bound_by
    assert "70.0% went to waiting for reads from storage" in found.verdict.text


@pytest.mark.parametrize("stage", ["decode", "transform"])
def test_a_cause_that_is_larger_than_each_wait_is_named(stage):
    """All waits for batches together are the bound, and the largest row of the table is another
    one."""
    drawing = f"""
        step          00000000001111111111
        wait          000000....111111....
        compute       ......0.........1...
        fetch w0      000000....111111....
        read w0       ##........##........
        {stage} w0    ..##......##..##....
        collate w0    ....##....##..##....
    """
    found = summarise(timeline(drawing, **FACTS))

    shares = {entry.cause: entry.share or 0.0 for entry in found.steps.causes}
    largest = max(
        (cause for cause in shares if cause != "compute"), key=lambda cause: shares[cause]
    )
    assert "host" == largest
    assert found.verdict.bound_by in ("storage", stage, "collate")
    assert "host alone took 30.0%" in found.verdict.text


def test_many_small_causes_beside_compute_are_not_the_bound():
    """Compute takes 85 %, and no other cause 10 %: it is the bound, and nothing says that only it
    can make the job faster."""
    drawing = """
        step          00000000000000000000
        wait          0...................
        user name=log main ..................#.
        h2d           .0..................
        compute       ..0000000000000000.0
    """
    found = summarise(timeline(drawing, **FACTS))

    assert "compute" == found.verdict.bound_by
    assert "for 85.0% of the steps' time" in found.verdict.text
