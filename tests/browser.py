"""Chromium without a window, driven by selenium, for pages that open from the disk."""

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import optional
import pytest
from json_lines import column_of

CHROMIUM = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")

REQUIRED = "REQUIRE_BROWSER"
"""Set where these tests must not be skipped."""

LIMIT_S = 60


def require():
    """Skip a test where there is no browser; fail where there has to be one."""
    if CHROMIUM is None or DRIVER is None:
        text = "chromium or chromedriver is not installed"
        if os.environ.get(REQUIRED):
            pytest.fail(text)
        pytest.skip(text)
    optional.require("selenium")


@contextlib.contextmanager
def chromium(profile):
    """A browser that writes down what it requests, and what its console says."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-extensions",
        "--disable-background-networking",
        "--in-process-gpu",  # with the next, a sixth off each load
        "--disable-features=RenderDocument",
        "--lang=en-US",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.set_script_timeout(LIMIT_S)
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """A page in a browser, in words of its users."""

    def __init__(self, driver):
        self.driver = driver
        self.touched = False
        self.open_page = None

    def open(self, folder, view="", *, width=1200, height=800, dark=False):
        """Open a page anew, in a window of this size."""
        self.folder = Path(folder).resolve()
        self.open_page = self.folder, width, height, dark
        self.driver.get("about:blank")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.messages()
        self.requests()
        self.driver.get((self.folder / "index.html").as_uri() + view)
        self.wait("return document.documentElement.dataset.ready === 'true'")
        self.settle()

    def show(self, folder, view="", *, width=1200, height=800, dark=False):
        """Show a view of a page, which is loaded only where another page or window is open.

        Of an earlier view nothing stays: whatever the address does not say is as at the start.
        """
        page = Path(folder).resolve(), width, height, dark
        address = (page[0] / "index.html").as_uri()
        if page == self.open_page and self.run("return location.href.split('#')[0]") == address:
            self.run("if (writeTimer !== null) writeAddress()")
            self.go("#")
            self.run("window.scrollTo(0, 0)")
            self.mouse("move", 0, 0)
            self.go(view)
        else:
            self.open(folder, view, width=width, height=height, dark=dark)

    def go(self, view):
        """Show another view of the page that is open."""
        self.run("location.hash = arguments[0]", view)
        self.settle()

    def run(self, script, *arguments):
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, *arguments):
        """Wait until a script returns something true, and return it."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            value = self.run(script, *arguments)
            if value:
                return value
            time.sleep(0.02)
        pytest.fail(f"never true: {script}")

    def settle(self):
        """Wait until what was asked for is drawn: thumbnails are loaded, then two frames."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "const loaded = typeof packs === 'undefined' ? Promise.resolve() : packs.lastLoad;"
            "loaded.then(() =>"
            "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
        )

    def press(self, *keys):
        """Press keys, one after the other, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(*keys).perform()
        self.settle()

    def find(self, selector):
        """The first element of a CSS selector."""
        return self.driver.find_element("css selector", selector)

    def click(self, selector):
        """Click on an element, as a pointer does."""
        self.find(selector).click()
        self.settle()

    def mouse(self, kind, x, y, **more_fields):
        """Move, press, release or turn the wheel of a mouse at a point of the window."""
        kinds = {"move": "mouseMoved", "press": "mousePressed", "release": "mouseReleased"}
        event = {"type": kinds.get(kind, "mouseWheel"), "x": x, "y": y} | more_fields
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
        self.settle()

    def touch(self, *points):
        """Put fingers at points of the window, move them there, or lift all of them."""
        if not points:
            kind = "touchEnd"
        elif self.touched:
            kind = "touchMove"
        else:
            kind = "touchStart"
        self.touched = bool(points)

        touch_points = []
        for number, (x, y) in enumerate(points):
            touch_points.append({"x": x, "y": y, "id": number})
        event = {"type": kind, "touchPoints": touch_points}
        self.driver.execute_cdp_cmd("Input.dispatchTouchEvent", event)
        self.settle()

    def text(self, selector):
        """The visible text of an element."""
        return self.find(selector).text

    def texts(self, selector):
        """The visible texts of all such elements, from the top."""
        return [element.text for element in self.driver.find_elements("css selector", selector)]

    def set(self, selector, value):
        """Give a field a value, as dragging and choosing do."""
        self.run(
            "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', {bubbles: true}))",
            selector,
            value,
        )
        self.settle()

    def names(self):
        """The file names of the tiles in the grid, in their order."""
        return self.run(
            "return [...document.querySelectorAll('.tile')]"
            ".sort((a, b) => a.ariaPosInSet - b.ariaPosInSet)"
            ".map((tile) => tile.querySelector('.name').textContent)"
        )

    def crops(self):
        """What the tiles of the wall say: names of groups, scores with images, in their order."""
        return self.run(
            "return [...document.querySelectorAll('.tile')]"
            ".sort((a, b) => a.ariaPosInSet - b.ariaPosInSet)"
            ".map((tile) => [...tile.querySelectorAll('.name, .quiet')]"
            ".map((one) => one.textContent).join(' '))"
        )

    def messages(self):
        """What the console has said since it was last asked."""
        return column_of(self.driver.get_log("browser"), "message")

    def requests(self):
        """The paths of all files that were requested since this was last asked.

        Whatever is not a file of the page's folder is there with its whole address.
        """
        paths = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] != "Network.requestWillBeSent":
                continue
            url = message["params"]["request"]["url"]
            path = Path(unquote(urlsplit(url).path))
            if url.startswith("file:") and path.is_relative_to(self.folder):
                paths.append(str(path.relative_to(self.folder)))
            elif url != "about:blank":
                paths.append(url)
        return paths
