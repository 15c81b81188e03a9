"""Count the files and functions of Outrider that one command runs through.

    python tests/helpers/walk.py translate --model demo/zh-en "你好。"
    python tests/helpers/walk.py --post BODY serve zh-en=demo/zh-en --port 5123

Code that runs while modules are imported is not counted. With --post the command is a server, and
its second request is counted, over all threads. Prints JSON.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.request
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import outrider

ROOT = f"{Path(outrider.__file__).resolve().parent}{os.sep}"


class Recorder:
    """A profiler that counts the functions of the package by file."""

    def __init__(self) -> None:
        self.on = False
        self.functions: set[tuple[str, str]] = set()
        self.changes = 0
        self.local = threading.local()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(ROOT):
            return
        state = self.local.__dict__
        if code.co_name == "<module>":
            state["imports"] = state.get("imports", 0) + (1 if event == "call" else -1)
            return
        if not code.co_flags & CO_OPTIMIZED or state.get("imports"):
            return
        stack: list[str] = state.setdefault("stack", [])
        if event == "return":
            if stack:
                stack.pop()
            return
        file = code.co_filename[len(ROOT) :]
        package = file.partition(os.sep)[0]
        if self.on:
            self.functions.add((file, code.co_qualname))
            self.changes += bool(stack) and stack[-1] != package
        stack.append(package)

    def report(self) -> dict[str, int]:
        """Return the counts."""
        files = {file for file, _ in self.functions}
        return {
            "files": len(files),
            "functions": len(self.functions),
            "package_changes": self.changes,
        }


def post_twice(recorder: Recorder, port: str, body: str) -> None:
    """Wait for the server, warm it up, count one request, and end the process."""
    url = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            urllib.request.urlopen(f"{url}/ready", timeout=2)
            break
        except OSError:
            time.sleep(0.2)
    for recorder.on in (False, True):
        header = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/translate", body.encode(), header)
        urllib.request.urlopen(request, timeout=60).read()
        time.sleep(0.5)
    recorder.on = False
    print(json.dumps(recorder.report()), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run the given command line."""
    from outrider.cli.main import run

    words, recorder = sys.argv[1:], Recorder()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    if words[0] == "--post":
        body, words = words[1], words[2:]
        port = words[words.index("--port") + 1]
        threading.Thread(target=post_twice, args=(recorder, port, body), daemon=True).start()
        run(words)
        return
    recorder.on = True
    run(words)
    sys.setprofile(None)
    print(json.dumps(recorder.report()))


if __name__ == "__main__":
    main()
