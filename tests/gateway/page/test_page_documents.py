"""The page's panel of documents in a real Chromium, with the real gateway and retriever."""

import asyncio
import json
from pathlib import Path

import httpx
import msgspec
import pytest
from page_browser import PHONE, Browser
from page_stack import PageStack, serving
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from gateway.settings import ApiKey, Limits
from protocol.documents import JobError

MARKUP = "<img src=x onerror=document.title=1> 50% #1?.md"
WATCH = """
window.seen = [];
new MutationObserver((changes) => {
  for (const row of document.querySelectorAll(".upload")) {
    const [name, progress] = [row.querySelector(".filename").textContent, row.querySelector("progress")];
    window.seen.push([name, row.dataset.state, progress.hidden ? null : progress.value]);
  }
}).observe(document.querySelector("#uploads"), { subtree: true, childList: true, attributes: true });
"""
LEAVE = """
const leaving = new Event("beforeunload", { cancelable: true });
dispatchEvent(leaving);
return leaving.defaultPrevented;
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("documents")) as stack:
        yield stack


@pytest.fixture
def page(browser: Browser, stack: PageStack):
    browser.open(stack.url)
    yield browser
    assert browser.hosts() == {stack.url.removeprefix("http://")}


@pytest.fixture
def made(tmp_path):
    """Writes a file for the upload."""

    def make(name: str, content: bytes | str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


def manage(page: Browser, collection: str) -> None:
    """Choose a collection in the panel, a new one if there is none of this name."""
    page.until(lambda: page.all("#documents-collection option"))
    page.run(
        "const chosen = document.querySelector('#documents-collection'); chosen.value = arguments[0];"
        "if (chosen.selectedIndex < 0) chosen.value = ''; chosen.dispatchEvent(new Event('change'));",
        collection,
    )
    if page.all("#new-collection")[0].is_displayed():
        assert page.focused == "new-collection"
        page.press(collection)


def choose(page: Browser, *files: Path) -> None:
    """Choose files as the system's dialog does."""
    page.driver.find_element(By.ID, "files").send_keys("\n".join(map(str, files)))


def states(page: Browser) -> dict[str, str]:
    return dict(
        page.run(
            "return [...document.querySelectorAll('.upload')].map((row) =>"
            " [row.querySelector('.filename').textContent, row.dataset.state])"
        )
    )


def problems(page: Browser, name: str) -> str:
    return page.run(
        "return [...document.querySelectorAll('.upload')].find((row) =>"
        " row.querySelector('.filename').textContent === arguments[0]).querySelector('.problems').textContent",
        name,
    )


def ended(page: Browser, wanted: dict[str, str]) -> None:
    page.until(lambda: states(page) == wanted, 60)


def stored(page: Browser) -> list[str]:
    return page.texts("#stored-rows .filename")


def focus(page: Browser, label: str) -> None:
    """Focus the button with this name for screen readers."""
    page.run('document.querySelector(`[aria-label="${CSS.escape(arguments[0])}"]`).focus()', label)
    assert page.run("return document.activeElement.ariaLabel") == label


def test_two_files_one_of_them_broken(page: Browser, stack: PageStack, made):
    page.until(lambda: page.text("#collection-note").startswith("No documents are stored yet"))
    manage(page, "default")
    page.until(lambda: page.text("#stored-note") == "default has no documents.")
    assert "is replaced" in page.text("#documents .what")
    page.shoot("documents-empty")
    page.run(WATCH)
    choose(
        page, made("tides.md", "# Tides\n\n" + "The moon pulls the sea.\n" * 400), made("broken.pdf", b"%PDF-1.7 no")
    )
    ended(page, {"tides.md": "stored", "broken.pdf": "failed"})
    assert "PDF" in problems(page, "broken.pdf")
    assert page.text("#uploads-status").startswith("1 of 2 files stored, 1 failed.")
    seen = page.run("return window.seen")
    order = list(dict.fromkeys(state for name, state, _ in seen if name == "tides.md"))
    assert order == ["sending", "reading", "ingesting", "stored"]
    sent = [value for name, state, value in seen if (name, state) == ("tides.md", "sending")]
    assert sent[0] == 0
    assert sent == sorted(sent)
    # What is stored appears in the list and in the questions' collections. What cannot succeed is not tried again.
    page.until(lambda: stored(page) == ["tides.md"])
    page.until(lambda: page.texts("#collection option") == ["default (1)"])
    assert page.text("#stored-rows .title") == "Tides"
    assert page.text("#collection-note") == ""
    assert page.texts(".upload[data-state=failed] button:not([hidden])") == ["Dismiss"]
    page.shoot("documents-broken")
    # By keyboard: the focus goes to the next row, and from the last one back to the first control.
    focus(page, "Dismiss tides.md")
    page.press(Keys.ENTER)
    page.until(lambda: page.run("return document.activeElement.ariaLabel") == "Dismiss broken.pdf")
    page.press(Keys.ENTER)
    page.until(lambda: page.focused == "choose")
    assert states(page) == {}
    assert not page.all("#uploads-bar")[0].is_displayed()
    assert page.all(".stored")[0].is_displayed()


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_files_are_dropped_and_replace_documents(page: Browser, stack: PageStack, made):
    manage(page, "dropped")
    page.drop("#drop", [made("one.txt", "First."), made("two.txt", "Second.")])
    ended(page, {"one.txt": "stored", "two.txt": "stored"})
    page.until(lambda: stored(page) == ["one.txt", "two.txt"])
    # The new collection is chosen now, and questions can choose it, too.
    assert page.run("return document.querySelector('#documents-collection').value") == "dropped"
    assert page.all("#collection option[value=dropped]")
    made("one.txt", "Changed.")
    page.drop("#drop", [made("one.txt", "Changed."), made("two.txt", "Second.")])
    page.until(lambda: page.texts(".upload .state") == [
        "Stored in dropped", "Stored in dropped", "Stored in dropped", "Unchanged: dropped has the same content",
    ])  # fmt: skip
    reply = httpx.get(f"{stack.url}/v1/collections/dropped/documents/one.txt").json()
    assert reply["text"] == "Changed."
    # Beside the panel, a file must not replace the page.
    page.drop("#question", [made("two.txt", "Second.")])
    assert page.driver.current_url == f"{stack.url}/"
    folder = made("folder/in.txt", "x").parent
    page.drop("#drop", [folder])
    page.until(lambda: page.text("#new-collection-note").startswith("Folders are not uploaded: folder."))


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_odd_names_and_contents(page: Browser, stack: PageStack, made):
    manage(page, "odd")
    decomposed = "u\u0308ber.txt"
    choose(page, *(made(name, f"Text of {name}.") for name in (MARKUP, decomposed, "a\\b.txt", "..txt")))
    lines = [{"id": "l1", "text": "one"}, {"id": "l2"}, {"id": "l3", "text": "three"}]
    choose(
        page, made("empty.txt", ""), made("picture.gif", "GIF89a"), made("all.JSONL", "\n".join(map(json.dumps, lines)))
    )
    names = [MARKUP, "über.txt", "a\\b.txt", "..txt"]
    failed = dict.fromkeys(["empty.txt", "picture.gif"], "failed")
    ended(page, {**dict.fromkeys(names, "stored"), "all.JSONL": "stored", **failed})
    assert "no text" in problems(page, "empty.txt")
    assert "picture.gif" in problems(page, "picture.gif")
    assert ".docx" in problems(page, "picture.gif")
    assert "2 stored, 0 unchanged, 1 failed" in page.texts(".upload .state")
    assert problems(page, "all.JSONL").startswith("Line 2: ")
    here = sorted([*names, "l1", "l3"])
    page.until(lambda: stored(page) == here)
    assert page.driver.title == "RAGTree"
    assert len(page.all("img")) == 1
    # Every one of them can be deleted.
    for name in here:
        focus(page, f"Delete {name}")
        page.press(Keys.ENTER, Keys.TAB, Keys.ENTER)
        page.until(lambda name=name: name not in stored(page))
    page.until(lambda: page.text("#stored-note") == "odd has no documents.")


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_second_file_of_the_same_name_asks(page: Browser, made):
    manage(page, "twins")
    choose(page, made("notes.txt", "One."), made("other/notes.txt", "Two."), made("third/notes.txt", "Three."))
    page.until(lambda: page.texts(".upload[data-state=doubled] .problems") == ["", ""])
    assert "with a name twice" in page.text("#uploads-status")
    page.shoot("documents-twice")
    focus(page, "Upload as notes (2).txt")
    page.press(Keys.ENTER)
    page.until(lambda: states(page).get("notes (2).txt") == "stored")
    assert page.run("return document.activeElement.ariaLabel") == "Dismiss notes (2).txt"
    focus(page, "Cancel notes.txt")
    page.press(Keys.ENTER)
    ended(page, {"notes.txt": "stored", "notes (2).txt": "stored"})
    page.until(lambda: stored(page) == ["notes (2).txt", "notes.txt"])


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_lost_network_and_retry(page: Browser, made):
    manage(page, "lost")
    with page.offline():
        choose(page, made("a.txt", "A."), made("b.txt", "B."))
        ended(page, {"a.txt": "failed", "b.txt": "failed"})
        assert "does not answer" in problems(page, "a.txt")
    focus(page, "Retry a.txt")
    page.press(Keys.ENTER)
    ended(page, {"a.txt": "stored", "b.txt": "failed"})
    page.all("#retry-failed")[0].click()
    ended(page, {"a.txt": "stored", "b.txt": "stored"})
    assert not page.all("#retry-failed")[0].is_displayed()
    page.all("#clear-ended")[0].click()
    assert states(page) == {}


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_file_that_is_gone_must_be_chosen_again(page: Browser, made):
    manage(page, "lost")
    file = made("gone.txt", "A.")
    with page.offline():
        choose(page, file)
        ended(page, {"gone.txt": "failed"})
    file.unlink()
    focus(page, "Retry gone.txt")
    page.press(Keys.ENTER)
    page.until(lambda: "cannot be read any more" in problems(page, "gone.txt"))
    choose(page, made("gone.txt", "Longer than before."))
    ended(page, {"gone.txt": "stored"})


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_failed_job_can_be_retried(page: Browser, stack: PageStack, made, monkeypatch):
    real = stack.retriever.get_job

    async def full(tenant: str, job_id: str):
        job = await real(tenant, job_id)
        error = JobError("storage_full", "The disk is full.", "a.txt")
        return msgspec.structs.replace(job, status="failed", stored=0, errors=(error,))

    manage(page, "jobs")
    with monkeypatch.context() as patched:
        patched.setattr(stack.retriever, "get_job", full, raising=False)
        choose(page, made("a.txt", "A."))
        ended(page, {"a.txt": "failed"})
        assert problems(page, "a.txt") == "The disk is full."
    focus(page, "Retry a.txt")
    page.press(Keys.ENTER)
    ended(page, {"a.txt": "unchanged"})


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_quota_holds_the_queue(browser: Browser, tmp_path, made):
    with serving(tmp_path / "stack", limits=Limits(concurrent_uploads=1), retry_after_s=1) as stack:
        browser.open(stack.url)
        manage(browser, "default")
        real, go = stack.retriever.put_document, asyncio.Event()

        async def slow(*arguments):
            await go.wait()
            return await real(*arguments)

        stack.retriever.put_document = slow
        # The page sends two files at once, and either may arrive first. So this one goes ahead of the others.
        choose(browser, made("a.txt", "Text a."))
        ended(browser, {"a.txt": "reading"})
        choose(browser, *(made(f"{name}.txt", f"Text {name}.") for name in "bc"))
        ended(browser, {"a.txt": "reading", "b.txt": "held", "c.txt": "queued"})
        assert "uploads" in problems(browser, "b.txt")
        assert browser.texts(".upload[data-state=held] .state")[0].startswith("Goes on in ")
        browser.shoot("documents-quota")
        stack.loop.call_soon_threadsafe(go.set)
        ended(browser, dict.fromkeys(["a.txt", "b.txt", "c.txt"], "stored"))


@pytest.mark.parametrize("size", [2_000, 30_000_000])
@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_file_over_the_limit(browser: Browser, tmp_path, made, size: int):
    with serving(tmp_path / "stack", max_document_bytes=1_000) as stack:
        browser.open(stack.url)
        manage(browser, "default")
        choose(browser, made("long.txt", b"x" * size))
        ended(browser, {"long.txt": "failed"})
        assert problems(browser, "long.txt") == "The body is larger than 1,000 bytes, the limit of this path."
        assert browser.texts(".upload button:not([hidden])") == ["Dismiss"]


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_upload_is_cancelled(page: Browser, stack: PageStack, made):
    manage(page, "cancelled")
    conditions = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 200_000}
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)
    choose(page, made("long.txt", "word " * 2_000_000), made("other.txt", "Other."))
    page.until(lambda: states(page).get("long.txt") == "sending")
    assert page.run(
        "const e = new Event('beforeunload', {cancelable: true}); dispatchEvent(e); return e.defaultPrevented"
    )
    focus(page, "Cancel long.txt")
    page.press(Keys.ENTER)
    page.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {**conditions, "uploadThroughput": -1})
    ended(page, {"other.txt": "stored"})
    assert not page.run(LEAVE)
    page.until(lambda: stored(page) == ["other.txt"])


def test_pages_and_deletion_by_keyboard(page: Browser, stack: PageStack):
    names = [f"d{number:02}" for number in range(21)]
    stack.ingest({name: f"Text {name}." for name in names}, "paged")
    page.driver.refresh()
    manage(page, "paged")
    page.until(lambda: stored(page) == names[:10])
    page.run("document.querySelector('#next-page').focus()")
    page.press(Keys.ENTER)
    page.until(lambda: stored(page) == names[10:20])
    page.press(Keys.ENTER)
    page.until(lambda: stored(page) == names[20:])
    assert page.text("#stored-caption") == "Documents 21 to 21 in paged"
    page.press(Keys.ENTER)
    assert page.text("#page-number") == "Page 3"
    # Escape and "Keep" keep the document, and the focus returns to its button.
    focus(page, "Delete d20")
    for keys in ([Keys.ESCAPE], [Keys.ENTER]):
        page.press(Keys.ENTER)
        page.until(lambda: page.focused == "deletion-no")
        assert "“\u2068d20\u2069” leaves the collection paged" in page.text("#deletion-what")
        page.shoot("documents-deletion")
        page.press(*keys)
        page.until(lambda: page.run("return document.activeElement.ariaLabel") == "Delete d20")
    assert stored(page) == ["d20"]
    page.press(Keys.ENTER, Keys.TAB)
    assert page.focused == "deletion-yes"
    page.press(Keys.ENTER)
    # An empty last page gives way to the one before.
    page.until(lambda: stored(page) == names[10:20])
    assert httpx.get(f"{stack.url}/v1/collections/paged/documents/d20").status_code == 404
    assert page.text("#stored-note") == "d20 is deleted."
    # The focus moves to the next row.
    focus(page, "Delete d15")
    page.press(Keys.ENTER, Keys.TAB, Keys.ENTER)
    page.until(lambda: page.run("return document.activeElement.ariaLabel") == "Delete d16")
    page.until(lambda: stored(page) == [*names[10:15], *names[16:20]])
    page.until(lambda: page.texts("#collection option[value=paged]") == ["paged (19)"])
    assert page.run("return document.activeElement.ariaLabel") == "Delete d16"
    with page.offline():
        page.press(Keys.ENTER, Keys.TAB, Keys.ENTER)
        page.until(lambda: any("does not answer" in text for text in page.texts("#stored-rows .problems")))
    page.press(Keys.ENTER, Keys.TAB, Keys.ENTER)
    page.until(lambda: "d16" not in stored(page))


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_focus_order_and_visible_focus(page: Browser, made):
    # A collection of its own: the documents of other tests would be in the order, or not.
    manage(page, "focus")
    choose(page, made("b.txt", "B."))
    page.until(lambda: "b.txt" in stored(page))
    page.all("#clear-ended")[0].click()
    choose(page, made("a.txt", "A."))
    page.until(lambda: states(page) == {"a.txt": "stored"} or states(page) == {"a.txt": "unchanged"})
    page.until(lambda: "a.txt" in stored(page))
    page.run("document.querySelector('#documents-collection').focus()")
    reached = []
    for _ in range(6):
        page.press(Keys.TAB)
        reached.append(page.run("return document.activeElement.id || document.activeElement.ariaLabel"))
        assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert reached[:4] == ["refresh", "choose", "clear-ended", "Dismiss a.txt"]
    assert reached[4].startswith("Delete ")
    assert page.run("return document.querySelector('#uploads-status').getAttribute('role')") == "status"


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_key_is_asked_for(browser: Browser, tmp_path, made):
    keys = {"api_keys": (ApiKey(secret="sk-acme", tenant="acme"),), "admin_key": "sk-root"}
    with serving(tmp_path / "stack", **keys) as stack:
        browser.open(stack.url)
        browser.until(lambda: browser.text("#stored-note") == "To see documents, enter the key at the top of the page.")
        browser.run("document.getElementById('api-key-field').focus()")
        browser.press("sk-acme", Keys.ENTER)
        browser.until(lambda: browser.text("#stored-note") == "default has no documents.")
        choose(browser, made("a.txt", "A."))
        ended(browser, {"a.txt": "stored"})
        browser.until(lambda: stored(browser) == ["a.txt"])
        browser.run("sessionStorage.clear()")
        choose(browser, made("b.txt", "B."))
        ended(browser, {"a.txt": "stored", "b.txt": "failed"})
        assert "key" in problems(browser, "b.txt")


@pytest.mark.prove("gateway/page/", "gateway/routes/", "gateway/wire/")
def test_layout_of_documents(page: Browser, stack: PageStack, made):
    names = {f"handbook/chapter-{number:02}": "Some words. " * number * 40 for number in range(1, 24)}
    stack.ingest(names, "handbook")
    page.driver.refresh()
    manage(page, "handbook")
    page.until(lambda: len(stored(page)) == 10)
    long = "a-file-name-that-does-not-end-and-" * 5
    choose(
        page,
        made("minutes.md", "# Minutes of the meeting\n\nWords."),
        made("broken.docx", "PK"),
        made(f"{long}.txt", "x"),
    )
    ended(page, {"minutes.md": "stored", "broken.docx": "failed", f"{long}.txt": "stored"})
    for scheme in ("light", "dark"):
        page.colours(scheme)
        page.shoot(f"documents-{scheme}")
    page.resize(PHONE)
    assert page.run("return document.documentElement.scrollWidth") <= PHONE["width"]
    page.shoot("documents-narrow")
    page.resize(None)
    page.colours("light")
    page.complaints()
