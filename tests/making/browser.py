"""A headless Chromium that opens pages, through its debugging pipe: what a page logs, loads, and how wide it is."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
SECONDS = 60.0


def find_browser():
    """The path of an installed browser; None if there is none."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    """One tab. `show` opens a file and returns a View."""

    def __init__(self, to_browser, from_browser):
        self._out, self._in, self._numbers, self._rest = (
            to_browser,
            from_browser,
            itertools.count(1),
            b"",
        )
        self.events = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def show(self, path, width=1200, dark=False):
        """Opens a file in a window of this width, in light or dark colors."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self._call("Page.navigate", url=Path(path).absolute().as_uri())
        self._wait_for("Page.loadEventFired")
        return View(self)

    def evaluate(self, expression):
        """The value of a JavaScript expression."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path, top=0, height=12_000):
        """Saves the page as a PNG: from pixel `top` on, at most this high."""
        height = min(height, self.evaluate("document.documentElement.scrollHeight") - top)
        clip = {
            "x": 0,
            "y": top,
            "width": self.evaluate("window.innerWidth"),
            "height": height,
            "scale": 1,
        }
        data = self._call(
            "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
        )["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def _call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def _wait_for(self, event):
        while not any(each.get("method") == event for each in self.events):
            self.events.append(self._read())

    def _read(self):
        while b"\0" not in self._rest:
            assert select.select([self._in], [], [], SECONDS)[0], "the browser does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class View:
    """A page as it was opened: what went wrong, and how far it extends beyond the window."""

    def __init__(self, browser):
        self._browser = browser

    @property
    def problems(self):
        """Console messages, exceptions, and requests other than for the file and its data: URIs."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        found = [event["params"] for event in self._browser.events if event.get("method") in kinds]
        requests = [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return found + [url[:80] for url in requests[1:] if not url.startswith("data:")]

    @property
    def overflow(self):
        """Pixels that the page is wider than its window."""
        return self._browser.evaluate("document.documentElement.scrollWidth - window.innerWidth")

    @property
    def ground(self):
        """The background color."""
        return self._browser.evaluate("getComputedStyle(document.body).backgroundColor")

    @property
    def text(self):
        """The text as a reader sees it."""
        return self._browser.evaluate("document.body.innerText")

    def count(self, selector):
        """How many elements match a CSS selector."""
        return self._browser.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length")

    @property
    def broken_images(self):
        """Alternative texts of images that do not show anything, and sources of images without such a text."""
        return self._browser.evaluate(
            "[...document.images].filter(i => !i.alt || !i.complete || !i.naturalWidth || "
            "!i.src.startsWith('data:image/')).map(i => i.alt || i.src.slice(0, 40))"
        )


@contextmanager
def open_browser(directory):
    """A running Browser, whose profile is in this directory."""
    path = find_browser()
    assert path, f"none of {BROWSERS} is installed"
    read_end, to_browser = os.pipe()
    from_browser, write_end = os.pipe()
    command = [
        "bash",
        "-c",
        f'exec "$@" 3<&{read_end} 4>&{write_end}',
        "bash",
        path,
        *FLAGS,
        f"--user-data-dir={directory}",
    ]
    with subprocess.Popen(
        command,
        pass_fds=(read_end, write_end),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(read_end)
        os.close(write_end)
        try:
            yield Browser(to_browser, from_browser)
        finally:
            os.close(to_browser)  # it ends by itself
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            os.close(from_browser)
