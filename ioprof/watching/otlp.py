"""Sends the metrics of a job to a collector of OpenTelemetry.

The protocol is OTLP over HTTP with JSON: https://opentelemetry.io/docs/specs/otlp/#otlphttp. All
sums are cumulative. Names are those of Prometheus without `_total`, which a collector that hands
metrics on to Prometheus adds again.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from itertools import pairwise
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import msgspec

from ioprof import __version__
from ioprof.errors import CommandError
from ioprof.report.texts.units import visible
from ioprof.watching.metrics import Family, printable

_PATH: Final = "/v1/metrics"
_HEADERS: Final = "OTEL_EXPORTER_OTLP_HEADERS"
"""Such as `api-key=key,other=value`, as the specification of OpenTelemetry's exporters has it."""
_TIMEOUT_S: Final = 5.0
_MOST_ANSWERED: Final = 1 << 16
_CUMULATIVE: Final = 2


class OtlpSender:
    """Sends metrics to one collector."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        self._headers = _headers(environment.get(_HEADERS, ""))
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise CommandError(
                f"--otlp {visible(url)}: no address of a collector; type --otlp http://HOST:4318"
            )
        self.url = url if parts.path.rstrip("/") else f"{url.rstrip('/')}{_PATH}"
        """Where they are sent."""
        self.failed = 0
        """How many times that failed."""
        self.why = ""
        """Why it did so last."""

    def send(self, found: Sequence[Family]) -> None:
        """Once; a failure is counted."""
        body = msgspec.json.encode(request_of(found, time.time_ns()))
        headers = {"Content-Type": "application/json", **self._headers}
        try:
            with urlopen(Request(self.url, body, headers), timeout=_TIMEOUT_S) as answer:  # noqa: S310  # the scheme was checked
                answer.read(_MOST_ANSWERED)
        except HTTPError as error:
            self.failed, self.why = self.failed + 1, f"it answered {error.code}"
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            self.why = str(getattr(reason, "strerror", None) or reason or type(error).__name__)
            self.failed += 1


def _headers(text: str) -> dict[str, str]:
    pairs = (each.partition("=") for each in text.split(","))
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs if value}


def request_of(found: Sequence[Family], time_ns: int) -> dict[str, Any]:
    """The body of a request, an `ExportMetricsServiceRequest`."""
    metrics = [_metric(family, str(time_ns)) for family in found if family.samples]
    scope = {"scope": {"name": "ioprof", "version": __version__}, "metrics": metrics}
    resource = {"attributes": _attributes({"service.name": "ioprof"})}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [scope]}]}


def _metric(family: Family, at: str) -> dict[str, Any]:
    of_kind: dict[str, Any]
    if family.kind == "histogram":
        points = list(_histograms(family, at))
        of_kind = {
            "histogram": {"dataPoints": points, "aggregationTemporality": _CUMULATIVE},
        }
    else:
        points = [
            {"attributes": _attributes(labels), "timeUnixNano": at, "asDouble": value}
            for _, labels, value in family.samples
        ]
        facts = {"aggregationTemporality": _CUMULATIVE, "isMonotonic": True}
        of_kind = (
            {"gauge": {"dataPoints": points}}
            if family.kind == "gauge"
            else {"sum": {"dataPoints": points, **facts}}
        )
    name = family.name.removesuffix("_total")
    unit = "s" if name.endswith("_seconds") else "By" if name.endswith("_bytes") else "1"
    return {"name": name, "description": family.text, "unit": unit, **of_kind}


def _histograms(family: Family, at: str) -> Iterator[dict[str, Any]]:
    """A point for each set of labels: its classes, then its sum and its count."""
    bounds: list[float] = []
    numbers: list[int] = []
    total = 0.0
    for end, labels, value in family.samples:
        if end == "_bucket":
            bounds.append(float(labels["le"]))
            numbers.append(int(value))
        elif end == "_sum":
            total = value
        else:
            each = [after - before for before, after in pairwise([0, *numbers])]
            yield {
                "attributes": _attributes(labels),
                "timeUnixNano": at,
                "count": str(int(value)),
                "sum": total,
                "bucketCounts": [str(number) for number in each],
                "explicitBounds": bounds[:-1],
            }
            bounds, numbers = [], []


def _attributes(labels: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"stringValue": printable(value)}} for key, value in labels.items()
    ]
