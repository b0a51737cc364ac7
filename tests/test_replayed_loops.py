"""Replays of loops that no loader gives batches: all time is the loop's own."""

import pytest
from timeline import timeline

from ioprof.errors import CommandError
from ioprof.model.changes import Change
from ioprof.model.gains import gains_of
from ioprof.model.pace import replayed
from ioprof.model.prediction import whatif
from ioprof.model.recorded import pipeline
from ioprof.model.refusals import Refusal, ReplayError
from ioprof.model.summary import with_gains
from ioprof.report.run import Run


def test_what_is_gained_at_most_is_no_more_than_the_cause_took() -> None:
    """Neither is the end of its range, however much the steps vary: here a step reads for 1 to 9 of
    11 to 19 units of time."""
    reads = [1, 9, 2, 8, 1, 9, 1, 7, 2, 9, 1, 8, 9, 1]
    lanes = {"step": "", "read main storage": "", "compute main": ""}
    for number, length in enumerate(reads):
        lanes["step"] += f"{number:x}" * (10 + length)
        lanes["read main storage"] += "#" * length + "." * 10
        lanes["compute main"] += "." * length + f"{number:x}" * 10
    summary = with_gains(
        Run.of(timeline("\n".join(map(" ".join, lanes.items())), config={"device": "cpu"}))
    ).summary
    advice = next(each for each in summary.verdict.findings if each.cause == "storage")
    share = next(each.share for each in summary.steps.causes if each.cause == "storage")
    assert share is not None
    assert advice.high == pytest.approx(max(1 / (1 - share), advice.gain or 0.0))
    assert (advice.low or 0.0) >= 1


def test_a_loop_without_a_loader_gains_what_its_causes_took() -> None:
    """It does one thing after the other, so a cause that costs nothing saves its own time; half of
    one saves half of it."""
    loop = timeline(
        "step 00000000111111112222222233333333\ncompute ....0000....1111....2222....3333\n"
        "read main storage 00......11......22......33......"
    )
    of_cause = {each.cause: each.share for each in gains_of(pipeline(loop)).gains}
    assert of_cause["storage"] == pytest.approx(1 / 4)
    assert of_cause["compute"] == pytest.approx(1 / 2)
    assert of_cause["host"] == pytest.approx(1 / 4)
    assert whatif(loop, Change(speeds={"storage": 2.0})).speedup == pytest.approx(8 / 7)


@pytest.mark.parametrize(
    ("change", "option"),
    [
        (Change(workers=2), "--workers"),
        (Change(prefetch=4), "--prefetch"),
        (Change(persistent_workers=True), "--persistent-workers"),
        (Change(cache="warm"), "--cache"),
    ],
)
def test_a_loop_without_a_loader_has_no_options_of_one(change: Change, option: str) -> None:
    """The message says which option, and why."""
    with pytest.raises(CommandError, match=f"{option}: no loader gave this job its batches"):
        whatif(timeline("step 0000111122223333\ncompute .000.111.222.333"), change)


def test_ranks_without_loaders_wait_for_the_slowest() -> None:
    """If the straggler's own cause costs nothing, all ranks gain; a cause of the other rank gains
    nothing."""
    both = timeline(
        "step r0 00000000111111112222222233333333\ncompute r0 00......11......22......33......\n"
        "comm r0 ..000000..111111..222222..333333\n"
        "step r1 00000000111111112222222233333333\ncompute r1 ....000.....111.....222.....333.\n"
        "comm r1 .......0.......1.......2.......3"
    )
    of_cause = {each.cause: each.share for each in gains_of(pipeline(both)).gains}
    assert of_cause["host"] == pytest.approx(4 / 8, abs=0.05)


def test_a_short_run_without_a_loader_cannot_be_replayed() -> None:
    """The message says what is missing."""
    with pytest.raises(ReplayError, match="only 3 steps") as refused:
        pipeline(timeline("step 000011112222\ncompute .000.111.222"))
    assert refused.value.refusal is Refusal.FEW_STEPS


def test_threads_that_read_beside_a_loop_change_nothing_in_its_replay() -> None:
    """The loop's own time is as long as it was."""
    loop = "step 0000111122223333\ncompute .000.111.222.333"
    alone = pipeline(timeline(loop))
    beside = pipeline(timeline(f"{loop}\nread t1 storage ####............"))
    assert replayed(alone).step_s == pytest.approx(replayed(beside).step_s)


def test_a_loader_that_only_validates_is_a_part_of_the_loop() -> None:
    """The loop makes the batches to train on itself; validating takes what it took."""
    steps = [f"{number:x}" for number in range(16)]
    validating = "".join(f"{each * 2}......" for each in steps)
    loop = timeline(
        f"step {''.join(each * 8 for each in steps)}\n"
        f"compute {''.join(f'....{each * 2}..' for each in steps)}\n"
        f"wait name=validate {validating}\nfetch name=validate {validating}"
    )
    assert {"validate"} == set(loop.spans.filter(kind="wait")["name"])
    whole = pipeline(loop)
    assert whole.knows_makers
    of_cause = {each.cause: each.share for each in gains_of(whole).gains}
    assert of_cause["validation"] == pytest.approx(1 / 4, rel=0.1)
    assert of_cause["compute"] == pytest.approx(1 / 4, rel=0.1)
