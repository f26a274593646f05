"""
Calls per second of environments: many concurrent episodes in one worker process, whose environment does nothing.

    python bench/environments.py [--episodes 128] [--steps 100] [--rounds 3]

``Plain`` has functions, ``Async`` has async methods.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import smoke
import uvloop

from asyncrl.config.sections.environment import Environment
from asyncrl.engine import PolicyTurn
from asyncrl.episodes.environment import TaskInput
from asyncrl.episodes.pool import EnvironmentPool

CODE = """
class Plain:
    def reset(self, task):
        self.count = 0

    def step(self, said):
        self.count += 1
        return {"messages": [{"role": "user", "content": str(self.count)}]}

class Async:
    async def reset(self, task):
        self.count = 0

    async def step(self, said):
        self.count += 1
        return {"messages": [{"role": "user", "content": str(self.count)}]}
"""
TASK = TaskInput(messages=[{"role": "user", "content": "Count."}])
SAID = PolicyTurn(text="Again.")


async def calls_per_s(function: str, episodes: int, steps: int) -> float:
    async with EnvironmentPool(Environment(function=function, workers=1), "bench", "node") as pool:

        async def play(number: int) -> None:
            episode = pool.open(f"bench/{number}")
            await episode.reset(TASK)
            for _ in range(steps):
                await episode.step(SAID)
            await episode.close()

        begun = time.perf_counter()
        await asyncio.gather(*map(play, range(episodes)))
        return episodes * (steps + 2) / (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = smoke.parsed(parser)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "environments.py")
        path.write_text(CODE)
        for name in ("Plain", "Async"):
            rates = [
                uvloop.run(calls_per_s(f"{path}:{name}", chosen.episodes, chosen.steps)) for _ in range(chosen.rounds)
            ]
            line = {
                "bench": "environments",
                "case": f"{name}, {chosen.episodes} episodes",
                "ours": round(median(rates)),
            }
            line |= {"unit": "calls/s", "better": "higher", "peer": "none", "rounds": [round(rate) for rate in rates]}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
