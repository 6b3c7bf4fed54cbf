"""What all tests share: property tests that give the same verdict on the same code.

``RAGTREE_TEST_SEARCH=1`` lets them look for examples that nobody has tried yet.
"""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile("search" if os.environ.get("RAGTREE_TEST_SEARCH") else "repeatable")
