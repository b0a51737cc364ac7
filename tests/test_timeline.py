"""The drawing language of the analysis tests."""

import pytest
from timeline import charged, pid, timeline

from ioprof.format.schema import CAUSES, SPAN_COLUMNS


def test_a_bar_becomes_spans_of_ten_nanoseconds_a_character() -> None:
    """Equal neighbouring characters are one span; `.` is nothing; blanks take no time."""
    spans = timeline("read ##..# =.").spans
    assert [(0, 20), (40, 50), (50, 60)] == spans.select("start_ns", "end_ns").rows()


def test_marks_number_steps_and_batches() -> None:
    """A digit or letter is a number; other characters have none."""
    spans = timeline("wait 00a#").spans
    assert [(0, 0), (10, 10), (None, None)] == spans.select("step", "batch").rows()


def test_words_say_where_a_span_ran_and_what_it_was() -> None:
    """Rank, worker, source, bytes and name; streams for activities of a device."""
    spans = timeline(
        """
        read r1 w2 cache 4096B   #
        read                     #
        comm name=bucket         #
        comm                     #
        compute                  #
        compute main             #
        """
    ).spans
    assert [pid(1, 2), pid(0), pid(0), pid(0), pid(0), pid(0)] == spans["pid"].to_list()
    assert [1, 0, 0, 0, 0, 0] == spans["rank"].to_list()
    assert ["page_cache", "storage", None, None, None, None] == spans["source"].to_list()
    assert [4096, None, None, None, None, None] == spans["bytes"].to_list()
    assert [None, None, "bucket", "gradients", None, None] == spans["name"].to_list()
    assert [None, None, 2, 2, 0, None] == spans["stream"].to_list()
    assert [True, True, False, False, False, True] == (spans["pid"] == spans["tid"]).to_list()


def test_the_run_fits_the_drawing() -> None:
    """Ranks and workers are counted; values set by a test take precedence."""
    trace = timeline("fetch w0 #\nfetch w1 #\nstep r1 0", config={"batch_size": 8}, status="failed")
    assert (2, 2, 8, "failed") == (
        trace.run.config.ranks,
        trace.run.config.workers,
        trace.run.config.batch_size,
        trace.run.status,
    )
    assert list(SPAN_COLUMNS) == trace.spans.columns


@pytest.mark.parametrize("line", ["read", "read r1", "read ##?", "read so ##", "reed ##"])
def test_what_is_not_a_lane_is_refused(line: str) -> None:
    """A mistake in a drawing is an error, not an empty lane."""
    with pytest.raises(AssertionError, match="not a"):
        timeline(line)


def test_charged_reads_a_table_in_characters() -> None:
    """Zeros are omitted, nulls are not."""
    table = timeline("step 00").spans.select("rank", "step", "start_ns", "end_ns")
    columns = {f"{cause}_ns": [0] for cause in CAUSES} | {"host_ns": [20], "h2d_ns": [None]}
    table = table.hstack(type(table)(columns))
    assert {(0, 0): {"h2d": None, "host": 2}} == charged(table)
