"""
Fault injection: processes of a run are killed, stopped and disconnected at random, then the ledger is audited.

    python bench/chaos.py [CONFIG] [--set a.b=value] [--faults 200] [--every 2] [--seed 0] [--kinds kill,freeze,cut]
                          [--nodes rollout-0,...]

    kill      SIGKILL of a random process: broker, trainer, reward, rollout, or vLLM's engine core if vLLM is used
    freeze    SIGSTOP of a random process for up to twice ``broker.node_ttl_s``, then SIGCONT
    cut       no network traffic between the processes for up to the same time (needs Linux network namespaces)

Faults occur at random times and can overlap: a process may be killed while another is stopped, loading, writing a
checkpoint or publishing. After the last fault the run must take some more steps. Then the bench audits the run
directory, every file against the ledger, and compares the prompts trained on with the order of the data. Any difference
is an error.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import smoke
from live_run import LiveRun
from run_files import ENDLESS, add_run_file, take

from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import Admitted, Taken
from asyncrl.cli.inspect import read_audit
from asyncrl.config.config import Config
from asyncrl.config.run_file import load_config
from asyncrl.data.prompts import train_stream
from asyncrl.records.run_directory import RunDirectory

SETTINGS = (
    *ENDLESS,
    "checkpoint.every_steps=5",
    "rollout.progress_every_s=0.2",
    "broker.node_ttl_s=4",
    "supervisor.window_s=1",  # a window this short makes every restart count as the first
)
EVALUATIONS = {"every_versions": 50}
KINDS = ("kill", "freeze", "cut")
ENGINE_CORE = "VLLM::EngineCore"
"""Process name of vLLM's engine core."""
LONGEST_S = 8.0
"""Longest freeze or cut: twice ``broker.node_ttl_s``."""


class FaultInjector:
    """Injects random faults into a run, one after another, with a seeded random generator."""

    def __init__(self, run: LiveRun, kinds: list[str], nodes: list[str], seed: int, every_s: float) -> None:
        self._run = run
        self._kinds = kinds
        self._nodes = nodes
        self._every_s = every_s
        self._random = random.Random(seed)
        self._resumes: list[tuple[float, int]] = []
        """(time to resume, process id) of each stopped process."""
        self.done: Counter[str] = Counter()

    def inject(self, faults: int) -> None:
        """Inject ``faults`` faults, and wait until no process is stopped or disconnected."""
        for _ in range(faults):
            self._sleep(self._random.expovariate(1 / self._every_s))
            kind, node = self._random.choice(self._kinds), self._random.choice(self._nodes)
            if kind == "cut":
                self._cut(self._random.uniform(0.1, LONGEST_S))
            else:
                self._hit(kind, node)
        while self._resumes:
            self._sleep(0.1)

    def _hit(self, kind: str, node: str) -> None:
        if (pid := self._run.pid_of(node)) is None:
            self.done[f"{kind} {node} (was away)"] += 1
            return
        self.done[f"{kind} {node}"] += 1
        if kind == "kill":
            os.kill(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGSTOP)
            self._resumes.append((time.monotonic() + self._random.uniform(0.1, LONGEST_S), pid))

    def _cut(self, seconds: float) -> None:
        self.done["cut"] += 1
        self._run.in_namespace("ip", "link", "set", "lo", "down")
        self._sleep(seconds)
        self._run.in_namespace("ip", "link", "set", "lo", "up")

    def _sleep(self, seconds: float) -> None:
        """Sleep, and resume stopped processes when their time is over."""
        until_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < until_s:
            for resume in [resume for resume in self._resumes if resume[0] <= now_s]:
                self._resumes.remove(resume)
                if Path(f"/proc/{resume[1]}").exists():
                    os.kill(resume[1], signal.SIGCONT)
            time.sleep(0.02)


def main(options: argparse.Namespace) -> None:
    kinds = [kind for kind in options.kinds if kind != "cut" or can_cut()]
    for kind in set(options.kinds) - set(kinds):
        print_line({"case": kind, "skipped": "cannot create network namespaces with unshare -Urn"})
    config = take(options, SETTINGS, EVALUATIONS)
    if unknown := set(options.nodes or ()) - set(nodes(config)):
        raise SystemExit(f"--nodes: the run has no {', '.join(sorted(unknown))}, only {', '.join(nodes(config))}")
    with tempfile.TemporaryDirectory() as folder:
        run = LiveRun(Path(folder), config, isolated="cut" in kinds)
        injector = FaultInjector(run, kinds, options.nodes or nodes(config), options.seed, options.every)
        try:
            run.until(lambda: run.steps_taken() >= options.steps_after)
            started_s = time.monotonic()
            injector.inject(options.faults)
            faults_s = time.monotonic() - started_s
            steps_wanted = run.steps_taken() + options.steps_after
            calm_s = run.until(lambda: run.steps_taken() >= steps_wanted) - started_s - faults_s
        finally:
            run.end()
            if options.keep:
                shutil.copytree(run.directory.path, options.keep, dirs_exist_ok=True)
        problems = report(run.directory, injector.done, faults_s, calm_s)
    if problems:
        raise SystemExit("\n".join(problems))


def nodes(config: Config) -> list[str]:
    """Names of the processes that faults can hit."""
    rollouts = [f"rollout-{i}" for i in range(config.rollout.replicas)]
    return ["broker-0", "trainer-0", "reward-0", *rollouts, *([ENGINE_CORE] if config.rollout.engine == "vllm" else [])]


def report(directory: RunDirectory, done: Counter[str], faults_s: float, calm_s: float) -> list[str]:
    """Print one line of figures. Returns the problems found."""
    audit = read_audit(directory.path)
    problems = [*audit.problems, *out_of_order(directory)]
    print_line(
        {
            "case": "random faults",
            "ours": len(problems),
            "unit": "problems",
            "better": "lower",
            "peer": "none",
            "faults": sum(done.values()),
            "kinds": dict(sorted(done.items())),
            "seconds": round(faults_s, 1),
            "s_of_steps_after": round(calm_s, 1),
            "steps": audit.steps,
            "skipped": audit.skipped,
            "double_trained": audit.double_trained,
            "reissued": audit.reissued,
            "duplicates": audit.duplicates,
            "tokens_trained": audit.tokens_trained,
            "tokens_thrown_away": audit.tokens_thrown_away,
            "held_out_accuracy": [
                round(float(event["accuracy"]), 3)
                for event in directory.read_events()
                if event["event"] == "eval.finished"
            ],
        }
    )
    return problems


def out_of_order(directory: RunDirectory) -> list[str]:
    """Differences between the prompts trained on and the data order, in which each prompt occurs once."""
    config = load_config(directory.config)
    prompts = train_stream(config.data, config.run.seed)
    records = list(read_records(directory.ledger))
    rows = {record.group_id: (record.epoch, record.row) for record in records if isinstance(record, Admitted)}
    trained = sorted(group_id for record in records if isinstance(record, Taken) for group_id in record.group_ids)
    are_first = trained == list(range(len(trained)))
    problems = [] if are_first else ["the groups trained on are not the first ones in order, each exactly once"]
    for group_id in trained:
        draw = prompts.at(group_id)
        if rows[group_id] != (draw.epoch, draw.row):
            problems.append(f"group {group_id} used (epoch, row) {rows[group_id]}; expected {(draw.epoch, draw.row)}")
    return problems


def can_cut() -> bool:
    """True if the current user can create network namespaces."""
    tries = ["unshare", "-Urn", "ip", "link", "set", "lo", "up"]
    return all(map(shutil.which, ("unshare", "nsenter", "ip"))) and subprocess.run(tries, check=False).returncode == 0


def print_line(fields: dict[str, object]) -> None:
    print(json.dumps({"bench": "chaos", **fields}), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_file(parser)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--every", type=float, default=2.0, help="Mean seconds from one fault to the next.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--nodes", type=lambda text: text.split(","), help="Faults hit only these; all by default.")
    parser.add_argument("--steps-after", type=int, default=10, help="Steps before the first fault, and after the last.")
    parser.add_argument("--keep", type=Path, help="Copy the run directory here afterwards.")
    return smoke.parsed(parser)


if __name__ == "__main__":
    main(parsed())
