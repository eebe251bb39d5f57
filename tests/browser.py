"""A browser for the tests of pages: headless Chromium, controlled over a pipe, without further packages."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):  # where the browser speaks the protocol
    os.dup2(end, place)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser() -> str | None:
    """Where a Chromium is, on systems whose pipes a child process can be handed."""
    return None if os.name == "nt" else next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page in a browser of its own, by the DevTools protocol.

    `problems` collects errors of the page's script, and everything that it tried to load.
    """

    def __init__(self, width: int = 1280, height: int = 900):
        program = find_browser()
        assert program is not None
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        there, self._commands = os.pipe()
        self._answers, back = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        flags += ["--disable-dev-shm-usage", "--remote-debugging-pipe", f"--user-data-dir={self._home.name}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(there), str(back), program, *flags, "about:blank"],
            pass_fds=(there, back),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._buffer, self._number, self._session = b"", 0, None
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)
        self._home.cleanup()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser is gone"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(text)
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"])[:500])
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.problems.append(f"loads {url}")
        return message

    def open(self, path: Path, seconds: float = 30.0) -> None:
        self.call("Page.navigate", url=path.resolve().as_uri())
        end = time.monotonic() + seconds
        while self.ask("document.readyState") != "complete" or self.ask("location.href") == "about:blank":
            assert time.monotonic() < end, "the page does not come to its end"
            time.sleep(0.05)
        self.settle()

    def settle(self) -> None:
        """Wait until the page has been drawn."""
        frames = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
        self.call("Runtime.evaluate", expression=frames, awaitPromise=True)

    def ask(self, expression: str) -> Any:
        """The value of an expression on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def resize(self, width: int, height: int = 900, dark: bool = False, media: str = "") -> None:
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        if self._session:
            self.settle()

    def point(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]))
