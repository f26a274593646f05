"""Two network namespaces stand for two machines: each has a loopback interface and one side of a cable."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncrl.files.access import new_secret, write_secret
from asyncrl.runtime.local_address import INTERFACE_VARIABLE
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow("whole runs of real processes")
ROOT = Path(__file__).parents[2]
PORT = 5570
NAMESPACES = ("unshare", "--user", "--map-root-user", "--net", "--mount", "--fork", "--kill-child", "sh", "-ec")
"""Namespaces of a command and its children, which end with it; inside, it may create more."""
CABLE = """
mount -t tmpfs tmpfs /run
ip netns add first
ip netns add second
ip link add cable netns first type veth peer name cable netns second
for side in first:1 second:2; do
    machine=${side%:*} number=${side#*:}
    ip -n $machine address add 10.213.0.$number/24 dev cable
    ip -n $machine address add fd00:213::$number/64 dev cable nodad
    ip -n $machine link set lo up
    ip -n $machine link set cable up
done
"""
RUN = """
ip netns exec first "$@" trainer $BROKER $SECRET >$FOLDER/trainer &
ip netns exec second env $SECOND "$@" rollout $BROKER $SECRET >$FOLDER/rollout || true
wait $! || true
"""


def transferred(folder: Path, broker: str, second: str = "") -> tuple[dict[str, str], dict[str, str]]:
    """
    Transfer weights from the first machine to the second, and return what both ends wrote.

    Args:
        broker: Host of the first machine.
        second: Assignment of a variable in the environment of the second machine.
    """
    if not all(map(shutil.which, ("unshare", "ip"))):
        pytest.skip("needs unshare and ip, of util-linux and iproute2")
    tried = subprocess.run([*NAMESPACES, CABLE], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    if tried.returncode:
        pytest.skip(f"this machine refuses network namespaces or veth: {tried.stderr.strip()}")
    write_secret(folder / "secret", new_secret())
    environment = os.environ | {
        "BROKER": f"tcp://{broker}:{PORT}",
        "FOLDER": str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "SECOND": second or "A=",
        "SECRET": str(folder / "secret"),
    }
    command = [*NAMESPACES, CABLE + RUN, "sh", sys.executable, "-m", "tests.integration.transfer_process"]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    written = [(folder / role).read_text() for role in ("trainer", "rollout")]
    assert all(written), done.stderr
    trainer, rollout = map(json.loads, written)
    return trainer, rollout


@pytest.mark.parametrize(
    ("broker", "first", "second"),
    [("10.213.0.1", "10.213.0.1", "10.213.0.2"), ("[fd00:213::1]", "fd00:213::1", "fd00:213::2")],
    ids=["IPv4", "IPv6"],
)
def test_weights_travel_over_the_route_to_the_broker(tmp_path: Path, broker: str, first: str, second: str) -> None:
    trainer, rollout = transferred(tmp_path, broker)
    assert (trainer["interface"], rollout["interface"]) == (first, second)
    assert trainer["digest"] == rollout["digest"]


def test_a_node_that_listens_where_no_other_machine_reaches_it_is_named(tmp_path: Path) -> None:
    trainer, rollout = transferred(tmp_path, "10.213.0.1", f"{INTERFACE_VARIABLE}=lo")
    assert rollout["interface"] == "127.0.0.1"
    reason = "rank 0, at 10.213.0.1, cannot connect to rank 1, at 127.0.0.1: only its own machine reaches a loopback"
    assert reason in rollout["error"]
    assert reason in trainer["error"]
