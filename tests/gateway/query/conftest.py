from collections.abc import AsyncIterator

import pytest
from speculation_scene import Scene


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    """Queries over the real controller; at the end, nothing may be left of them."""
    scene = Scene()
    yield scene
    await scene.at_rest()
