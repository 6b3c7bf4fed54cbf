"""What `helm test` runs: is the stack ready, and does it answer? Exits with 1, and says why, when it does not."""

import json
import os
import sys
import urllib.error
import urllib.request

GATEWAY = os.environ["GATEWAY_URL"]
KEY = os.environ.get("API_KEY", "")
REFUSED = 401


def ask(path, body=None):
    """The status and the text of one request."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(GATEWAY + path, data, headers), timeout=120) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        sys.exit(f"{GATEWAY}{path} cannot be reached: {error}")


status, text = ask("/readyz")
if status != 200:
    sys.exit(f"/readyz says {status}: {text}")
print("ready")

without_key = os.environ["KEYS_REQUIRED"] == "true" and not KEY
status, text = ask("/query", {"query": "Is anybody there?", "max_tokens": 8})
if status != (REFUSED if without_key else 200):
    sys.exit(f"/query says {status}: {text}")
print("a question without a key is refused" if without_key else f"answered: {text[:500]}")
