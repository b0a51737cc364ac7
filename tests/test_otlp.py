"""Metrics of a job that goes on, sent to a collector of OpenTelemetry."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from ioprof.errors import CommandError
from ioprof.format.layout import RECORD_DTYPE
from ioprof.format.schema import KINDS
from ioprof.watching.live import Live
from ioprof.watching.metrics import families, metrics_text
from ioprof.watching.otlp import OtlpSender, request_of
from ioprof.watching.spool import News, Who


def test_a_collector_of_opentelemetry_gets_the_same_values() -> None:
    """Each value of the text is in the protocol's own message, under the name without `_total`."""
    parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus_client")
    messages = pytest.importorskip(
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
        reason="needs opentelemetry-proto",
    )
    from google.protobuf import json_format

    live = Live()
    records = np.zeros(4, RECORD_DTYPE)
    records["kind"] = [KINDS.index(kind) + 1 for kind in ("read", "read", "fetch", "step")]
    records["start_ns"], records["end_ns"] = (
        [1, 10, 10, 1],
        [50_000, 9_000_000, 9_100_000, 9_900_000],
    )
    records["source"], records["bytes"] = [1, 2, 0, 0], 10
    live.add(News(Who("node1", 1, 0, 0), records, {}, 0))
    live.settle(100_000_000)
    found = list(families(live, "a\njob", True, 3))
    with collector() as (url, bodies):
        sender = OtlpSender(url, {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, x=y"})
        sender.send(found)
        ((path, headers, body),) = bodies
        assert (0, "/v1/metrics") == (sender.failed, path)
        assert ("a b", "y") == (headers["api-key"], headers["x"])
        message = json_format.Parse(body, messages.ExportMetricsServiceRequest())
    assert json_format.Parse(
        json.dumps(request_of(found, 1)), messages.ExportMetricsServiceRequest()
    )
    (of_resource,) = message.resource_metrics
    (of_scope,) = of_resource.scope_metrics
    sent: dict[Any, Any] = {}
    for metric in of_scope.metrics:
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            labels = frozenset((each.key, each.value.string_value) for each in point.attributes)
            sent[metric.name, labels] = point
    expected = 0
    for family in parser.text_string_to_metric_families(metrics_text(found)):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            point = sent[family.name, frozenset(labels.items())]
            expected += 1
            if family.type != "histogram":
                assert sample.value == point.as_double
            elif sample.name.endswith("_sum"):
                assert sample.value == pytest.approx(point.sum)
            elif sample.name.endswith("_count"):
                assert sample.value == point.count == sum(point.bucket_counts)
            else:
                bounds = [*point.explicit_bounds, float("inf")]
                place = bounds.index(float(sample.labels["le"]))
                assert sample.value == sum(point.bucket_counts[: place + 1])
    assert expected > len(sent) > 10


def test_a_collector_that_is_away_or_refuses_is_told_and_nothing_else_happens() -> None:
    """Whatever is sent to it; what is no address is refused with what to type."""
    for url in ("collector:4318", "file:///etc/passwd", "http://", "ftp://host/x"):
        with pytest.raises(CommandError, match="type --otlp http://HOST:4318"):
            OtlpSender(url, {})
    with collector(status=403) as (url, bodies):
        refused = OtlpSender(f"{url}/own/path", {})
        refused.send([])
    assert ([f"{urlsplit(url).path}/own/path"], 1, "it answered 403") == (
        [path for path, *_ in bodies],
        refused.failed,
        refused.why,
    )
    refused.send([])
    assert (2, "Connection refused") == (refused.failed, refused.why)


@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """One that keeps the path, the headers and the body of each request."""
    bodies: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            bodies.append((self.path, self.headers, self.rfile.read(length)))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # its name there
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
