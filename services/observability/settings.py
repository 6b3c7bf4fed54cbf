"""What a process of the stack tells of itself beside its metrics: its log, and its spans if they are wanted."""

import os

from pydantic import AnyHttpUrl, BaseModel, ConfigDict, Field

from protocol.logs import LogFormat, LogLevel, configure_logging

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class ObservabilitySettings(BaseModel):
    """Logs and traces. OpenTelemetry's own environment (``OTEL_...``) holds as well."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    log_level: LogLevel = Field("info", description="The least that is logged.")
    log_format: LogFormat = Field(
        "auto", description="json: a JSON object a line; console: for people; auto: for people on a terminal only."
    )
    otlp_endpoint: AnyHttpUrl | None = Field(
        None,
        description="Base URL of an OpenTelemetry collector that takes traces over OTLP/HTTP. Without it, or "
        "OTEL_EXPORTER_OTLP_ENDPOINT, nothing is traced.",
    )

    @property
    def traced(self) -> bool:
        """Whether spans are wanted, and somewhere to send them is known."""
        if (
            os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
            or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
        ):
            return False
        return self.otlp_endpoint is not None or any(os.environ.get(name) for name in _ENDPOINTS)

    def configure_logging(self) -> None:
        """Set this process's log up."""
        configure_logging(self.log_level, self.log_format)
