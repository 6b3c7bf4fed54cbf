"""The page's choice of a graph mode, and its picture of what an answer used, in a real Chromium."""

import msgspec
import pytest
from page_browser import PHONE, Browser
from page_stack import PageStack, serving
from selenium.webdriver.common.keys import Keys

from protocol.graph import Entity, GraphMode, Relation, Subgraph
from retriever.settings import GraphSettings

MARKUP = "<img src=x onerror=document.title=1>"
QUESTION = "Which river flows through the city where Marie Curie was born?"
DOCUMENTS = {
    "curie": "Marie Curie was born in Warsaw. Polonium was discovered by Marie Curie.",
    "city": "The river Vistula flows through Warsaw.",
    "lake": "Lake Superior lies between Canada and the United States.",
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("page"), graph=GraphSettings(kind="rules")) as stack:
        stack.generator.decode_tokens_per_s = 1000
        stack.ingest(DOCUMENTS)
        stack.ingest({"plain": "...and so it goes"}, "nameless")
        yield stack


@pytest.fixture
def page(browser: Browser, stack: PageStack):
    browser.open(stack.url)
    # The page asks again while the graph is still read.
    browser.until(lambda: browser.all("#mode:enabled"), 30)
    yield browser
    assert browser.hosts() == {stack.url.removeprefix("http://")}
    assert browser.complaints() == []


def choose(browser: Browser, select: str, value: str) -> None:
    browser.run(
        "const select = document.getElementById(arguments[0]); select.value = arguments[1];"
        "select.dispatchEvent(new Event('change'))",
        select,
        value,
    )


def ask(browser: Browser, mode: str) -> None:
    choose(browser, "mode", mode)
    browser.run("const question = document.querySelector('#question'); question.value = ''; question.focus()")
    browser.press(QUESTION, Keys.ENTER)
    browser.until(lambda: browser.text("#progress") == "Searching" or browser.all("#ask.busy"))
    # A question that has just been sent leaves the progress of the one before for a moment.
    browser.until(lambda: not browser.all("#ask.busy") and browser.text("#progress") == "Complete")


def names(browser: Browser) -> list[str]:
    return browser.texts(".knowledge .node text")


def pointed(browser: Browser) -> list[str]:
    """Files of the sources that are marked."""
    return browser.texts(".source.pointed .filename")


def reported(stack: PageStack, monkeypatch, subgraph: Subgraph) -> None:
    """Let the searches report this subgraph."""
    search = stack.retriever._retriever.search

    async def reporting(request):
        async for found in search(request):
            yield msgspec.structs.replace(found, graph=subgraph)

    monkeypatch.setattr(stack.retriever._retriever, "search", reporting)


def centres(browser: Browser) -> list[tuple[float, float]]:
    return browser.run(
        "return [...document.querySelectorAll('.knowledge .node circle')].map((circle) =>"
        " [circle.cx.baseVal.value, circle.cy.baseVal.value])"
    )


def boxes(browser: Browser, css: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of elements, in pixels."""
    return browser.run(
        "return [...document.querySelectorAll(arguments[0])].map((each) => {"
        " const { left, top, right, bottom } = each.getBoundingClientRect(); return [left, top, right, bottom]; })",
        css,
    )


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_a_mode_is_offered_where_there_is_a_graph(page: Browser, stack: PageStack):
    assert page.run("return [...document.querySelector('#mode').options].map(({ value }) => value)") == list(GraphMode)
    assert page.all("label[for=mode]")[0].is_displayed()
    choose(page, "collection", "nameless")
    # Until it has been read, it may have a graph.
    page.until(lambda: not page.all("#mode")[0].is_displayed(), 30)
    assert not page.all("label[for=mode]")[0].is_displayed()
    choose(page, "collection", "default")
    assert page.all("#mode")[0].is_displayed()


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_without_a_graph_no_mode_is_offered(browser: Browser, tmp_path):
    with serving(tmp_path) as stack:
        stack.ingest({"lake": DOCUMENTS["lake"]})
        browser.open(stack.url)
        browser.until(lambda: browser.all("#collection option"))
        assert not browser.all("#mode")[0].is_displayed()
        browser.press(Keys.TAB, Keys.ENTER, QUESTION, Keys.ENTER)
        browser.until(lambda: browser.text("#progress") == "Complete")
        assert not browser.all("#graph")[0].is_displayed()
        assert browser.complaints() == []


def test_what_an_answer_used_is_drawn(page: Browser):
    ask(page, "naive")
    assert not page.all("#graph")[0].is_displayed()
    ask(page, "mix")
    assert page.all("#graph")[0].is_displayed()
    assert {"Marie Curie", "Warsaw"} <= set(names(page))
    rows = page.texts("#graph-table td")
    assert {"Marie Curie", "Warsaw", "curie", "city"} <= set(rows)
    # The prompt tells this path, whose second step is walked against its direction.
    assert "river Vistula -flow through-> Warsaw <-born in- Marie Curie" in rows
    assert "Heavy arrows" in page.text("#graph-note")
    assert {"flow through", "born in"} <= set(page.texts(".knowledge .edge.told text"))
    assert page.run("return document.querySelectorAll('.knowledge .edge').length") > 1
    page.shoot("graph")
    # By keyboard: each relation marks the document that states it.
    page.run("document.querySelector('.knowledge').focus()")
    assert "Arrow keys" in page.run("return document.querySelector('.knowledge').getAttribute('aria-label')")
    seen = {}
    for _ in page.all(".knowledge .edge"):
        page.press(Keys.ARROW_RIGHT)
        seen[page.text("#tip strong")] = pointed(page)
        assert len(page.all(".knowledge .edge.pointed")) == 1
    assert seen["Marie Curie -born in-> Warsaw"] == ["curie.md"]
    page.press(Keys.ARROW_RIGHT)
    assert len(page.all(".knowledge .node.pointed")) == 1
    page.run("document.querySelector('#question').focus()")
    assert pointed(page) == page.all(".pointed") == []
    assert not page.all("#tip")[0].is_displayed()
    # By pointer: a node marks the documents of all its relations.
    page.run(
        "const node = [...document.querySelectorAll('.knowledge .node')]"
        ".find((node) => node.textContent === 'Warsaw');"
        "node.querySelector('circle').dispatchEvent(new PointerEvent('pointermove', { bubbles: true }))"
    )
    assert sorted(pointed(page)) == ["city.md", "curie.md"]
    assert page.text("#tip strong") == "Warsaw"


@pytest.mark.parametrize("count", [5, 40])
@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_graphs_of_5_and_40_entities_are_readable(page: Browser, stack: PageStack, monkeypatch, count: int):
    entities = tuple(Entity(f"Entity number {n}", 1 / (n + 1), n) for n in range(min(count, 10)))
    relations = tuple(
        Relation(f"Entity number {n // 3}", "is related to", f"Entity number {n + 1}", 0.5, "city", n)
        for n in range(count - 1)
    )
    reported(stack, monkeypatch, Subgraph(entities, relations))
    ask(page, "mix")
    drawn = centres(page)
    assert len(drawn) == count
    left, top, right, bottom = boxes(page, "#graph-picture")[0]
    labels = boxes(page, ".knowledge .node text")
    for at, (x, y, end, base) in enumerate(labels):
        assert left <= x <= end <= right
        assert top <= y <= base <= bottom
        for x2, y2, end2, base2 in labels[:at]:
            assert end <= x2 or end2 <= x or base <= y2 or base2 <= y, "names cover each other"
    page.colours("dark")
    page.shoot(f"graph-{count}-dark")
    page.colours("light")
    page.shoot(f"graph-{count}")
    page.resize(PHONE)
    page.until(lambda: centres(page) != drawn)
    assert page.run("return document.documentElement.scrollWidth") <= PHONE["width"]
    page.shoot(f"graph-{count}-narrow")
    page.resize(None)
    # The same graph looks the same.
    page.until(lambda: centres(page) == drawn)


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_odd_graphs_are_drawn_and_bounded(page: Browser, stack: PageStack, monkeypatch):
    long = "x" * 5000
    relations = (
        Relation("A", "is", "A", 1.0, "city", 0),
        Relation("A", "knows", "A", 1.0, "city", 1),
        Relation("A", "likes", "B", 1.0, "city", 0),
        Relation("B", "likes", "A", 1.0, "curie", 0),
        Relation("A", "likes", "B", 0.5, "curie", 2),
        Relation(MARKUP, MARKUP, "", 0.5, MARKUP, 0),
        Relation(long, long, "B", 0.5, "nowhere", 0),
        *(Relation("A", "has", f"leaf {n}", 0.1, "city", n) for n in range(200)),
    )
    reported(stack, monkeypatch, Subgraph((Entity("A", 0.0, 0),), relations))
    ask(page, "local")
    assert len(names(page)) == 40
    # What two documents state is one relation.
    assert len(page.all(".knowledge .edge")) == 6 + 35
    assert "too full" in page.text("#graph-note")
    assert len(page.all("#graph-table div > div:first-child tbody tr")) == len(relations)
    assert "Heavy arrows" not in page.text("#graph-note")
    assert page.run("return document.title") == "RAGTree"
    assert "NaN" not in page.run("return document.querySelector('.knowledge').outerHTML")
    page.run("document.querySelector('.knowledge').focus()")
    page.press(*[Keys.ARROW_RIGHT] * 3)
    assert page.text("#tip strong") == "A -likes-> B"
    assert page.texts("#tip span") == ["city, chunk 1", "curie, chunk 3"]
    page.shoot("graph-odd")


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_a_question_that_leads_to_no_entity_says_so(page: Browser, stack: PageStack, monkeypatch):
    reported(stack, monkeypatch, Subgraph())
    ask(page, "global")
    assert page.text("#graph-note") == "The question led to no entity of the graph."
    assert not page.all(".knowledge")[0].is_displayed()
    assert not page.all("#graph-table")[0].is_displayed()
