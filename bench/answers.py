"""
Verdicts on answers of mathematics a second, and how many are wrong, beside math-verify and the rewards of verl.

    python bench/answers.py [--pairs 2000] [--seed 1] [--verl FOLDER]

Pairs are made from values (tests/reward/answers/made_pairs.py), so that it is known which are the same. A false verdict
takes two different answers for one, a refused one takes one for two; a peer that fails or takes longer than 5 s has
refused. ``--verl`` is a checkout of verl, whose `math_dapo` and `prime_math` are judged too.
"""

import argparse
import importlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import smoke

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from asyncrl.reward.answers.same_value import compare  # noqa: E402
from tests.reward.answers.made_pairs import Pair, made  # noqa: E402

LIMIT_S = 5.0
TEN = (
    ("42", "42"), ("0.5", "\\frac{1}{2}"), ("1,234", "1234"), ("5\\text{ cm}", "5"), ("(1, 2)", "(1,2)"),
    ("\\sqrt{8}", "2\\sqrt{2}"), ("x^2+2x+1", "(x+1)^2"), ("y=2x+1", "2x-y+1=0"), ("1\\le x<3", "[1,3)"),
    ("30", "\\frac{\\pi}{6}"),
)  # fmt: skip
"""Pairs whose verdicts are timed."""
Judge = Callable[[str, str], bool]


def ours(given: str, answer: str) -> bool:
    return compare(given, answer).is_same


def math_verify() -> Judge:
    from math_verify import parse, verify

    def read(text: str) -> list[object]:
        return list(parse(text if "$" in text.replace("\\$", "") else f"${text}$", parsing_timeout=None))

    return lambda given, answer: bool(verify(read(answer), read(given), timeout_seconds=None))


def of_verl(checkout: Path, name: str, template: str) -> Judge:
    """A reward of verl, imported without the packages above it, which want torch."""
    for package in ("verl", "verl.utils", "verl.utils.reward_score"):
        module = sys.modules[package] = ModuleType(package)
        module.__path__ = [str(checkout / package.replace(".", "/"))]
    limits = sys.modules["verl.utils.py_functional"] = ModuleType("verl.utils.py_functional")
    limits.timeout_limit = lambda **_: lambda function: function  # type: ignore[attr-defined]  # the limit is ours
    score = importlib.import_module(f"verl.utils.reward_score.{name}").compute_score

    def judge(given: str, answer: str) -> bool:
        verdict = score(template.replace("@", given), answer)
        return bool(verdict["acc"] if isinstance(verdict, dict) else verdict[0])

    return judge


def within(judge: Judge, pair: Pair) -> bool:
    """Verdict of a judge; False if it fails or takes too long."""

    def late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        return judge(pair.given, pair.answer)
    except Exception:  # noqa: BLE001  a peer may fail as it likes
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def wrong(judge: Judge, pairs: Sequence[Pair]) -> Counter[tuple[str, str]]:
    """Number of false and refused verdicts by kind."""
    return Counter(
        (pair.kind, "refused" if pair.is_same else "false") for pair in pairs if within(judge, pair) != pair.is_same
    )


def verdicts_a_second(judge: Judge, seconds: float) -> float:
    """Of CPU time, over the ten pairs in turn."""
    count, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        for given, answer in TEN:
            judge(given, answer)
        count += len(TEN)
    return count / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU time of each judge over the ten pairs")
    parser.add_argument("--verl", type=Path, help="checkout of verl")
    arguments = smoke.parsed(parser)
    pairs = list(made(arguments.seed, arguments.pairs))
    judges: dict[str, Judge] = {"ours": ours}
    try:
        judges["math-verify"] = math_verify()
    except ImportError:
        print(json.dumps({"bench": "answers", "case": "peers", "skipped": "math-verify is not installed"}))
    if arguments.verl:
        judges["math_dapo"] = of_verl(arguments.verl, "math_dapo", "Answer: @")
        judges["prime_math"] = of_verl(arguments.verl, "prime_math", "\\boxed{@}")
    pace = {name: verdicts_a_second(judge, arguments.seconds) for name, judge in judges.items()}
    found = {name: wrong(judge, pairs) for name, judge in judges.items()}
    line: dict[str, object] = {
        "bench": "answers",
        "case": "ten pairs",
        "ours": round(pace["ours"]),
        "unit": "verdicts/s",
        "better": "higher",
    }
    if "math-verify" in pace:
        ratio = round(pace["ours"] / pace["math-verify"], 1)
        line |= {"peer": "math-verify", "peer_value": round(pace["math-verify"]), "ratio": ratio}
    print(json.dumps(line))
    made_of = Counter((pair.kind, pair.is_same) for pair in pairs)
    for kind in sorted({pair.kind for pair in pairs}):
        counts = {name: [each[kind, "false"], each[kind, "refused"]] for name, each in found.items()}
        print(
            json.dumps(
                {
                    "bench": "answers",
                    "case": kind,
                    "near": made_of[kind, False],
                    "same": made_of[kind, True],
                    "false_refused": counts,
                }
            )
        )
    totals = {
        name: [sum(count for (_, kind), count in each.items() if kind == what) for what in ("false", "refused")]
        for name, each in found.items()
    }
    print(json.dumps({"bench": "answers", "case": "all", "pairs": len(pairs), "false_refused": totals}))


if __name__ == "__main__":
    main()
