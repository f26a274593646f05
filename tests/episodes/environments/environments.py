"""Environments that tests write to files, as a user would."""

from pathlib import Path

from asyncrl.engine import PolicyTurn
from asyncrl.episodes.environment import TaskInput

BOXES = '''
import asyncio, json, os, signal, subprocess, sys, threading, time
from asyncrl.environment import Step

class Boxes:
    """Counts from the seed; does what the policy says."""
    resume = "snapshot"

    def __init__(self, start: int = 0):
        self.count = start
        self.closed_in = ""

    async def reset(self, task):
        self.name = task.name
        self.count += task.seed
        self.closed_in = task.extra.get("closed_in", "")
        self.hangs_at_end = task.extra.get("hangs_at_end", False)
        if task.extra.get("greets"):
            return [{"role": "user", "content": "hello"}]

    async def step(self, said):
        self.count += 1
        if said.text == "raise":
            raise ValueError("no such box")
        if said.text == "sleep":
            await asyncio.sleep(3600)
        if said.text == "block":
            time.sleep(3600)
        if said.text == "exit":
            os._exit(7)
        if said.text == "leave":
            sys.exit(3)
        if said.text == "spawn":
            subprocess.Popen(["sleep", "3600"], stdout=open(self.closed_in, "w"))
        if said.text == "print":
            print("x" * 100)
        if said.text == "nothing":
            return None
        return Step(messages=[{"role": "user", "content": str(self.count)}], reward=0.5, done=said.text == "stop")

    async def score(self):
        return {"score": float(self.count), "steps": self.count}

    async def snapshot(self):
        return str(self.count).encode()

    async def restore(self, task, state):
        self.count = int(state)

    async def close(self):
        if self.closed_in:
            with open(self.closed_in, "a") as file:
                file.write(self.name + "\\n")
        if self.hangs_at_end:
            await asyncio.sleep(3600)


class Plain:
    """The same with plain functions."""

    def reset(self, task):
        self.count = task.seed

    def step(self, said):
        if said.text == "block":
            time.sleep(3600)
        if said.text == "exit":
            os._exit(7)
        self.count += 1
        return {"messages": [{"role": "user", "content": str(self.count)}]}


async def solve(task, client):
    if task.extra.get("hangs"):
        try:
            await asyncio.sleep(3600)
        finally:
            open(task.extra["closed_in"], "w").write("cancelled")
    return {"score": len(client.base_url) + len(client.key), "seed": task.seed}


def solve_plainly(task, client):
    return 2.5


everybody = threading.Barrier(100, timeout=20)


async def meet(task, client):
    await asyncio.to_thread(everybody.wait)
    return 1.0


def asks_environment(task):
    boxes = Plain()
    boxes.variables = sorted(name for name in os.environ if name.startswith("ASYNCRL_"))
    boxes.step = lambda said: Step(messages=[{"role": "user", "content": json.dumps(
        [os.environ["ASYNCRL_RUN"], os.environ["ASYNCRL_NODE"], os.environ["TMPDIR"]])}])
    return boxes


def makes_nothing():
    return 5
'''


def written(folder: Path, text: str = BOXES) -> Path:
    """File with environments."""
    path = folder / "boxes.py"
    path.write_text(text)
    return path


def task(seed: int = 0, **extra: object) -> TaskInput:
    return TaskInput(messages=[{"role": "user", "content": "Count."}], seed=seed, name="run/train/1/0", extra=extra)


def said(text: str = "go on") -> PolicyTurn:
    return PolicyTurn(text=text, content=text)
