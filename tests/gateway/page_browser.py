"""A headless Chromium, with its console messages and network requests."""

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

ARTEFACTS = Path(os.environ.get("RAGTREE_TEST_ARTEFACTS", Path(__file__).parents[2] / "test-artefacts")) / "page"
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--window-size=1280,1000",
)  # fmt: skip
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


class Browser:
    """One tab with the page at ``url``."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.url = ""

    def open(self, url: str) -> None:
        self.url = url
        self.driver.get(url)
        # A headless browser counts as hidden, and the page only updates while it is visible.
        self.driver.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
        self.colours("light")
        # Discards messages and requests of the previous page.
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.execute_script("sessionStorage.clear()")
        self.driver.get(url)

    def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until the condition holds. On timeout, fail the test and take a screenshot."""
        give_up = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > give_up:
                self.shoot("failed")
                raise AssertionError("the condition never came true")
            time.sleep(0.01)

    def all(self, css: str) -> list:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css: str) -> str:
        return self.run("return document.querySelector(arguments[0]).textContent", css)

    def texts(self, css: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", css)

    def run(self, script: str, *arguments: object):
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        """Send keys to the focused element."""
        webdriver.ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def drop(self, css: str, files: list[Path]) -> None:
        """Drag files of the system over an element, and drop them."""
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        x, y = self.run(
            "const element = document.querySelector(arguments[0]); element.scrollIntoView({ block: 'center' });"
            "const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]",
            css,
        )
        for event in ("dragEnter", "dragOver", "drop"):
            at = {"type": event, "x": x, "y": y, "data": data}
            self.driver.execute_cdp_cmd("Input.dispatchDragEvent", at)

    @property
    def focused(self) -> str:
        return self.run("return document.activeElement.id || document.activeElement.className")

    def colours(self, scheme: str) -> None:
        """Set the system's colour scheme, and turn off animations for stable screenshots."""
        likes = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in likes.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, metrics: dict | None) -> None:
        """Emulate a device's window, or restore the browser's."""
        if metrics is None:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        else:
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    @contextmanager
    def offline(self) -> Iterator[None]:
        """Disconnect the network."""
        self._network(offline=True)
        try:
            yield
        finally:
            self._network(offline=False)

    def _network(self, offline: bool) -> None:
        conditions = {"offline": offline, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    def shoot(self, name: str) -> Path:
        """Save a screenshot of the whole page below ``ARTEFACTS``."""
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        path = ARTEFACTS / f"{name}.png"
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def complaints(self) -> list[str]:
        """Console messages since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def hosts(self) -> set[str]:
        """URLs of requests since the last call."""
        messages = (json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance"))
        asked = (m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent")
        return {urlsplit(url).netloc for url in asked}


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a new profile in this folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
