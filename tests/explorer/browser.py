"""Debian's Chromium, headless, over the pipe of its debugging protocol: no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "--window-size=1280,800",
)
# The protocol speaks on file descriptors 3 and 4; either end may be one of these already.
START = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
for number, end in enumerate(ends, 3):
    os.dup2(end, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


class PageError(AssertionError):
    """What a script of the page threw."""


class Browser:
    """One page of a fresh profile. ``problems``: what lands in its console, and what it asks the network for."""

    def __init__(self, patience: float = 120) -> None:
        self.patience = patience
        self.problems: list[str] = []
        self.profile = tempfile.mkdtemp(prefix="explorer-")
        read_commands, self.commands = os.pipe()
        self.answers, write_answers = os.pipe()
        ends = (str(read_commands), str(write_answers))
        self.process = subprocess.Popen(
            [sys.executable, "-ISc", START, *ends, CHROMIUM, *FLAGS, f"--user-data-dir={self.profile}", "about:blank"],
            pass_fds=(read_commands, write_answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_commands)
        os.close(write_answers)
        self.buffer = b""
        self.number = 0
        self.session = ""
        self.loads = 0
        found = self.call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in found if each["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.commands)
        os.close(self.answers)
        # The browser's processes are its session's, which this object began.
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.commands, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + self.patience
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.answers], [], [], max(deadline - time.monotonic(), 0))
            part = os.read(self.answers, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("Chromium does not answer")
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        method, found = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning", "assert"):
            self.problems.append(f"console: {[each.get('value', each.get('description')) for each in found['args']]}")
        elif method == "Runtime.exceptionThrown":
            details = found["exceptionDetails"]
            self.problems.append(f"exception: {details.get('exception', {}).get('description', details['text'])}")
        elif method == "Log.entryAdded" and found["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"log: {found['entry']['text']}")
        elif method == "Network.requestWillBeSent" and found["request"]["url"].split(":")[0] not in (
            "file",
            "blob",
            "data",
        ):
            self.problems.append(f"request: {found['request']['url']}")
        elif method == "Page.loadEventFired":
            self.loads += 1

    def open(self, path: Path, fragment: str = "") -> float:
        """Open a page; the seconds until it is ready, in the page's own clock."""
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=path.resolve().as_uri() + fragment)
        self.wait(
            "document.documentElement?.dataset.ready === 'yes' || !!document.querySelector('.message:not([hidden])')"
        )
        return float(self.run("performance.now()")) / 1000

    def run(self, script: str) -> Any:
        """The value of an expression of the page; promises are waited for."""
        done = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            details = done["exceptionDetails"]
            raise PageError(details.get("exception", {}).get("description", details["text"]))
        return done["result"].get("value")

    def wait(self, condition: str) -> None:
        deadline = time.monotonic() + self.patience
        while not self.run(condition):
            if time.monotonic() > deadline:
                raise TimeoutError(f"it never became true: {condition}")
            time.sleep(0.02)

    def settle(self) -> None:
        """Waits until what was begun is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))))")

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Where an element is: x, y, width, height."""
        script = "((b) => [b.x, b.y, b.width, b.height])(document.querySelector({}).getBoundingClientRect())"
        return tuple(self.run(script.format(json.dumps(selector))))

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1, buttons=1 if kind == "mousePressed" else 0)
        self.settle()

    def key(self, key: str, text: str = "") -> None:
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=text or (key if len(key) == 1 else ""))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)
        self.settle()

    def screen(self, width: int, height: int, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.settle()

    def picture(self, path: Path) -> None:
        self.settle()
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
