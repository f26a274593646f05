"""
Prints the table of README's section "Numbers", by running the benches that measure each of its rows.

    python bench/readme.py [--rows loop,recovery,...] [--smoke]

The peers have to be installed: ``pip install -e .[bench]``; the cell of one that is not says so. Every bench takes its
run file from conf/. It takes twenty minutes on two quiet cores; commands and times go to standard error.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import smoke

HERE = Path(__file__).parent
ROLES = ("broker", "reward", "trainer", "rollout")

Line = dict[str, Any]
Cells = tuple[str, str, str]
"""Measurement, asyncrl and peer."""


class Lines(list[Line]):
    """What a bench has printed."""

    def of(self, case: str, peer: str = "") -> Line:
        """The measured line of a case and peer, by what their names begin with; of several peers the best one."""
        if not (found := self._measured(case, peer)):
            known = [(one["case"], one.get("peer")) for one in self]
            raise SystemExit(f"no line has the case {case!r} and the peer {peer!r}, but there are {known}")
        sign = 1 if found[0]["better"] == "higher" else -1
        return max(found, key=lambda one: sign * (one.get("peer_value") or 0))

    def beside(self, case: str, peer: str, name: str) -> tuple[str, str]:
        """Cells of our figure, and of a peer's under a name for readers, or why it has none."""
        reasons = [one["skipped"] for one in self if "skipped" in one and one.get("peer", "").startswith(peer)]
        if reasons and not self._measured(case, peer):
            return figure(self.of(case)), f"{name}: {reasons[0]}"
        line = self.of(case, peer)
        return figure(line), f"{name}: {figure(line | {'ours': line['peer_value']})}"

    def _measured(self, case: str, peer: str) -> list[Line]:
        """Those in CPU seconds are left out."""
        found = [one for one in self if one["case"].startswith(case) and one.get("peer", "").startswith(peer)]
        return [one for one in found if one.get("unit", "CPU-s") != "CPU-s"]


def figure(line: Line) -> str:
    """Three digits, and the unit unless the row says it."""
    value, unit = line["ours"], {"s": " s", "GB/s": " GB/s"}.get(line["unit"], "")
    return f"{float(f'{value:.3g}'):,.0f}{unit}" if value >= 100 else short(f"{value:.3g}") + unit


def short(number: str) -> str:
    """Without a zero before the point."""
    return number.removeprefix("0") or "0"


# ── rows ────────────────────────────────────────────────────────────────────────────────────


def loop(lines: Lines) -> Iterator[Cells]:
    yield "whole loop, trained tokens/s", *lines.beside("trained tokens", "trl", "TRL GRPOTrainer")
    yield "whole loop, a step", *lines.beside("step", "bare", "two bare processes")


def trainer_step(lines: Lines) -> Iterator[Cells]:
    case = lines.of("step")["case"]
    spread = case.rpartition(" ")[2]
    yield f"training step, lengths spread {spread}x", *lines.beside(case, "trl", "TRL")


def messages(lines: Lines) -> Iterator[Cells]:
    case = lines.of("batch")["case"].partition(",")[0] + ", durable"
    yield "durable 20 kB trajectories/s through the broker", *lines.beside(case, "ray", "Ray queue actor, not durable")
    yield "the same", *lines.beside(case, "bare log", "a bare log that is synced")


def weights(lines: Lines) -> Iterator[Cells]:
    megabytes = lines.of("transfer")["megabytes"]
    yield f"publishing {megabytes:.3g} MB to two rollouts", *lines.beside("transfer", "bare", "bare Gloo broadcast")


def gateway(lines: Lines) -> Iterator[Cells]:
    apis = [line["case"].partition(",")[0] for line in lines if "throughput" in line.get("case", "")]
    rates = ", ".join(figure(lines.of(f"{api}, throughput")) for api in apis)
    yield f"turns/s of agent programs through the gateway: {', '.join(apis)}", rates, ""
    added = ", ".join(f"{lines.of(f'{api}, latency')['added_ms']:.1f}" for api in apis)
    yield "what HTTP adds to a turn of each, median", f"{added} ms", ""


def recovery(lines: Lines) -> Iterator[Cells]:
    found = {line["case"].rpartition(" ")[2]: line["ours"] for line in lines if line["case"].startswith("kill")}
    roles = [role for role in ROLES if role in found]
    seconds = ", ".join(short(f"{found[role]:.1f}") for role in roles)
    yield f"from `kill -9` to useful work: {', '.join(roles)}", f"{seconds} s", ""


def chaos(lines: Lines) -> Iterator[Cells]:
    line = lines.of("random faults")
    counts = f"{line['skipped']}, {line['double_trained']}, {sum(line['tokens_thrown_away'].values())}"
    yield f"{line['faults']} random kills: groups skipped, groups trained twice, tokens thrown away", counts, ""


class Part(NamedTuple):
    """Rows that one run of a bench gives."""

    rows: Callable[[Lines], Iterator[Cells]]
    options: tuple[str, ...]


PARTS = {
    "loop": Part(loop, ("--rounds", "2")),
    "trainer_step": Part(trainer_step, ("--spreads", "10", "--rounds", "2")),
    "messages": Part(messages, ("--batches", "1", "--peers", "ray,log")),
    "weights": Part(weights, ("--sizes", "300M", "--dtypes", "bfloat16", "--parts", "transfer")),
    "gateway": Part(gateway, ("--dialects", "chat,responses,messages")),
    "recovery": Part(recovery, ()),
    "chaos": Part(chaos, ("--faults", "100", "--kinds", "kill")),
}
"""By bench. With ``--smoke`` the options are those of smoke.py."""


def main(options: argparse.Namespace) -> None:
    cells = [cell for name in options.rows for cell in PARTS[name].rows(lines_of(name, is_smoke=options.smoke))]
    print("| measurement | asyncrl | peer |\n|---|---|---|")
    for row in cells:
        print("|", " | ".join(row), "|", flush=True)


def lines_of(name: str, *, is_smoke: bool) -> Lines:
    """Run a bench, and return the lines that it prints."""
    arguments: Sequence[str] = ("--smoke",) if is_smoke else PARTS[name].options
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments]
    print("$ python", f"bench/{name}.py", *arguments, file=sys.stderr, flush=True)
    began_s = time.monotonic()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"bench/{name}.py ended with exit code {done.returncode}: {done.stdout[-2000:]}")
    print(f"{done.stdout}{time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    return Lines(json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))


def _rows(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(PARTS)}")
    return names


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=_rows, default=list(PARTS), help=f"benches to run, of {','.join(PARTS)}")
    main(smoke.parsed(parser))
