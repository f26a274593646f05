"""SIGKILL of rollouts, workers and clients of the runtime in mid-call: nothing is left, and finished turns are kept."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from asyncrl.config.sections.environment import ContainerSettings, Environment
from asyncrl.workers import folders
from asyncrl.workers.containers import RUN, CommandLine
from tests.episodes.environments.environments import written
from tests.episodes.environments.test_containers import COUNTS
from tests.episodes.environments.test_pool import command_of
from tests.workers.container_runtime import IMAGE, runtime

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
NOTHING_LEFT_S = 60.0
EPISODES, TURNS = 3, 4
PLAYS = '''
import asyncio, json, os, sys
from pathlib import Path
import msgspec
from asyncrl.config.sections.environment import Environment
from asyncrl.episodes.environment import EnvironmentDiverged
from asyncrl.episodes.pool import EnvironmentPool
from asyncrl.errors import EnvironmentFailed
from tests.episodes.environments.environments import said, task

EPISODES, TURNS = int(sys.argv[4]), int(sys.argv[5])

def stored(path, turns, state):
    path.with_suffix(".new").write_text(json.dumps([turns, state.hex()]))
    path.with_suffix(".new").rename(path)

def note(folder, kind):
    with (folder / "notes").open("a") as notes:
        notes.write(kind + "\\n")

async def play(pool, folder, index, number):
    """Play one episode, from where an earlier process or attempt has stored it, as a rollout does."""
    name, path = f"run/train/{number}/{index}", folder / f"{index}.json"
    while True:
        turns, state = json.loads(path.read_text()) if path.exists() else (0, "")
        episode, row = pool.open(name), msgspec.structs.replace(task(), name=name)
        try:
            await (episode.restore(row, bytes.fromhex(state)) if turns else episode.reset(row))
            while turns < TURNS:
                answer = await episode.step(said(str(turns)))
                lines = answer.messages[0]["content"].split()
                note(folder, "turn" if lines == [str(turns + 1), *map(str, range(turns + 1))] else f"wrong {lines}")
                turns += 1
                stored(path, turns, await episode.snapshot())
            return path.unlink()
        except EnvironmentFailed as error:
            note(folder, f"failed {error}")
        except EnvironmentDiverged as error:
            note(folder, f"anew {error}")
            path.unlink()
        finally:
            await episode.close()

async def main():
    folder, environment = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=Environment)
    async with EnvironmentPool(environment, sys.argv[3], "node") as pool:
        async def one(index):
            count = folder / f"{index}.count"
            while True:
                number = int(count.read_text()) if count.exists() else 0
                await play(pool, folder, index, number)
                count.with_suffix(".new").write_text(str(number + 1))
                count.with_suffix(".new").rename(count)
        await asyncio.gather(*map(one, range(EPISODES)))

asyncio.run(main())
'''


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(5, marks=[pytest.mark.slow("five processes are killed"), pytest.mark.timeout(400)]),
        pytest.param(200, marks=[pytest.mark.long("two hundred processes are killed"), pytest.mark.timeout(6000)]),
    ],
)
def test_nothing_is_left_and_finished_turns_are_kept_after_kills(tmp_path: Path, kills: int) -> None:
    run_id, dice, done = f"kills-{os.getpid()}", random.Random(kills), Counter[str]()
    settings = ContainerSettings(
        image=IMAGE, runtime=runtime(tmp_path), workdir="/", memory_bytes=100 << 20, warm=1, snapshot="turn"
    )
    environment = Environment(
        function=f"{written(tmp_path, COUNTS)}:Counts", workers=2, call_s=60.0, container=settings
    )
    (notes := tmp_path / "notes").touch()
    arguments = [str(tmp_path), msgspec.json.encode(environment).decode(), run_id, str(EPISODES), str(TURNS)]

    def started() -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, "-c", PLAYS, *arguments])

    def turns() -> int:
        return notes.read_text().count("turn\n")

    rollout = started()
    try:
        while done.total() < kills:
            wanted = turns() + dice.randrange(4)
            while turns() < wanted:
                assert rollout.poll() is None
                time.sleep(0.01)
            time.sleep(dice.random())
            kind = dice.choice(["rollout", "worker", "client", "client"])
            if kind == "rollout":
                rollout.kill()
                rollout.wait()
                rollout = started()
            elif not killed(rollout.pid, kind, settings.runtime, dice):
                continue
            done[kind] += 1
        wanted = turns() + EPISODES
        while turns() < wanted:
            time.sleep(0.01)
    finally:
        rollout.kill()
        rollout.wait()
    deadline, lines = time.monotonic() + NOTHING_LEFT_S, CommandLine(settings.runtime)
    while left := [one for one in asyncio.run(lines.owned()) if one.labels.get(RUN) == run_id]:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
    told = Counter(line.split()[0] for line in notes.read_text().splitlines())
    sys.stdout.write(
        json.dumps(
            {"kills": dict(done), **told, "gone_after_s": round(NOTHING_LEFT_S - (deadline - time.monotonic()), 1)}
        )
    )
    assert [line for line in notes.read_text().splitlines() if line.startswith(("wrong", "anew"))] == []


def killed(rollout: int, kind: str, program: str, dice: random.Random) -> bool:
    """Kill a worker of environments, or a client of the runtime in mid-call."""
    names = ("episodes/worker/start.py",) if kind == "worker" else ("workers/podman.py", program)
    found = []
    for process in folders.below(rollout):
        with suppress(OSError):
            command = command_of(process.pid)
            if any(word.endswith(names) for word in command) and "monitor" not in command:
                found.append(process.pid)
    if not found:
        return False
    with suppress(ProcessLookupError):
        os.kill(dice.choice(found), signal.SIGKILL)
        return True
    return False
