"""A real browser without a window, told what to do over a pair of pipes (Chrome's own protocol)."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.processes import DEADLINE

__all__ = ["Browser", "why_no_browser"]

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)


def why_no_browser() -> str:
    """Say why pages cannot be tested here; empty if they can."""
    return (
        "" if shutil.which("chromium") else "chromium is not installed (apt-get install chromium)"
    )


class Browser:
    """One page on a screen of this size, with a mouse or, as a phone, with fingers.

    `errors` has what a page threw, what it wrote to the console as an error, and what it could not
    load.
    """

    def __init__(
        self, folder: Path, width: int, height: int, *, touch: bool = False, dark: bool = False
    ) -> None:
        to_it, self._write = os.pipe()
        self._read, from_it = os.pipe()
        # The browser reads commands from file 3 and writes answers to file 4.
        redirect = f'exec "$@" 3<&{to_it} 4>&{from_it}'
        profile = f"--user-data-dir={folder / 'profile'}"
        self._process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", "chromium", *_OPTIONS, profile],
            pass_fds=(to_it, from_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder)},
        )
        os.close(to_it)
        os.close(from_it)
        self._unread = b""
        self._count = 0
        self.errors: list[str] = []
        self._page: dict[str, str] = {}
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._page = {"sessionId": attached["sessionId"]}
        for part in ("Page", "Runtime", "Log"):
            self._ask(f"{part}.enable")
        self._ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[scheme])
        if touch:
            self._ask("Emulation.setTouchEmulationEnabled", enabled=True)

    def open(self, page: Path | str) -> None:
        """Load a page, a file or an address, and wait until it is drawn."""
        address = page if isinstance(page, str) else page.as_uri()
        self._ask("Page.navigate", url=address)
        self.until(f"document.readyState + location.href == 'complete{address}'")
        self.drawn()

    def until(self, condition: str) -> None:
        """Wait until an expression in the page is true."""
        deadline = time.monotonic() + DEADLINE
        while not self.ask(condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.05)

    def ask(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self._ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def drawn(self) -> None:
        """Wait for what the page draws in its next two frames."""
        frames = "new Promise(go => requestAnimationFrame(() => requestAnimationFrame(go)))"
        self.ask(f"{frames}.then(() => 0)")

    def mouse(self, kind: str, place: Sequence[float], **more: Any) -> None:
        """Move ("mouseMoved"), press ("mousePressed"), release or turn the wheel of the mouse."""
        self._ask(
            "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1],
            button="none" if kind in ("mouseMoved", "mouseWheel") else "left",
            buttons=int(more.pop("held", False)), clickCount=1, **more,
        )  # fmt: skip

    def drag(self, start: Sequence[float], stop: Sequence[float]) -> None:
        """Press the mouse, move it, and release it."""
        self.mouse("mouseMoved", start)
        self.mouse("mousePressed", start, held=True)
        for part in (0.5, 1):
            middle = [one + (other - one) * part for one, other in zip(start, stop, strict=True)]
            self.mouse("mouseMoved", middle, held=True)
        self.mouse("mouseReleased", stop)
        self.drawn()

    def fingers(self, *steps: Sequence[Sequence[float]]) -> None:
        """Put fingers down at the places of the first step, move them along, and lift them."""
        for number, places in enumerate(steps):
            kind = "touchMove" if number else "touchStart"
            points = [{"x": x, "y": y, "id": finger} for finger, (x, y) in enumerate(places)]
            self._ask("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        self._ask("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.drawn()

    def key(self, name: str) -> None:
        """Press a key."""
        text = {"text": name} if len(name) == 1 else {}
        self._ask("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
        self._ask("Input.dispatchKeyEvent", type="keyUp", key=name)
        self.drawn()

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write what is on the screen, or all of the page, as a PNG file."""
        shot = self._ask("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._write)  # it ends with its pipe
        try:
            self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters, **self._page}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._notice(answer.get("method"), answer.get("params", {}))
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _notice(self, event: str | None, told: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and told["type"] == "error":
            self.errors.append(json.dumps(told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(json.dumps(told["entry"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._read], [], [], DEADLINE)[0], "the browser says nothing"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._unread += piece
        text, _, self._unread = self._unread.partition(b"\0")
        return json.loads(text)
