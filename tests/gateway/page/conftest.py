import pytest
from page_browser import chromium


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as browser:
        yield browser
