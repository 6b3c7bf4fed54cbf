"""What `helm test` runs: is the stack ready, and does it answer? Exits with 1, and says why, when it does not."""

import json
import os
import sys
import urllib.error
import urllib.request

GATEWAY = os.environ["GATEWAY_URL"]
KEY = os.environ.get("API_KEY", "")
KEYS_REQUIRED = os.environ["KEYS_REQUIRED"] == "true"


def ask(path: str, body: dict[str, object] | None = None) -> tuple[int, str]:
    """The status and the text of one request."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(GATEWAY + path, data, headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=120) as reply:  # noqa: S310
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        sys.exit(f"{GATEWAY}{path} cannot be reached: {error}")


status, text = ask("/readyz")
if status != 200:
    sys.exit(f"/readyz says {status}: {text}")
print("ready")

status, text = ask("/query", {"query": "Is anybody there?", "max_tokens": 8})
if KEYS_REQUIRED and not KEY:
    if status != 401:
        sys.exit(f"/query says {status} to a question without a key: {text}")
    print("a question without a key is refused")
elif status == 200:
    print(f"answered: {text[:500]}")
elif status in (404, 409) and json.loads(text)["error"]["code"] in ("unknown_collection", "no_documents"):
    print("there are no documents yet to answer from")
else:
    sys.exit(f"/query says {status}: {text}")
