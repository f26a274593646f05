"""Process groups of Gloo work across a slow, lossy line, whose conditions their ephemeral ports do not escape."""

import sys

import pytest

from tests.cluster.line import Conditions
from tests.cluster.network import Network

pytestmark = [
    pytest.mark.slow("whole runs of real processes on several machines"),
    pytest.mark.usefixtures("machines_permitted"),
]

PROGRAM = """
import hashlib, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
rank, host, size = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
address, limit = f"tcp://{host}:29500", timedelta(minutes=10)
dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2, timeout=limit)
data = torch.zeros(size, dtype=torch.uint8)
if rank == 0:
    data.random_(generator=torch.Generator().manual_seed(0))
dist.barrier()
began_s = time.monotonic()
dist.broadcast(data, src=0)
print("received", time.monotonic() - began_s, hashlib.sha256(data.numpy().data).hexdigest())
"""
MIB = 2**20
FAR = Conditions(delay_s=0.05, loss=0.01, rate_bits_s=50e6)


@pytest.mark.long("a slow line")
def test_a_broadcast_of_64_mib_crosses_a_lossy_line() -> None:
    with Network() as network:
        (near,) = network.add("near")
        (far,) = network.add("far", conditions=FAR)
        network.boot()
        interface = {"GLOO_SOCKET_IFNAME": "eth0"}
        ranks = [
            machine.start(
                "rank.log", sys.executable, "-c", PROGRAM, str(rank), near.ipv4, str(64 * MIB), environment=interface
            )
            for rank, machine in enumerate((near, far))
        ]
        assert [rank.wait(600) for rank in ranks] == [0, 0], [rank.last_lines() for rank in ranks]
        of_near, of_far = (rank.last_lines(1).split() for rank in ranks)
        far.power_off()

        assert of_near[2] == of_far[2]
        assert float(of_far[1]) >= 64 * MIB * 8 / FAR.rate_bits_s
        assert far.frames_lost() > 200  # of at least 46,000
