"""A headless Chromium of the system, told what to do by its DevTools protocol over pipes: no package is
needed.

with Chromium() as browser:
    page = browser.open("file:///…/report.html")
    page.evaluate("document.title")
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAIT_S = 60.0


def program() -> str | None:
    """Where Chromium is, None where it is not."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One page. ``errors``: what its console and its exceptions said, and what was not loaded. ``requested``:
    all addresses that it asked for."""

    def __init__(self, browser: Chromium, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []
        self.requested: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser._call(method, params, self._session)

    def event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    def evaluate(self, script: str) -> Any:
        """The value of an expression of JavaScript; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(found["exceptionDetails"])
        return found["result"].get("value")

    def until(self, script: str, wait_s: float = WAIT_S) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + wait_s
        while not self.evaluate(script):
            if time.monotonic() > end:
                raise AssertionError(f"not true within {wait_s} s: {script}; errors: {self.errors}")
            time.sleep(0.05)

    def screenshot(self, path: Path, selector: str | None = None, height: float | None = None) -> None:
        """A picture of what is seen, or of an element, cut at ``height``."""
        clip: dict[str, Any] = {}
        if selector is not None:
            box = self.evaluate(
                f"(() => {{ const b = document.querySelector({selector!r}).getBoundingClientRect();"
                "return [b.x + scrollX, b.y + scrollY, b.width, b.height]; })()"
            )
            clip = {
                "x": box[0],
                "y": box[1],
                "width": box[2],
                "height": min(box[3], height or box[3]),
                "scale": 1,
            }
        more = {"clip": clip, "captureBeyondViewport": True} if clip else {}
        shot = self.call("Page.captureScreenshot", **more)
        path.write_bytes(base64.b64decode(shot["data"]))


class Chromium:
    """The browser; a context manager that ends it."""

    def __init__(self, width: int = 1320, height: int = 900) -> None:
        found = program()
        assert found is not None, "no Chromium on PATH"
        self._home = tempfile.TemporaryDirectory()
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()

        def as_three_and_four() -> None:  # where the browser looks for its pipes
            spares = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read_end, write_end)]
            for spare, number in zip(spares, (3, 4)):
                os.dup2(spare, number)

        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        self._process = subprocess.Popen(
            [found, *flags, "--remote-debugging-pipe", f"--user-data-dir={self._home.name}",
             f"--window-size={width},{height}", "--disable-background-networking", "about:blank"],
            preexec_fn=as_three_and_four, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read_end)
        os.close(write_end)
        self._buffer, self._last = b"", 0
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, AssertionError):
            self._call("Browser.close", {}, None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)
        with contextlib.suppress(OSError):  # a helper of the browser may still write there
            self._home.cleanup()

    def open(self, url: str, *, dark: bool = False, width: int = 1320, height: int = 900) -> Page:
        """A new page, loaded."""
        target = self._call("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        session = self._call("Target.attachToTarget", {"targetId": target, "flatten": True}, None)[
            "sessionId"
        ]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        page.call("Emulation.setEmulatedMedia", features=scheme)
        page.call("Page.navigate", url=url)
        page.until(
            f"location.href.split('#')[0] === {url.split('#')[0]!r} && document.readyState === 'complete'"
        )
        return page

    def _call(self, method: str, params: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._last += 1
        number = self._last
        message = {
            "id": number,
            "method": method,
            "params": params,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + WAIT_S
        while True:
            answer = self._next(end)
            if answer.get("id") == number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            page = self._pages.get(answer.get("sessionId", ""))
            if page is not None and "method" in answer:
                page.event(answer["method"], answer["params"])

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "Chromium has ended"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
