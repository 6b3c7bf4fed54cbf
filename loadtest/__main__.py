"""``python -m loadtest``: run Locust with this load test from any folder and list its options in ``--help``."""

import sys
from pathlib import Path

# Import this first: it applies gevent's monkey patches.
from locust.main import main

# Locust prints its help before it loads the locustfile, so register the options here.
from loadtest import locust_hooks  # noqa: F401

sys.argv[1:1] = ["--locustfile", str(Path(__file__).with_name("locustfile.py"))]
main()  # type: ignore[no-untyped-call]
