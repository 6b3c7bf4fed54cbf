"""Settings of a process's log and traces."""

import logging
import os

from pydantic import AnyHttpUrl, BaseModel, Field

from protocol.errors import InternalError, RagtreeError
from protocol.logs import LogFormat, LogLevel, configure_logging

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class ObservabilitySettings(BaseModel, extra="forbid", frozen=True):
    """Logs and traces. OpenTelemetry's own environment variables (``OTEL_...``) apply too."""

    log_level: LogLevel = Field("info", description="The lowest level that is logged.")
    log_format: LogFormat = Field(
        "auto",
        description="json: one JSON object per line; console: readable text; auto: console on a terminal, else json.",
    )
    otlp_endpoint: AnyHttpUrl | None = Field(
        None,
        description="Base URL of an OpenTelemetry collector for traces over OTLP/HTTP. Without it, and without "
        "OTEL_EXPORTER_OTLP_ENDPOINT, nothing is traced.",
    )

    @property
    def traced(self) -> bool:
        """Whether tracing is enabled and an endpoint is known."""
        if (
            os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
            or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
        ):
            return False
        return self.otlp_endpoint is not None or any(os.environ.get(name) for name in _ENDPOINTS)

    def configure_logging(self) -> None:
        """Configure this process's log. Errors that RAGTree raises on purpose stay out of Serve's; defects do not.

        Otherwise a caller whose requests are refused could fill the disk. The gateway logs a line for each request.
        """
        configure_logging(self.log_level, self.log_format)
        logging.getLogger("ray.serve").addFilter(_is_no_refusal)


def _is_no_refusal(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, RagtreeError) or isinstance(error, InternalError)
