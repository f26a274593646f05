"""
A run that is killed, frozen and cut off at random for as long as it takes, and what its ledger says afterwards.

    python bench/chaos.py [CONFIG] [--set a.b=value] [--faults 200] [--every 2] [--seed 0] [--kinds kill,freeze,cut]

    kill      SIGKILL of a random process: broker, trainer, reward, a rollout; with vLLM its engine core too
    freeze    SIGSTOP of one, for up to twice the time after which a silent node counts as lost, then SIGCONT
    cut       no packet passes between any two of them for as long (Linux network namespaces; left out without)

Faults come at random moments and do not wait for one another: a process may be killed while another is frozen, loading,
writing a checkpoint or publishing. When all are done the run has to take ten more steps by itself. Then the ledger is
audited, and the prompts trained on are compared with the order of the data. Anything wrong is an error.
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

from live_run import ENDLESS, QUICKSTART, LiveRun

from asyncrl.broker.ledger.reader import read_records
from asyncrl.broker.ledger.records import Admitted, Taken
from asyncrl.cli.inspect import read_audit
from asyncrl.config.run_file import load_config
from asyncrl.config.sections import Config
from asyncrl.data.prompts import train_stream
from asyncrl.observe.run_directory import RunDirectory

SETTINGS = ENDLESS | {
    "checkpoint.every_steps": "5",
    "rollout.progress_every_s": "0.2",
    "broker.node_ttl_s": "4",
    "evaluation.every_versions": "50",
    "evaluation.at_start": "true",
    "evaluation.at_end": "true",
    "supervisor.window_s": "1",  # each kill is the first
}
KINDS = ("kill", "freeze", "cut")
ENGINE_CORE = "VLLM::EngineCore"
"""vLLM's name for the process that decodes."""
LONGEST_S = 8.0
"""Of a freeze or a cut: twice ``broker.node_ttl_s``."""
QUIET_STEPS = 10


class Tormentor:
    """Does one bad thing after the other, by a seed."""

    def __init__(self, run: LiveRun, kinds: list[str], nodes: list[str], seed: int, every_s: float) -> None:
        self._run = run
        self._kinds = kinds
        self._nodes = nodes
        self._every_s = every_s
        self._dice = random.Random(seed)
        self._thaws: list[tuple[float, int]] = []
        """When which frozen process goes on."""
        self.done: Counter[str] = Counter()

    def torment(self, faults: int) -> None:
        """So many faults; afterwards nobody is frozen or cut off."""
        for _ in range(faults):
            self._sleep(self._dice.expovariate(1 / self._every_s))
            kind, node = self._dice.choice(self._kinds), self._dice.choice(self._nodes)
            if kind == "cut":
                self._cut(self._dice.uniform(0.1, LONGEST_S))
            else:
                self._hit(kind, node)
        self._sleep(LONGEST_S)

    def _hit(self, kind: str, node: str) -> None:
        if (pid := self._run.pid_of(node)) is None:
            self.done[f"{kind} {node} (was away)"] += 1
            return
        self.done[f"{kind} {node}"] += 1
        if kind == "kill":
            os.kill(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGSTOP)
            self._thaws.append((time.monotonic() + self._dice.uniform(0.1, LONGEST_S), pid))

    def _cut(self, seconds: float) -> None:
        self.done["cut"] += 1
        self._run.in_namespace("ip", "link", "set", "lo", "down")
        self._sleep(seconds)
        self._run.in_namespace("ip", "link", "set", "lo", "up")

    def _sleep(self, seconds: float) -> None:
        """Time passes, and the frozen go on when theirs is over."""
        until_s = time.monotonic() + seconds
        while (now_s := time.monotonic()) < until_s:
            for thaw in [thaw for thaw in self._thaws if thaw[0] <= now_s]:
                self._thaws.remove(thaw)
                if Path(f"/proc/{thaw[1]}").exists():
                    os.kill(thaw[1], signal.SIGCONT)
            time.sleep(0.02)


def main(options: argparse.Namespace) -> None:
    kinds = [kind for kind in options.kinds if kind != "cut" or can_cut()]
    for kind in set(options.kinds) - set(kinds):
        print_line({"case": kind, "skipped": "no network namespaces here (unshare -Urn)"})
    with tempfile.TemporaryDirectory() as folder:
        run = LiveRun(Path(folder), options.config, SETTINGS, options.overrides, isolated="cut" in kinds)
        tormentor = Tormentor(
            run, kinds, nodes(load_config(options.config, options.overrides)), options.seed, options.every
        )
        try:
            run.until(lambda: run.steps_taken() >= QUIET_STEPS)
            started_s = time.monotonic()
            tormentor.torment(options.faults)
            tormented_s = time.monotonic() - started_s
            calm = run.steps_taken() + QUIET_STEPS
            calm_s = run.until(lambda: run.steps_taken() >= calm) - started_s - tormented_s
        finally:
            run.end()
            if options.keep:
                shutil.copytree(run.directory.path, options.keep, dirs_exist_ok=True)
        problems = report(run.directory, tormentor.done, tormented_s, calm_s)
    if problems:
        raise SystemExit("\n".join(problems))


def nodes(config: Config) -> list[str]:
    """What may be hit."""
    rollouts = [f"rollout-{i}" for i in range(config.rollout.replicas)]
    return ["broker-0", "trainer-0", "reward-0", *rollouts, *([ENGINE_CORE] if config.rollout.engine == "vllm" else [])]


def report(directory: RunDirectory, done: Counter[str], tormented_s: float, calm_s: float) -> list[str]:
    """One line of figures; returns what is wrong."""
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
            "seconds": round(tormented_s, 1),
            f"s_to_{QUIET_STEPS}_steps_after": round(calm_s, 1),
            "steps": audit.steps,
            "skipped": audit.skipped,
            "double_trained": audit.double_trained,
            "reissued": audit.reissued,
            "duplicates": audit.duplicates,
            "tokens_trained": audit.tokens_trained,
            "tokens_thrown_away": audit.tokens_thrown_away,
        }
    )
    return problems


def out_of_order(directory: RunDirectory) -> list[str]:
    """Where the prompts trained on are not those of the data order, each once."""
    config = load_config(directory.config)
    prompts = train_stream(config.data, config.run.seed)
    records = list(read_records(directory.ledger))
    rows = {record.group_id: (record.epoch, record.row) for record in records if isinstance(record, Admitted)}
    trained = sorted(group_id for record in records if isinstance(record, Taken) for group_id in record.group_ids)
    are_first = trained == list(range(len(trained)))
    problems = [] if are_first else ["the groups trained on are not the first ones, each once"]
    for group_id in trained:
        draw = prompts.at(group_id)
        if rows[group_id] != (draw.epoch, draw.row):
            problems.append(f"group {group_id} was row {rows[group_id]}, the data order says {(draw.epoch, draw.row)}")
    return problems


def can_cut() -> bool:
    """May this user make network namespaces?"""
    tries = ["unshare", "-Urn", "ip", "link", "set", "lo", "up"]
    return all(map(shutil.which, ("unshare", "nsenter", "ip"))) and subprocess.run(tries, check=False).returncode == 0


def print_line(fields: dict[str, object]) -> None:
    print(json.dumps({"bench": "chaos", **fields}), flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", type=Path, default=QUICKSTART)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--every", type=float, default=2.0, help="Mean seconds from one fault to the next.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS))
    parser.add_argument("--keep", type=Path, help="Copy the run directory here afterwards.")
    return parser.parse_args()


if __name__ == "__main__":
    main(parsed())
