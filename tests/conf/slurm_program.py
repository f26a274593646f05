"""
Stand-in for asyncrl-node, which records its command line, and ends when a test says so.

    FAKE/started       a line of JSON for each start of asyncrl-node: its arguments
    FAKE/NAME          exit codes of the next starts of a node, one a line; it ends at once
    RUN/run/summary.json   ends every other node with 0, as the end of a run does; SIGTERM ends it with 143

The broker writes the summary when `END` starts of nodes have been recorded, its own among them.
"""

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

FAKE = Path(os.environ["FAKE"])
LOOK_S = 0.02
PATIENCE_S = 60.0


def node(arguments: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    name = given.get("--name", "broker")
    for path in (given.get("--key"), f"{given['--keys']}/broker.key" if "--keys" in given else None):
        if path and stat.S_IMODE(Path(path).stat().st_mode) != 0o600:
            sys.exit(78)
    with (FAKE / "started").open("a") as started:
        started.write(json.dumps(arguments) + "\n")
    codes = (FAKE / name).read_text().split() if (FAKE / name).exists() else []
    if codes:
        (FAKE / name).write_text("\n".join(codes[1:]))
        sys.exit(int(codes[0]))
    summary = Path(os.environ["RUN"], "run", "summary.json")
    deadline_s = time.monotonic() + PATIENCE_S
    while not summary.exists() and time.monotonic() < deadline_s:
        if name == "broker" and len((FAKE / "started").read_text().splitlines()) >= int(os.environ["END"]):
            summary.parent.mkdir(exist_ok=True)
            summary.touch()
        time.sleep(LOOK_S)


if __name__ == "__main__":
    node(sys.argv[1:])
