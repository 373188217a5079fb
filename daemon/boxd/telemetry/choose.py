"""Loads the libraries for metrics and traces when a flag asks for them.

Few services need them. *Measured*: 0.07 s of processor time and 14 MB for `prometheus_client`
alone, 0.11 s and 14 MB for the libraries of OpenTelemetry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from boxd.telemetry.metrics import Metrics
    from boxd.telemetry.traces import Traces


def metrics_of() -> Metrics:
    """Return an observer that counts."""
    from boxd.telemetry.metrics import Metrics

    return Metrics()


def traces_of(endpoint: str, version: str) -> Traces:
    """Return an observer that sends traces to an OTLP/HTTP receiver."""
    from boxd.telemetry.traces import Traces

    return Traces(endpoint, version)
