"""The sums of a job as metrics, in the text format of Prometheus, and a server for them.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/. Names follow
https://prometheus.io/docs/practices/naming/: base units, `_total` for what only grows. Each value
has the labels `job`, `rank` and `host`.
"""

import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

from ioprof.errors import CommandError
from ioprof.watching.live import LATENCY_BOUNDS_S, Live, RankSums

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_MOST_CHARS: Final = 200  # of a label

Sample = tuple[str, dict[str, str], float]
"""The end of its name, its labels, and its value."""


class Family(NamedTuple):
    """A metric, with the values that it has for each set of labels."""

    name: str
    kind: str
    """`gauge`, `counter` or `histogram`."""
    text: str
    samples: list[Sample]


def metrics_text(found: Iterable[Family]) -> str:
    """Metrics in the text format."""
    return "".join(map(_text, found))


def families(live: Live, job: str, is_running: bool, lost: int) -> Iterator[Family]:
    """All metrics of a job."""
    ranks = [
        (sums, {"job": job, "rank": str(rank), "host": sums.host})
        for rank, sums in sorted(live.ranks.items())
    ]
    yield Family(
        "ioprof_job_running",
        "gauge",
        "1 while the job runs, 0 after its end.",
        [("", {"job": job}, float(is_running))],
    )
    yield Family(
        "ioprof_spans_total",
        "counter",
        "Spans that were read from the capture files.",
        [("", {"job": job}, live.spans)],
    )
    yield Family(
        "ioprof_spans_lost_total",
        "counter",
        "Spans that found no room in a capture file.",
        [("", {"job": job}, lost)],
    )
    yield Family(
        "ioprof_spans_skipped_total",
        "counter",
        "Records that were written faster than they are read here.",
        [("", {"job": job}, live.skipped)],
    )
    for name, text, values in (
        ("steps", "Training steps.", [sums.steps for sums, _ in ranks]),
        ("step_seconds", "Time of the training steps.", [sums.step_ns / 1e9 for sums, _ in ranks]),
        ("batches", "Batches that the rank received.", [sums.batches for sums, _ in ranks]),
        (
            "samples",
            "Samples in the batches that were made for the rank.",
            [sums.samples for sums, _ in ranks],
        ),
        (
            "wait_seconds",
            "Time in which the rank waited for batches.",
            [sums.wait_ns / 1e9 for sums, _ in ranks],
        ),
    ):
        yield Family(
            f"ioprof_{name}_total",
            "counter",
            text,
            [("", labels, value) for (_, labels), value in zip(ranks, values, strict=True)],
        )
    yield Family(
        "ioprof_cause_seconds_total",
        "counter",
        "Time of the steps by what it was spent on or waited for, an estimate.",
        [
            ("", {**labels, "cause": cause}, took / 1e9)
            for sums, labels in ranks
            for cause, took in sorted(sums.cause_ns.items())
        ],
    )
    for name, text, counters, scale in (
        ("reads", "Reads by where the bytes came from.", [sums.reads for sums, _ in ranks], 1.0),
        ("read_bytes", "Bytes that reads returned.", [sums.bytes for sums, _ in ranks], 1.0),
        (
            "read_seconds",
            "Time that reads took, added up over threads.",
            [sums.read_ns for sums, _ in ranks],
            1e9,
        ),
    ):
        yield Family(
            f"ioprof_{name}_total", "counter", text,
            [
                ("", {**labels, "source": source}, value / scale)
                for (_, labels), counter in zip(ranks, counters, strict=True)
                for source, value in sorted(counter.items())
            ],
        )  # fmt: skip
    yield Family(
        "ioprof_storage_read_latency_seconds",
        "histogram",
        "Reads that did not provably come from the page cache.",
        [sample for sums, labels in ranks for sample in _histogram(sums, labels)],
    )
    workers = [
        (
            sums,
            {
                "job": job,
                "rank": str(sums.who.rank),
                "host": sums.who.host,
                "worker": "none" if sums.who.worker is None else str(sums.who.worker),
            },
        )
        for sums in live.workers.values()
    ]
    workers.sort(key=lambda worker: tuple(worker[1].values()))
    yield Family(
        "ioprof_worker_batches_total", "counter", "Batches that a worker made.",
        [("", labels, sums.batches) for sums, labels in workers],
    )  # fmt: skip
    yield Family(
        "ioprof_worker_seconds_total",
        "counter",
        "Time in which a worker made batches, by stage.",
        [
            ("", {**labels, "stage": stage}, took / 1e9)
            for sums, labels in workers
            for stage, took in sorted(
                {**sums.stage_ns, "python": sums.fetch_ns - sum(sums.stage_ns.values())}.items()
            )
        ],
    )


def _histogram(sums: RankSums, labels: dict[str, str]) -> Iterator[Sample]:
    so_far = 0
    for bound, number in zip(
        [*(f"{bound:g}" for bound in LATENCY_BOUNDS_S), "+Inf"],
        sums.latencies.tolist(),
        strict=True,
    ):
        so_far += number
        yield "_bucket", {**labels, "le": bound}, so_far
    yield "_sum", labels, (sums.read_ns["storage"] + sums.read_ns["unknown"]) / 1e9
    yield "_count", labels, so_far


def _text(family: Family) -> str:
    name, kind, text, samples = family
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for end, labels, value in samples:
        shown = ",".join(f'{key}="{_escape(each)}"' for key, each in labels.items())
        lines.append(f"{name}{end}{{{shown}}} {value:.17g}")
    return "\n".join(lines) + "\n"


def _escape(value: str) -> str:
    """A label's value: the format escapes backslash, quote and newline."""
    return printable(value).replace("\\", "\\\\").replace('"', '\\"')


def printable(value: str) -> str:
    """The beginning of a label's value, with escapes for control characters."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in value[:_MOST_CHARS]
    )


class MetricsServer:
    """Gives out the latest text at `/metrics`, from threads of its own."""

    def __init__(self, address: str, port: int) -> None:
        self.text = ""
        """What is given out."""
        try:
            self._server = ThreadingHTTPServer((address, port), _handler(self))
        except (OSError, OverflowError) as error:
            what = getattr(error, "strerror", None) or error
            raise CommandError(
                f"--prometheus {port}: cannot listen on {address} ({what}); choose another port"
            ) from None
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        """The port that it has, if 0 was asked for."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def give(self, found: Iterable[Family]) -> None:
        """From now on."""
        self.text = metrics_text(found)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def _handler(server: MetricsServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # a client that sends nothing holds a thread no longer

        def do_GET(self) -> None:  # the name is that of the base class
            is_known = self.path.split("?")[0] in ("/metrics", "/")
            body = server.text.encode() if is_known else b"see /metrics\n"
            self.send_response(200 if is_known else 404)
            self.send_header("Content-Type", CONTENT_TYPE if is_known else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the same
            pass

    return Handler
