"""Embedders: the interface, and one module per implementation."""

import sys

# OpenVINO reports its use over the network if this package is there, and works without it.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
