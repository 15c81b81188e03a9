"""Start commands one after another and print what each took: a list of lists of words, as JSON.

Run as a script, in a process of its own: the system counts the memory of whoever starts a process
as that process's own peak, so this one imports next to nothing.
"""

import json
import os
import subprocess
import sys
import time

__all__ = ["main"]


def main() -> None:
    """Run the commands of the first argument."""
    for command in json.loads(sys.argv[1]):
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - our own commands
        assert process.stdout is not None
        text = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        if status:
            sys.exit(f"{command} failed")
        found = {"seconds": seconds, "kib": used.ru_maxrss, "text": text.strip()}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
