"""
Verdicts of `asyncrl import-verl` on the launch scripts of verl's checkouts, as the table of docs/import-verl.md.

    python bench/verl_scripts.py 'June 2025=verl-72429f2' 'August 2026=verl-1dda039' --rows-out verdicts.tsv

A checkout has its recipes in recipe/. Every script is imported from its root, with 100,000 rows and no variable given.
Scripts that start no trainer are not counted, but for those that stop before it, because a variable is not set.
"""

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from asyncrl.cli.import_verl import launch_of
from asyncrl.errors import ConfigError
from asyncrl.runtime.check_type import unknown_of
from asyncrl.tools.verl.translate import translate
from asyncrl.tools.verl_verdict import judge

ROWS = 100_000
WANTS = "wants a variable"
VERDICTS = ("runs", "runs with substitutions", "cannot", "not known", WANTS)


def verdict_of(script: Path) -> tuple[str, str]:
    """Verdict on a script and its first reason; empty if it starts no trainer."""
    try:
        launch, _ = launch_of([str(script)], [])
        translation = translate(launch, ROWS)
    except ConfigError as error:
        trains = "give it" in str(error) and "actor_rollout_ref." in script.read_text("utf-8", "replace")
        return (WANTS if trains else "", str(error))
    judgement = judge(translation, unknown_of)
    refused = [f"{one.option}: {one.detail}" for one in translation.accounts if one.fate == "not supported"]
    return judgement.verdict, next(iter([*translation.missing, *refused, *judgement.problems, *judgement.unknown]), "")


def verdicts(root: Path) -> Iterator[tuple[str, str, str]]:
    """Path, verdict and reason of each script of a checkout that starts a trainer."""
    os.chdir(root)
    for script in sorted(Path().rglob("*.sh")):
        verdict, reason = verdict_of(script)
        if verdict:
            yield str(script), verdict, reason


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--rows-out", type=Path, help="write a line for each script here: path, verdict, reason")
    arguments = parser.parse_args()
    folders = {name: Path(folder).resolve() for name, _, folder in (one.partition("=") for one in arguments.checkouts)}
    out = arguments.rows_out.resolve() if arguments.rows_out else None
    lines = []
    print(f"| verl of | scripts | {' | '.join(VERDICTS)} |\n|{'---|' * (len(VERDICTS) + 2)}")
    for name, folder in folders.items():
        found = list(verdicts(folder))
        counts = Counter(verdict for _, verdict, _ in found)
        print(f"| {name} | {len(found)} | {' | '.join(str(counts[each]) for each in VERDICTS)} |", flush=True)
        lines += ["\t".join([name, *(part.replace("\t", " ").replace("\n", " ") for part in row)]) for row in found]
    if out:
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
