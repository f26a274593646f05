"""
A slow, lossy wire between two TAP interfaces, until standard input closes.

    python -m tests.cluster.wire NEAR FAR CONDITIONS SEED

Creates both interfaces in its network namespace, and prints a line; they may then be moved to other namespaces. Every
Ethernet frame crosses, so that TCP on ephemeral ports, name resolution and IPv6 see the same conditions.
"""

import fcntl
import os
import select
import struct
import sys
import time
from collections.abc import Mapping

import msgspec

from tests.cluster.line import Conditions, Line

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
LARGEST_FRAME = 65536


def main(near: str, far: str, conditions: str, seed: str) -> None:
    wanted = msgspec.json.decode(conditions, type=Conditions)
    taps = [open_tap(near), open_tap(far)]
    lines = {tap: Line(wanted, int(seed) + number) for number, tap in enumerate(taps)}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    carry(lines, other_end=dict(zip(taps, reversed(taps), strict=True)), end=sys.stdin.fileno())
    for line in lines.values():
        sys.stdout.write(f"carried {line.carried}, lost {line.lost}, overflowed {line.overflowed}\n")


def open_tap(name: str) -> int:
    """Create a TAP interface that lives as long as the returned file descriptor."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


def carry(lines: Mapping[int, Line], other_end: Mapping[int, int], end: int) -> None:
    """Carry frames until ``end`` is readable; ``lines`` are by the TAP at which their frames enter."""
    while True:
        arrivals_s = [line.next_s for line in lines.values() if line.next_s is not None]
        wait_s = max(0.0, min(arrivals_s) - time.monotonic()) if arrivals_s else None
        ready = select.select([*lines, end], [], [], wait_s)[0]
        if end in ready:
            return
        now_s = time.monotonic()
        for tap in ready:
            for frame in frames(tap):
                lines[tap].push(frame, now_s)
        for tap, line in lines.items():
            for frame in line.pop(now_s):
                write(other_end[tap], frame)


def frames(tap: int) -> list[bytes]:
    """Frames that wait at an interface; none if it is down."""
    found: list[bytes] = []
    try:
        while len(found) < 64:  # Then it is the other direction's turn.
            found.append(os.read(tap, LARGEST_FRAME))
    except BlockingIOError:
        pass
    return found


def write(tap: int, frame: bytes) -> None:
    try:
        os.write(tap, frame)
    except OSError:  # The interface is down, or its queue full: a wire loses the frame.
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
