"""Kineto traces of the GPU become spans on the monotonic clock, also from truncated or corrupt
files."""

import gzip
import json
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_files import ANCHOR, MONO_NS, WALL_NS, document, event, launch, meta, write
from strategies import examples

from ioprof.clock import Anchor
from ioprof.errors import CaptureError
from ioprof.format.run_record import GpuNote, RunRecord
from ioprof.format.schema import SPAN_COLUMNS
from ioprof.format.trace import Trace, table_schema
from ioprof.ingest import kineto

T = MONO_NS  # the window's start
MS = 1_000_000
DATA = Path(__file__).parent / "data"
MARKS = [(6, T), (7, T + 10 * MS), (8, T + 20 * MS)]
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COMMON = {"device": 0, "context": 1, "stream": 7}

# the work of one step, launched in step 7; the exchange starts after the end of step 7 on the host
STEP = [
    launch(T + 1 * MS, 1),
    event(
        "gpu_memcpy",
        "Memcpy HtoD (Pageable -> Device)",
        T + 1 * MS + 9,
        2 * MS,
        correlation=1,
        bytes=602_112,
        **COMMON,
    ),
    launch(T + 2 * MS, 2),
    event(
        "gpu_memcpy",
        "Memcpy HtoD (Pinned -> Device)",
        T + 3 * MS,
        MS,
        stream=13,
        correlation=2,
        bytes=1024,
    ),
    launch(T + 3 * MS, 3),
    event(
        "kernel",
        "void at::native::elementwise_kernel<4>(int)",
        T + 4 * MS,
        MS,
        correlation=3,
        grid=[8, 1, 1],
    ),
    launch(T + 4 * MS, 4),
    event("gpu_memset", "Memset (Device)", T + 5 * MS, 1_500, correlation=4, bytes=64),
    launch(T + 5 * MS, 5),
    event(
        "gpu_memcpy", "Memcpy DtoD (Device -> Device)", T + 6 * MS, 5_088, correlation=5, bytes=4000
    ),
    launch(T + 6 * MS, 6),
    event("kernel", NCCL, T + 11 * MS, MS, stream=20, correlation=6),
    launch(T + 7 * MS, 7),
    event("kernel", NCCL, T + 12 * MS, MS, device=1, stream=20, correlation=7),
    launch(T + 8 * MS, 8),
    event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", T + 14 * MS, 700, correlation=8, bytes=4),
]


def rows(window: kineto.Window, *columns: str) -> list[tuple[object, ...]]:
    return window.spans.select(columns).rows()


def damage(window: kineto.Window) -> set[str]:
    return {what for what, count in window.damage.items() if count}


def test_device_activities_become_spans(tmp_path: Path) -> None:
    """Copies by direction, with bytes and kind of memory; collectives by name; all others are
    kernels; times are exact."""
    window = kineto.read_window(*write(tmp_path, document(*STEP), meta(MARKS)))

    assert [
        ("h2d", T + 1 * MS + 9, T + 3 * MS + 9, 7, 7, 602_112, "pageable"),
        ("h2d", T + 3 * MS, T + 4 * MS, 13, 7, 1024, "pinned"),
        (
            "kernel",
            T + 4 * MS,
            T + 5 * MS,
            7,
            7,
            None,
            "void at::native::elementwise_kernel<4>(int)",
        ),
        ("kernel", T + 5 * MS, T + 5 * MS + 1_500, 7, 7, 64, "Memset"),
        ("kernel", T + 6 * MS, T + 6 * MS + 5_088, 7, 7, 4000, "Memcpy DtoD"),
        ("comm", T + 11 * MS, T + 12 * MS, 20, 7, None, "AllReduce 0"),
        ("comm", T + 12 * MS, T + 13 * MS, 65536 + 20, 7, None, "AllReduce 1"),
        ("d2h", T + 14 * MS, T + 14 * MS + 700, 7, 7, 4, "pinned"),
    ] == rows(window, "kind", "start_ns", "end_ns", "stream", "step", "bytes", "name")
    assert [("node1", 3, 41)] * 8 == rows(window, "host", "rank", "pid")
    assert table_schema(SPAN_COLUMNS) == window.spans.schema
    assert (set(), Counter()) == (damage(window), window.left_out)
    assert (7, 8, T, T + 20 * MS) == tuple(
        getattr(window.facts(), name) for name in ("first_step", "last_step", "start_ns", "end_ns")
    )


def test_both_writers_of_torch_give_the_same_spans(tmp_path: Path) -> None:
    """Kineto in C++ indents, the exporter in Python writes one line per event; other writers may
    use any order of keys."""
    expected = kineto.read_window(*write(tmp_path, document(*STEP), meta(MARKS)))
    parsed = [json.loads(text, parse_float=_Exact) for text in STEP]
    lines = ["\n" + json.dumps(each, separators=(",", ":"), default=str) for each in parsed]
    turned = [
        "\n" + json.dumps({"ph": each["ph"], **dict(reversed(each.items()))}, default=str)
        for each in parsed
    ]
    for events in (lines, turned):
        text = document(*events).replace('"~', "").replace('~"', "")
        found = kineto.read_window(*write(tmp_path, text, meta(MARKS)))
        assert expected.spans.rows() == found.spans.rows()
        assert set() == damage(found)


class _Exact(str):
    """A number that json.dumps writes with exactly the same digits, between markers that the test
    removes."""

    def __new__(cls, text: str) -> "_Exact":
        return super().__new__(cls, f"~{text}~")


def test_public_records_of_older_versions(tmp_path: Path) -> None:
    """Events from the HTA test data, unchanged: a collective with its process group, and a copy
    within the device."""
    collective = (
        '{"ph":"X","cat":"kernel","name":"ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*,'
        " unsigned long,"
        ' ncclWork*)","pid":0,"tid":40,"ts":4458677009853.422,"dur":2636.669,"args":{"External'
        ' id":12945,"device":0,"context":1,"stream":40,"correlation":60047,"grid":[8,1,1],"block":[544,1,1],"Collective'  # noqa: E501
        ' name":"allreduce","In msg nelems":6637568,"Out msg nelems":6637568,"Group'
        ' size":2,"dtype":"Float","Process Group Name":"0","Process Group Ranks":"[0, 1]"}}'
    )
    copy = (
        '{"ph":"X","cat":"gpu_memcpy","name":"Memcpy DtoD (Device ->'
        ' Device)","pid":0,"tid":7,"ts":4458677052061.431,"dur":5.088,"args":{"External'
        ' id":13889,"device":0,"context":1,"stream":7,"correlation":64014,"bytes":4000,"memory'
        ' bandwidth (GB/s)":0.7861635220125787}}'
    )
    call = (
        '{"ph":"X","cat":"cuda_runtime","name":"cudaMemcpyAsync","pid":2910249,"tid":2919752,"ts":4458677051847.046,"dur":33.518,"args":{"External'
        ' id":13889,"cbid":41,"correlation":64014}}'
    )
    base = 1_711_964_646_000_000_000
    text = document(
        call,
        collective,
        copy,
        base=f'"baseTimeNanoseconds": {base},',
        after=', "distributedInfo": {"backend": "nccl", "rank": "1"}',
    )
    path, _ = write(tmp_path, text, name="rank-1")

    window = kineto.read_window(path, anchor=Anchor(0, base, 0))

    assert [
        ("comm", 4_458_677_009_853_422, 4_458_677_012_490_091, 1, 4 * 6_637_568, "AllReduce 0"),
        ("kernel", 4_458_677_052_061_431, 4_458_677_052_066_519, 1, 4000, "Memcpy DtoD"),
    ] == rows(window, "kind", "start_ns", "end_ns", "rank", "bytes", "name")


@pytest.mark.parametrize("ts", ["1712195495520883.0", "1712195495520883.25", "1712195495520883"])
def test_times_since_1970_need_no_base(tmp_path: Path, ts: str) -> None:
    """Before torch 2.4 times were microseconds since 1970; a double has a resolution of 0.25 µs
    there."""
    text = document(
        f'{{"ph": "X", "cat": "Kernel", "name": "k", "pid": 0, "tid": 7, "ts": {ts}, "dur": 3,'
        ' "args": {}}',
        base=None,
    )
    path, _ = write(tmp_path, text)
    window = kineto.read_window(path, anchor=Anchor(0, 0, 0))
    nanoseconds = 250 if ts.endswith("25") else 0
    assert [
        (1_712_195_495_520_883_000 + nanoseconds, 1_712_195_495_520_886_000 + nanoseconds)
    ] == rows(window, "start_ns", "end_ns")


def test_relative_times_without_a_base_give_no_spans(tmp_path: Path) -> None:
    """Without a base, relative times cannot be converted."""
    window = kineto.read_window(*write(tmp_path, document(*STEP, base=None), meta(MARKS)))
    assert (0, {"the base of its times is unknown"}) == (len(window.spans), damage(window))


def test_without_a_wall_clock_reading_there_are_no_spans(tmp_path: Path) -> None:
    """Wall clock times alone cannot be converted to monotonic times."""
    path, _ = write(tmp_path, document(*STEP))
    window = kineto.read_window(path)
    assert (0, {"no wall clock reading to convert its times with"}) == (
        len(window.spans),
        damage(window),
    )


# --------------------------------------------------------------------------------- impossible times


def test_spans_before_their_launch_are_dropped_and_counted(tmp_path: Path) -> None:
    """Kineto corrupts the first events of later sessions; differences below 1 µs are clock skew and
    corrected."""
    events = [
        launch(T + MS, 1), event("kernel", "spoilt", T - 10**14, 5, correlation=1),
        launch(T + MS, 2), event("kernel", "early", T + MS - 1_001, 5, correlation=2),
        launch(T + MS, 3), event("kernel", "skewed", T + MS - 1_000, 1_500, correlation=3),
        launch(T + MS, 4), event("kernel", "just after", T + MS + 3, 5, correlation=4),
    ]  # fmt: skip
    window = kineto.read_window(*write(tmp_path, document(*events), meta(MARKS)))
    assert [("skewed", T + MS, T + MS + 500), ("just after", T + MS + 3, T + MS + 8)] == rows(
        window, "name", "start_ns", "end_ns"
    )
    assert {"began before its launch": 2} == window.left_out


def test_a_launch_without_a_record_is_counted(tmp_path: Path) -> None:
    """Only of kernels: a copy of 0 bytes has no activity either."""
    copy = launch(T, 3).replace("cudaLaunchKernel", "cudaMemcpyAsync")
    window = kineto.read_window(
        *write(
            tmp_path,
            document(launch(T, 1), launch(T, 2), copy, event("kernel", "k", T, 5, correlation=2)),
            meta(MARKS),
        )
    )
    assert (1, 1) == (window.unrecorded_launches, len(window.spans))


def test_spans_outside_the_window_are_dropped_and_counted(tmp_path: Path) -> None:
    """A span without a launch is compared with the window only."""
    events = [
        event("kernel", "k", at, 5) for at in (T - 2 * MS, T + 1, T + 20 * MS + 5, T + 22 * MS)
    ]
    window = kineto.read_window(*write(tmp_path, document(*events), meta(MARKS)))
    assert [(T + 1,), (T + 20 * MS + 5,)] == rows(window, "start_ns")
    assert {"outside of its window": 2} == window.left_out


def test_collectives_keep_their_number_when_one_is_dropped(tmp_path: Path) -> None:
    """The number matches them across ranks."""
    events = [
        text
        for n in (1, 2, 3)
        for text in (launch(T + n * MS, n), event("kernel", NCCL, T + n * MS + 5, 9, correlation=n))
    ]
    events[1] = event("kernel", NCCL, T - 10**12, 9, correlation=1)
    window = kineto.read_window(*write(tmp_path, document(*events), meta(MARKS)))
    assert [("AllReduce 1",), ("AllReduce 2",)] == rows(window, "name")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (NCCL, "comm"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", "comm"),
        ("ncclSymkDevKernel_AllReduce_RSxLD_AGxST_sum_f32(ncclSymkDevWorkArgs4K)", "comm"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "comm"),
        ("void one_shot_all_reduce_kernel<float, 8, true>()", "comm"),
        ("void vllm::cross_device_reduce_2stage<nv_bfloat16, 8>(vllm::RankData*)", "comm"),
        ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "comm"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>()", "kernel"),
        ("nchwToNhwcKernel", "kernel"),
        ("void at::native::reduce_kernel<512, 1>(at::native::ReduceOp<float>)", "kernel"),
    ],
)
def test_kernels_of_collectives(tmp_path: Path, name: str, kind: str) -> None:
    """They are recognised by name, because device activities contain nothing else."""
    window = kineto.read_window(
        *write(tmp_path, document(event("kernel", name, T + MS, 5)), meta(MARKS))
    )
    assert [(kind,)] == rows(window, "kind")


# ------------------------------------------------------------------------------------------- clocks


def test_the_most_precise_wall_clock_reading_is_used(tmp_path: Path) -> None:
    """Readings that agree within their uncertainty are one offset; the narrowest one is used."""
    wide = Anchor(MONO_NS - 9_000, WALL_NS + 900, MONO_NS + 9_000)
    for anchors in ([ANCHOR, wide], [wide, ANCHOR]):
        window = kineto.read_window(
            *write(tmp_path, document(event("kernel", "k", T + 777, 1)), meta(MARKS, anchors))
        )
        assert [(T + 777,)] == rows(window, "start_ns")
        assert (20, set()) == (window.uncertainty_ns, damage(window))


def test_a_step_of_the_wall_clock_is_corrected_and_reported(tmp_path: Path) -> None:
    """Kineto interpolates all times of a session between its readings at both ends; the reader
    reverts that."""
    moved, length = 40 * MS, 20 * MS
    after = Anchor(MONO_NS + length - 20, WALL_NS + length + moved, MONO_NS + length + 20)
    distorted = [
        event("kernel", "k", T + at * (length + moved) // length, 1)
        for at in (0, length // 4, length)
    ]
    window = kineto.read_window(
        *write(tmp_path, document(*distorted), meta(MARKS, [ANCHOR, after]))
    )
    assert [(T,), (T + length // 4,), (T + length,)] == rows(window, "start_ns")
    assert {"the wall clock was set by +0.040000 s during this window"} == damage(window)
    assert 20 + moved == window.uncertainty_ns


@settings(
    max_examples=examples(50),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    at=st.lists(st.integers(0, 20 * MS - 1), min_size=1, max_size=20), shift=st.integers(0, 10**15)
)
def test_times_are_exact_to_the_nanosecond(tmp_path: Path, at: list[int], shift: int) -> None:
    """For any value of the monotonic clock."""
    anchor = Anchor(MONO_NS + shift, WALL_NS, MONO_NS + shift)
    marks = [(step, ns + shift) for step, ns in MARKS]
    window = kineto.read_window(
        *write(
            tmp_path,
            document(*(event("kernel", "k", T + ns, 1) for ns in at)),
            meta(marks, [anchor]),
        )
    )
    assert [(T + ns + shift,) for ns in sorted(at)] == rows(window, "start_ns")
    assert [(8 if ns > 10 * MS else 7 if ns else None,) for ns in sorted(at)] == rows(
        window, "step"
    )


# ------------------------------------------------------------------------------------------- damage


def test_a_file_may_be_gzipped(tmp_path: Path) -> None:
    """Under any name."""
    expected = kineto.read_window(*write(tmp_path, document(*STEP), meta(MARKS)))
    path, about = write(tmp_path, "", meta(MARKS))
    path.write_bytes(gzip.compress(document(*STEP).encode()))
    found = kineto.read_window(path, about)
    assert expected.spans.rows() == found.spans.rows()
    path.write_bytes(path.read_bytes()[:-20])
    assert {"truncated or corrupt gzip data"} <= damage(kineto.read_window(path, about))


def test_a_truncated_file_gives_its_complete_events(tmp_path: Path) -> None:
    """All complete events, wherever it was truncated, and the truncation is reported."""
    text, whole = (
        document(*STEP),
        kineto.read_window(*write(tmp_path, document(*STEP), meta(MARKS))).spans,
    )
    found = []
    for length in range(0, len(text) - 40, 97):
        window = kineto.read_window(*write(tmp_path, text[:length], meta(MARKS)))
        found.append(len(window.spans))
        assert damage(window) or not length
        assert window.spans.join(whole, on=["start_ns", "kind"], how="anti").is_empty()
    assert sorted(found) == found
    assert len(whole) == found[-1] + 1


@pytest.mark.parametrize(
    ("garbled", "what"),
    [
        (event("kernel", "k", T, 5).replace('"ts": ', '"ts": "noon", "was": '), "an event with impossible times"),  # noqa: E501
        (event("kernel", "k", T, 5).replace('"dur": ', '"dur": -'), "an event with impossible times"),  # noqa: E501
        (event("kernel", "k", T, 5).replace('"ts": ', '"ts": 9999999999'), "an event with impossible times"),  # noqa: E501
        (event("kernel", "k", T, 5).replace('"dur"', '"took"'), "an event without a required field"),  # noqa: E501
        (event("kernel", "k", T, 5).replace('"k"', '"say "k""'), "an event that cannot be parsed"),
        (event("kernel", "k", T, 5).replace('"k"', "null"), "an event without a required field"),
    ],
)  # fmt: skip
def test_a_garbled_event_is_counted_and_the_rest_kept(
    tmp_path: Path, garbled: str, what: str
) -> None:
    """One corrupt event loses only that event."""
    good = event("kernel", "good", T + MS, 5)
    window = kineto.read_window(*write(tmp_path, document(good, garbled, good), meta(MARKS)))
    assert [("good",), ("good",)] == rows(window, "name")
    assert {what} == damage(window)


def test_any_name_is_read(tmp_path: Path) -> None:
    """Escapes, control characters that older versions wrote, very long templates, bytes that are
    not UTF-8."""
    texts = [
        event("kernel", 'a "b" \\ é', T + 1, 1),
        event("kernel", "tab@", T + 2, 1).replace("@", "\t\n"),
        event("kernel", "x" * 9999, T + 3, 1),
    ]
    path, about = write(tmp_path, "", meta(MARKS))
    path.write_bytes(
        document(*texts, event("kernel", "bytes@", T + 4, 1))
        .encode()
        .replace(b"bytes@", b"bytes\xff")
    )
    window = kineto.read_window(path, about)
    assert [('a "b" \\ é',), ("tab\t\n",), ("x" * 200,), ("bytes\ufffd",)] == rows(window, "name")
    assert set() == damage(window)


@pytest.mark.parametrize("other", ["", '"id": 1, '])
def test_half_surrogate_pairs_are_read(tmp_path: Path, other: str) -> None:
    """JSON may escape half a pair, which is no character of UTF-8; in an event of the usual form
    and in another order of fields."""
    args = {"Collective_name": "allreduce", "dtype": "\ud801", "In_msg_nelems": 3}
    events = [
        event("kernel", "gemm\ud800", T, 5),
        event("kernel", "ncclKernel_AllReduce\ud800", T + 9, 5, **args),
    ]
    text = document(*(each.replace('"cat"', f'{other}"cat"') for each in events))
    window = kineto.read_window(*write(tmp_path, text, meta(MARKS)))
    assert [("kernel", "gemm\\ud800"), ("comm", "AllReduce 0")] == rows(window, "kind", "name")
    assert set() == damage(window)


@pytest.mark.parametrize("size", ['"N/A"', "-5", "1e400", "null", "[1]", "99999999999999999999"])
def test_invalid_bytes_are_null(tmp_path: Path, size: str) -> None:
    """The copy is kept."""
    copy = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", T, 5, bytes=0).replace(
        '"bytes": 0', f'"bytes": {size}'
    )
    window = kineto.read_window(*write(tmp_path, document(copy), meta(MARKS)))
    assert [("h2d", "pinned")] == rows(window, "kind", "name")
    assert window.spans["bytes"][0] in (None, 1)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", "\x00" * 4096, '{"traceEvents": {}}', '"ph"' * 1000, "[" * 100_000],
)
def test_files_that_are_not_kineto_traces(tmp_path: Path, text: str) -> None:
    """No spans, no exception."""
    window = kineto.read_window(*write(tmp_path, text, meta(MARKS)))
    assert window.spans.is_empty()
    assert (damage(window) != set()) == (text not in ("", '{"traceEvents": {}}'))


def test_a_trace_of_host_activities_has_no_spans(tmp_path: Path) -> None:
    """Operators and annotations are no device activities; that is no damage."""
    events = (
        event("cpu_op", "aten::mm", T, 5),
        event("user_annotation", "ProfilerStep#3", T, 5),
        launch(T, 1),
    )
    window = kineto.read_window(*write(tmp_path, document(*events), meta(MARKS)))
    assert (0, set()) == (len(window.spans), damage(window))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
NONSENSE = (
    SCALARS
    | st.lists(SCALARS, max_size=3)
    | st.dictionaries(st.text(max_size=9), SCALARS, max_size=3)
)


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(about=st.dictionaries(st.sampled_from(sorted(meta(MARKS))), NONSENSE) | NONSENSE)
def test_invalid_metadata(tmp_path: Path, about: object) -> None:
    """Each invalid value is treated as missing."""
    path, _ = write(tmp_path, document(*STEP))
    meta_path = tmp_path / "m.meta.json"
    meta_path.write_text(json.dumps(about))
    assert 0 == len(kineto.read_window(path, meta_path).spans)
    meta_path.write_text(
        json.dumps(
            {
                **meta(MARKS),
                **(about if isinstance(about, dict) else {}),
                "anchors": meta(MARKS)["anchors"],
            }
        )
    )
    assert table_schema(SPAN_COLUMNS) == kineto.read_window(path, meta_path).spans.schema


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_corrupt_files_are_read(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes are changed, removed and inserted anywhere."""
    content = bytearray(document(*STEP).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        at, length = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 60))
        content[at : at + length] = data.draw(
            st.binary(max_size=30) | st.sampled_from([b'"ph"', b"{", b'": "', b"-9e99", b"[" * 999])
        )
    path, about = write(tmp_path, "", meta(MARKS))
    path.write_bytes(content)
    window = kineto.read_window(path, about)
    assert table_schema(SPAN_COLUMNS) == window.spans.schema
    assert (window.spans["end_ns"] >= window.spans["start_ns"]).all()


# ------------------------------------------------------------------------------------------ folders


def test_a_folder_of_windows(tmp_path: Path) -> None:
    """In the order of recording; the window of a killed process has no spans, and its damage says
    so."""
    for number in (10, 2):
        write(tmp_path, document(*STEP), meta(MARKS, number=number), f"kineto-node1-41-{number}")
    write(tmp_path, "", meta(MARKS, stopped_ns=None, number=11), "kineto-node1-41-11")[0].unlink()
    (tmp_path / "kineto-node1-41-12.json.tmp").write_text(document(*STEP)[:-200])
    (tmp_path / "kineto-node1-41-12.meta.json").write_text(json.dumps(meta(MARKS)))

    windows = kineto.read_windows(tmp_path)

    assert [(2, 8), (10, 8), (11, 0), (12, 7)] == [
        (window.number, len(window.spans)) for window in windows
    ]
    assert {
        "the process ended during this window",
        "no trace of this window was written",
    } == damage(windows[2])
    assert {"truncated: its end is missing"} == damage(windows[3])
    with pytest.raises(CaptureError, match="no such spool folder"):
        kineto.read_windows(tmp_path / "other")


def test_windows_are_added_to_the_trace_on_its_clock(tmp_path: Path) -> None:
    """Shifted like all spans of their host; the rank is that of the process."""
    write(tmp_path, document(*STEP), meta(MARKS))
    (tmp_path / "gpu-node1-41.json").write_text(
        '{"host": "node1", "pid": 41, "notes": {"CUPTI was taken": 2}}'
    )
    (tmp_path / "gpu-node1-42.json").write_text("[]")
    run = {
        "clocks": {
            "zero_monotonic_ns": 1000,
            "anchors": [{"host": "node0", "offset_ns": 70}, {"host": "node1", "offset_ns": 90}],
        },
        "processes": [{"host": "node1", "pid": 41, "rank": 5}],
        "capture": {"reads": True, "damaged": [{"file": "a.ring", "what": "cut"}]},
    }
    empty = pl.DataFrame(schema=table_schema(SPAN_COLUMNS))

    trace = kineto.add_windows(Trace(RunRecord.of(run), empty), tmp_path)

    assert ([5] * 8, T + MS + 9 - 1000 + 20) == (
        trace.spans["rank"].to_list(),
        trace.spans["start_ns"].min(),
    )
    gpu = trace.run.capture.gpu
    assert (GpuNote(host="node1", pid=41, reasons={"CUPTI was taken": 2}),) == gpu.notes
    assert [(5, 7, 8, T - 980)] == [
        tuple(getattr(w, key) for key in ("rank", "first_step", "last_step", "start_ns"))
        for w in gpu.windows
    ]
    assert (["a.ring"], True) == (
        [damage.file for damage in trace.run.capture.damaged],
        trace.run.capture.reads,
    )
    assert trace.run.to_json()


def test_a_spool_without_a_gpu_does_not_change_the_trace(tmp_path: Path) -> None:
    """Not even an empty list is added."""
    trace = Trace(RunRecord(), pl.DataFrame(schema=table_schema(SPAN_COLUMNS)))
    assert trace is kineto.add_windows(trace, tmp_path)


def test_a_window_of_a_real_device() -> None:
    """Of an H100 (torch 2.11, CUDA 13.0): 20 products of matrices, and a value of the last one, for
    which the loop waits."""
    (found,) = kineto.read_windows(DATA / "kineto")
    kernels = found.spans.filter(kind="kernel", step=1)
    products = kernels.filter(pl.col("name").cast(pl.String).str.contains("gemm")).sort("start_ns")
    assert 20 == len(products)
    assert all(
        starts >= ends
        for starts, ends in zip(products["start_ns"][1:], products["end_ns"][:-1], strict=True)
    )
    (copy,) = found.spans.filter(kind="d2h").rows(named=True)
    assert 4 == copy["bytes"]
    waits = found.spans.filter(kind="sync").sort("start_ns")
    assert {872} == set(waits["tid"])  # Kineto wrote the lower half of pthread_self()
    longest = waits.sort(pl.col("end_ns") - pl.col("start_ns")).row(-1, named=True)
    assert longest["start_ns"] < products["start_ns"][10]
    assert copy["end_ns"] <= longest["end_ns"] < copy["end_ns"] + MS
    assert "cudaStreamSynchronize" == longest["name"]
    assert found.loop_waited_ns == (waits["end_ns"] - waits["start_ns"]).sum()
    assert ({}, {}, 0) == (dict(+found.damage), dict(found.left_out), found.unrecorded_launches)
