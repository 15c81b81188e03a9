"""Run commands one after another and print the time, memory and output of each, as JSON lines.

Run as a script in its own process: the peak memory of a child includes that of its parent at the
fork, so this script imports very little.
"""

import json
import os
import subprocess
import sys
import time


def main() -> None:
    """Run the commands of the first argument."""
    for command in json.loads(sys.argv[1]):
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - our own commands
        assert process.stdout is not None
        text = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        if status:
            sys.exit(f"{command} failed")
        result = {"seconds": seconds, "kib": used.ru_maxrss, "text": text.strip()}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
