"""JSON responses, encoded by msgspec."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response


def json_response(content: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response with this content."""
    return Response(msgspec.json.encode(content), status, headers, "application/json")
