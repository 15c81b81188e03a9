"""Headless Chromium, controlled over a pipe without driver, port or package.

The DevTools protocol on two pipes (`--remote-debugging-pipe`): JSON messages that end with a zero
byte are written to descriptor 3 and read from descriptor 4.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
SECONDS = 30.0
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # containers lack the namespaces for a sandbox
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--metrics-recording-only",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)


def find() -> str | None:
    """Return the path of an installed browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser with one tab; a context manager."""

    def __init__(self, program: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="browser-")
        self._input, self._output = self._start(program)
        self._number, self._rest = 0, b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{part}.enable")

    def _start(self, program: str) -> tuple[int, int]:
        """Run the browser with pipes as descriptors 3 and 4; its messages arrive on the latter."""
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(one, fcntl.F_DUPFD, 20) for one in (theirs_in, theirs_out)]
        null = os.open(os.devnull, os.O_RDWR)
        self.process = os.posix_spawn(
            program,
            [program, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"],
            {**os.environ, "HOME": self._folder},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 1),
                (os.POSIX_SPAWN_DUP2, null, 2),
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
            ],
            setpgroup=0,
        )
        for one in (theirs_in, theirs_out, null, *high):
            os.close(one)
        return ours_in, ours_out

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        with contextlib.suppress(OSError, TimeoutError):
            self.call("Browser.close")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self._input)
        os.close(self._output)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; keep events that arrive before."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._input, data) :]
        ends = time.monotonic() + SECONDS
        while True:
            answer = self._read(ends)
            if answer is None:
                raise TimeoutError(f"{method}: no answer from the browser")
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self, ends: float) -> dict[str, Any] | None:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._output], [], [], max(0.0, ends - time.monotonic()))
            if not ready:
                return None
            data = os.read(self._output, 1 << 20)
            if not data:
                raise OSError("the browser has gone")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    # --- input and output -----------------------------------------------------------------------

    def open(self, address: str) -> None:
        """Open a page and wait until it has loaded."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """Return the value of a script; promises are awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = SECONDS) -> None:
        """Wait until a script becomes true, such as the existence of an element."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            if self.evaluate(f"Boolean({script})"):
                return
            time.sleep(0.05)
        raise TimeoutError(f"still not so: {script}")

    def type(self, text: str) -> None:
        """Type into the focused element."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """Press and release a key; modifiers: 1 Alt, 2 Control, 4 Meta, 8 Shift."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
            )

    def point(self, selector: str, *, click: bool = False) -> None:
        """Move the mouse to the middle of an element; click if requested."""
        script = f"""(() => {{
            const one = document.querySelector({json.dumps(selector)});
            one.scrollIntoView({{block: "center"}});
            const {{left, top, width, height}} = one.getClientRects()[0];
            return [left + width / 2, top + height / 2];
        }})()"""
        x, y = self.evaluate(script)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def look(
        self, width: int, height: int, *, dark: bool = False, still: bool = False, scale: int = 1
    ) -> None:
        """Set the window size, the colour scheme and reduced motion."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 600,
        )
        features = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "reduce" if still else "no-preference",
        }
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": name, "value": value} for name, value in features.items()],
        )

    def picture(self, path: Path) -> None:
        """Save a screenshot of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    @property
    def requests(self) -> list[str]:
        """Return the addresses requested so far."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[str]:
        """Return uncaught exceptions of the page and errors in the browser's log."""
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                found.append(event["params"]["exceptionDetails"]["exception"]["description"])
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found
