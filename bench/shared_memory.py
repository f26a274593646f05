"""
Broadcast between processes of one machine: memory that they share, compared with Gloo on loopback, in turns.

    python bench/shared_memory.py [--rounds 9] [--receivers 2]

1.2 GB in buckets of 64 MiB, from one process to the others. Seconds are those of the sender, until every receiver has
everything.
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median
from tempfile import TemporaryDirectory

import smoke
import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]  # public, but not exported

from asyncrl.weights.groups.group import form
from asyncrl.weights.groups.network_interface import Deadline

BACKENDS = ("shared", "gloo")
BUCKET = 64 << 20
LIMIT_S = 120.0


def run(folder: str, rank: int, size: int, rounds: int, buckets: int) -> dict[str, list[float]]:
    """Seconds of each round by backend."""
    torch.set_num_threads(1)
    store = FileStore(f"{folder}/store", size)
    groups = {}
    for backend in BACKENDS:
        own = torch.distributed.PrefixStore(backend, store)  # type: ignore[attr-defined]
        groups[backend] = form(backend, own, rank, size, interface="127.0.0.1", deadline=Deadline(LIMIT_S))
    bucket, seconds = torch.zeros(BUCKET, dtype=torch.uint8), {backend: list[float]() for backend in BACKENDS}
    for number in range(rounds):
        for backend, group in groups.items():
            began_s = time.perf_counter()
            for _ in range(buckets):
                group.broadcast(bucket, 0, Deadline(LIMIT_S))
            key = f"{backend} {number}"
            store.add(key, 1)
            while store.add(key, 0) < size:
                time.sleep(0.0005)
            seconds[backend].append(time.perf_counter() - began_s)
    for group in groups.values():
        group.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--receivers", type=int, default=2)
    parser.add_argument("--buckets", type=int, default=18, help="of 64 MiB")
    parser.add_argument("--join", nargs=2, help=argparse.SUPPRESS)
    options = smoke.parsed(parser)
    size = options.receivers + 1
    if options.join:
        run(options.join[0], int(options.join[1]), size, options.rounds, options.buckets)
        return
    with TemporaryDirectory() as folder:
        command = [sys.executable, *sys.argv, "--join", folder]
        others = [subprocess.Popen([*command, str(rank)]) for rank in range(1, size)]
        seconds = run(folder, 0, size, options.rounds, options.buckets)
        for other in others:
            other.wait(LIMIT_S)
    num_bytes = BUCKET * options.buckets
    speeds = {backend: num_bytes / median(times) / 1e9 for backend, times in seconds.items()}
    case = f"broadcast of {num_bytes / 1e9:.1f} GB to {options.receivers} processes of this machine"
    found = {"bench": "shared_memory", "case": case, "ours": speeds["shared"], "unit": "GB/s", "peer": "gloo"}
    found |= {"peer_value": speeds["gloo"], "ratio": speeds["shared"] / speeds["gloo"], "better": "higher"}
    sys.stdout.write(json.dumps(found | {"seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
