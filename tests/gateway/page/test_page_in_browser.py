"""The page in a real Chromium, with the real gateway, retriever and controller, and a fake engine."""

import random
import time
from functools import partial
from itertools import pairwise

import httpx
import pytest
from page_browser import PHONE, Browser
from page_stack import PageStack, documents, serving
from selenium.webdriver.common.keys import Keys

from gateway.metrics.activity import Activity
from gateway.settings import ApiKey

QUESTION = "What is done with a document when it leaves the GPU?"
MARKUP = "<img src=x onerror=document.title=1>"
BUSY_QUERIES = 75


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("page")) as stack:
        stack.ingest(documents())
        yield stack


@pytest.fixture
def page(browser: Browser, stack: PageStack):
    browser.open(stack.url)
    browser.until(lambda: browser.all("#collection option"))
    yield browser
    assert browser.hosts() == {stack.url.removeprefix("http://")}
    assert browser.complaints() == []


def progress(browser: Browser) -> str:
    return browser.text("#progress")


def said_of(browser: Browser, kind: str, words: str) -> bool:
    return words in browser.text(f"#{kind}-key-note")


def ask(browser: Browser, question: str) -> None:
    """Asks by keyboard alone: the first link of the page leads to the question."""
    browser.press(Keys.TAB, Keys.ENTER)
    assert browser.focused == "question"
    browser.press(question, Keys.ENTER)


def bars(browser: Browser) -> list[tuple[str, float, float]]:
    """Kind, start and end of each bar of the timeline, in pixels."""
    return [
        (kind, x, x + width)
        for kind, x, width in browser.run(
            "return [...document.querySelectorAll('.gantt .bar')].map((bar) =>"
            " [bar.getAttribute('class').slice(4), bar.x.baseVal.value, bar.width.baseVal.value])"
        )
    ]


def test_question_by_keyboard_streams_its_answer(page: Browser, stack: PageStack):
    page.until(lambda: page.text("#readiness") == "Ready")
    page.until(lambda: "0 nodes" in page.text("#tree-note"))
    page.shoot("empty")
    ask(page, QUESTION)

    page.until(lambda: len(page.text("#answer")) > 40)
    so_far = page.text("#answer .text")
    assert stack.generator.open, "the answer became visible only at its end"
    assert progress(page).startswith("Writing")
    assert page.run("return document.querySelector('#answer').getAttribute('aria-busy')") == "true"
    page.shoot("streaming")

    page.until(lambda: progress(page) == "Complete")
    assert page.text("#answer .text").startswith(so_far)
    assert any(text.startswith(page.text("#answer .text").strip()) for text in stack.layout.texts.values())
    assert page.run("return document.querySelector('#answer').getAttribute('aria-busy')") == "false"
    cards = page.run(
        "return [...document.querySelectorAll('.source')].map((card) => ['.number', '.filename', '.chunk', '.score']"
        ".map((part) => card.querySelector(part).textContent))"
    )
    assert [number for number, *_ in cards] == ["1", "2", "3", "4"]
    assert {filename.removesuffix(".md") for _, filename, _, _ in cards} <= set(documents())
    assert [float(score.removeprefix("Score ")) for *_, score in cards] == sorted(
        (float(score.removeprefix("Score ")) for *_, score in cards), reverse=True
    )


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_timeline_bars_are_in_order(page: Browser, stack: PageStack, monkeypatch):
    # In its own collection, because the gateway learns per collection when to start a speculation.
    stack.ingest(dict(list(documents().items())[:6]), "other")
    page.driver.refresh()
    page.until(lambda: len(page.all("#collection option")) == 2)
    page.press(Keys.TAB, Keys.ENTER, Keys.TAB, "other", Keys.SHIFT + Keys.TAB + Keys.NULL)
    # Long stages leave time for a second guess, even on a busy machine.
    monkeypatch.setattr(stack.retriever, "stage_s", 0.1)
    monkeypatch.setattr(stack.generator, "longest", 20)
    page.press("Who may import whom?", Keys.ENTER)
    page.until(lambda: progress(page) == "Complete")
    drawn = bars(page)
    assert [kind for kind, *_ in drawn] == [
        *["retrieval_stage"] * 4, "speculation wrong", "speculation confirmed", "prefill", "decode",
    ]  # fmt: skip
    stages, (_, began, dropped), (_, again, confirmed), (_, prefilling, first), (_, decoding, _) = (
        drawn[:4], *drawn[4:],
    )  # fmt: skip
    assert all(one[2] <= other[1] + 1.5 for one, other in pairwise(stages))
    # Started after the first stage, dropped by the second, restarted, and confirmed by the last.
    assert stages[0][2] <= began + 1 < dropped <= again + 1 < confirmed
    assert confirmed >= stages[-1][2] - 1
    assert again - 1 <= prefilling < first <= decoding + 1
    assert "first token" in page.text(".gantt .when.first_token")
    (whole,) = page.all("[data-extent=whole]")
    whole.click()
    assert bars(page)[-1][2] > bars(page)[-1][1] + 100
    assert "end " in page.text(".gantt .when.end")
    rows = page.texts("#timeline-table td:first-child")
    assert rows.count("Search") == 4
    assert rows[-1] == "End"


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_an_answer_that_ends_with_its_first_token_has_one_label_for_both(page: Browser, stack: PageStack, monkeypatch):
    monkeypatch.setattr(stack.retriever, "stage_s", 0.1)
    monkeypatch.setattr(stack.generator, "longest", 1)
    ask(page, QUESTION)
    page.until(lambda: progress(page) == "Complete")
    assert len(page.all(".gantt .moment")) == 2
    (label,) = page.texts(".gantt .when")
    assert label.startswith("first token")


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_passage_opens_with_the_questions_words_marked(page: Browser, stack: PageStack):
    text = "Tides rise and fall.\nThe moon pulls the sea.\nWater flows back at ebb."
    stack.ingest({"tides": text}, "sea")
    page.driver.refresh()
    page.until(lambda: page.all("#collection option[value=sea]"))
    page.run("document.querySelector('#collection').value = 'sea'")
    ask(page, "Why does the MOON move the water?")
    page.until(lambda: progress(page) == "Complete")
    assert page.texts(".source.given .number") == page.texts(".source.cited .number") == ["1"]
    assert page.text(".rests") == "Cited: 100 % of a sentence stands here"
    assert page.texts(".passage summary") == ["Passage, lines 1\u20133"]
    # By keyboard, and by a click.
    page.run("document.querySelector('.passage summary').focus()")
    page.press(Keys.ENTER)
    page.until(lambda: page.all(".passage-text")[0].is_displayed() and page.text(".passage-text"))
    assert page.text(".passage-text") == text
    assert page.texts(".passage-text mark") == ["moon", "Water"]
    page.press(Keys.ENTER)
    page.until(lambda: not page.all(".passage-text")[0].is_displayed())
    page.all(".passage summary")[0].click()
    page.until(page.all(".passage-text")[0].is_displayed)
    page.shoot("passage")


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_tree_updates_while_visible(page: Browser, stack: PageStack):
    count = "return document.querySelectorAll('.tier:first-child .cell').length"
    page.until(lambda: page.run(count) > 1)
    before = page.run(count)
    reply = httpx.post(f"{stack.url}/query", json={"query": "What do the shards of an index do?", "max_tokens": 1})
    assert reply.status_code == 200
    page.until(lambda: page.run(count) > before)
    # The map can be used by keyboard, or read as a table.
    page.run("document.querySelector('.map').focus()")
    page.press(Keys.ARROW_RIGHT)
    assert "tokens in gpu@engine-0" in page.text("#tip")
    page.run("document.querySelector('#tree-table').open = true")
    found = {result["filename"] for result in reply.json()["results"]}
    page.until(lambda: found <= {name.partition(" (")[0] for name in page.texts("#tree-table td:first-child")})


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_stop_cancels_the_query(page: Browser, stack: PageStack, monkeypatch):
    monkeypatch.setattr(stack.generator, "decode_tokens_per_s", 5)
    ask(page, QUESTION)
    page.until(lambda: progress(page).startswith("Writing"))
    page.press(Keys.TAB, Keys.TAB)
    assert page.focused == "stop"
    page.press(Keys.ENTER)
    page.until(lambda: progress(page) == "Stopped")
    page.until(lambda: stack.generator.open == 0)
    # The focus moves on when the button disappears. Escape stops from anywhere.
    assert page.focused == "question"
    page.press(Keys.ENTER)
    page.until(lambda: progress(page).startswith("Writing"))
    page.press(Keys.ESCAPE)
    page.until(lambda: progress(page) == "Stopped")
    page.until(lambda: stack.generator.open == 0)
    assert not page.all("#stop")[0].is_displayed()
    assert "Stopped" in page.text("#answer .note")


def test_errors_are_shown_as_text(browser: Browser, stack: PageStack):
    browser.open(stack.url)
    browser.until(lambda: browser.all("#collection option"))
    stack.generator.up = False
    try:
        browser.until(lambda: httpx.get(f"{stack.url}/readyz").status_code == 503)
        ask(browser, QUESTION)
        browser.until(lambda: progress(browser) == "Failed")
        assert browser.text("#answer .problem") == "The engine is being restarted. Try again in 2 s."
        browser.until(lambda: "being restarted" in browser.text("#readiness"))
        browser.shoot("error")
    finally:
        stack.generator.up = True
    # Returning to the tab refreshes at once.
    browser.until(lambda: httpx.get(f"{stack.url}/readyz").status_code == 200)
    browser.run("window.dispatchEvent(new Event('focus'))")
    browser.until(lambda: browser.text("#readiness") == "Ready")
    with browser.offline():
        browser.press(Keys.ENTER)
        browser.until(lambda: "does not answer" in browser.text("#answer"))


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_broken_connection_is_reported(browser: Browser, stack: PageStack, monkeypatch):
    browser.open(stack.url)
    monkeypatch.setattr(stack.generator, "decode_tokens_per_s", 5)
    ask(browser, QUESTION)
    browser.until(lambda: progress(browser).startswith("Writing"))
    stack.cut_connections()
    browser.until(lambda: progress(browser) == "Failed")
    assert browser.text("#answer .problem") == "The connection ended before the answer did."
    assert browser.text("#answer .text")


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_keys_are_requested_and_stored_in_the_tab(browser: Browser, tmp_path):
    keys = {"api_keys": (ApiKey(secret="sk-acme", tenant="acme"),), "admin_key": "sk-root"}
    with serving(tmp_path, **keys) as stack:
        stack.ingest({MARKUP: f"The only document that there is. {MARKUP}"}, key="sk-acme")
        browser.open(stack.url)
        browser.until(lambda: browser.all("#api-key")[0].is_displayed() and browser.all("#admin-key")[0].is_displayed())
        assert "have a key" in browser.text("#api-key-note")
        assert "for administrators" in browser.text("#admin-key-note")
        browser.shoot("keys")
        for kind, key, said in (
            ("api", "sk-other", "Unknown API key"),
            ("api", "sk-acme", "in use"),
            ("admin", "sk-acme", "administrator's key"),
            ("admin", "sk-root", "in use"),
        ):
            browser.run("document.getElementById(arguments[0]).focus()", f"{kind}-key-field")
            browser.press(key, Keys.ENTER)
            browser.until(partial(said_of, browser, kind, said))
        browser.until(lambda: browser.all("#collection option"))
        assert browser.run("return localStorage.length") == 0
        assert browser.run("return document.cookie") == ""
        browser.driver.refresh()
        browser.until(lambda: browser.all("#collection option") and browser.all(".tier"))
        ask(browser, MARKUP)
        browser.until(lambda: progress(browser) == "Complete")
        browser.until(lambda: len(browser.all(".cell")) == 2)
        assert browser.text("#answer .text").strip().endswith(MARKUP)
        assert browser.text(".filename") == f"{MARKUP}.md"
        browser.all(".passage summary")[0].click()
        browser.until(lambda: browser.text(".passage-text") == f"The only document that there is. {MARKUP}")
        assert browser.texts(".passage-text mark")
        assert len(browser.all("img")) == 1
        assert browser.driver.title == "RAGTree"


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_layout_in_light_dark_and_narrow_windows(browser: Browser, tmp_path):
    with serving(tmp_path, gpu=2500, host=12_000) as stack:
        stack.ingest(documents())
        stack.generator.decode_tokens_per_s = 200
        busy(stack, [name.replace("-", " ").replace("/", " ") for name in documents()])
        browser.open(stack.url)
        ask(browser, QUESTION)
        browser.until(lambda: progress(browser) == "Complete")
        # How many fit depends on the length of the sections in docs.
        browser.until(lambda: len(browser.all(".cell")) > 25)
        assert browser.run("return document.querySelectorAll('.line').length") == 3
        ground = {}
        for scheme in ("light", "dark"):
            browser.colours(scheme)
            ground[scheme] = browser.run("return getComputedStyle(document.body).backgroundColor")
            browser.shoot(scheme)
        assert ground["light"] != ground["dark"]
        # The button overrides the system.
        browser.colours("light")
        for _ in range(2):
            browser.all("#theme")[0].click()
        assert browser.run("return getComputedStyle(document.body).backgroundColor") == ground["dark"]
        browser.all("#theme")[0].click()
        browser.resize(PHONE)
        assert browser.run("return document.documentElement.scrollWidth") <= PHONE["width"]
        browser.shoot("narrow")
        browser.resize(None)
        assert browser.complaints() == []
        assert browser.hosts() == {stack.url.removeprefix("http://")}


def busy(stack: PageStack, questions: list[str]) -> None:
    """15 minutes of questions within seconds: the gateway's activity uses a clock that runs ahead."""
    ahead_s = 0.0
    stack.app.state.gateway.metrics.activity = Activity(lambda: time.monotonic() + ahead_s)
    engine, chance = stack.generator, random.Random(3)
    speeds = engine.prefill_tokens_per_s, stack.retriever.stage_s
    engine.prefill_tokens_per_s, stack.retriever.stage_s = 60_000, 0.001
    with httpx.Client(base_url=stack.url) as client:
        for number in range(BUSY_QUERIES):
            popular = min(int(chance.paretovariate(0.8)) - 1, len(questions) - 1)
            question = questions[popular] if number else QUESTION
            body = {"query": question, "max_tokens": 1, "top_k": 3}
            assert client.post("/query", json=body).status_code == 200
            ahead_s += 850 / BUSY_QUERIES
    engine.prefill_tokens_per_s, stack.retriever.stage_s = speeds
