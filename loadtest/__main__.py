"""``python -m loadtest``: Locust with this load test, from any folder, and with its options in ``--help``."""

import sys
from pathlib import Path

# First: it has gevent take the place of what blocks.
from locust.main import main

# Locust asks for help before it reads the file that has the options.
from loadtest import hooks  # noqa: F401

sys.argv[1:1] = ["--locustfile", str(Path(__file__).with_name("locustfile.py"))]
main()  # type: ignore[no-untyped-call]
