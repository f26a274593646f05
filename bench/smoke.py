"""
``--smoke``: every bench at a tiny size, in seconds, to see that all of it runs. Its figures then mean nothing.

`parsed` gives it to the parser of a bench, and `SIZES` says what is tiny: values of the bench's own options, which
the command line overrides. Benches that take a run file make it tiny too (run_files.py).
"""

import argparse
import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

FOLDER = "FOLDER"
"""Stands for a temporary folder in `SIZES`, so that nothing is left behind."""

BRIEF = {"rounds": 1, "seconds": 0.1}
REWARD_IS_HIT, REWARD_ALONE_IS_HIT, ENVIRONMENT_IS_HIT = 1, 30, 3
"""Seeds of chaos, services and episode_kills whose only kill hits what loads fast."""
SIZES: dict[str, dict[str, Any]] = {
    "answers": {"pairs": 60, "seconds": 0.05},
    "attack": {**BRIEF, "cases": ["idle"]},
    "auto": {"out": f"{FOLDER}/auto.jsonl"},
    "bad_members": {"steps": 10, "roles": ["reward"], "bugs": ["says NaN"]},
    "broker": {**BRIEF, "virtual": [20, 40], "groups": 20, "sockets": [20], "ledger": [1], "ledger_seconds": 0.1},
    "broker_memory": {"seconds": 1.0, "every": 0.2},
    "chaos": {"faults": 1, "every": 0.1, "kinds": ["kill"], "seed": REWARD_IS_HIT, "steps_after": 1},
    "container_kills": {
        "kills": 1, "every": 1.0, "calm": 1.0, "steps_after": 1, "overrides": ["rollout.replicas=2"],
    },
    "dashboard": {"samples": 2000, "nodes": 10, "rounds": 1, "idle": 1, "folder": f"{FOLDER}/run"},
    "dashboard_memory": {"steps": 20, "every": 5},
    "encryption": {**BRIEF, "nodes": [20]},
    "environments": {"episodes": 4, "steps": 4, "rounds": 1},
    "episode_kills": {
        "modes": ["replay"], "kills": 1, "every": 0.1, "seed": ENVIRONMENT_IS_HIT, "calm": 0.1, "steps_after": 1,
        "overrides": ["rollout.replicas=1"],
    },
    "far_weights": {"sources": ["tiny"]},
    "first_step": {"rounds": 1},
    "gateway": {**BRIEF, "connections": 2, "load": 100},
    "gsm8k_shaped": {"directory": FOLDER, "epochs": 1.0},
    "host": {"rounds": 1, "requests": 2, "utilisation": 0.9},
    "joiner": {"steps": 2},
    "lagged": {"methods": ["default"], "staleness": [1], "lr": [2e-4], "steps": 2, "out": f"{FOLDER}/lagged.jsonl"},
    "loop": {"rounds": 1, "trl_rows": 4},
    "memory": {"shapes": ["0.6b"]},
    "messages": {**BRIEF, "batches": [16]},
    "publish": {"shape": "tiny", "dtypes": "bfloat16", "rounds": 1},
    "readme": {},
    "real_memory": {"cases": ["tiny:1"]},
    "recovery": {"kills": 1, "roles": ["reward"], "pace": 1},
    "scraped": {"turns": 1, "steps": 2},
    "services": {"kills": 1, "every": 0.1, "seed": REWARD_ALONE_IS_HIT, "steps": 25},
    "shared_memory": {"rounds": 1, "receivers": 1, "buckets": 1},
    "soak": {"minutes": 0.05, "every_s": 0.1, "sample_s": 0.5, "rollouts": 2},
    "staleness": {
        "methods": ["clipped"], "staleness": [1.0], "seeds": 1, "runs": f"{FOLDER}/runs", "picture": f"{FOLDER}/it.svg",
    },
    "trainer_step": {"spreads": [2], "rounds": 1, "steps": 1, "groups": 1, "mean": 16},
    "tries": {"hidden": 128, "layers": 1, "rounds": 1, "share": 64, "prompt": 32, "tool": 4},
    "weights": {"sizes": ["tiny"], "dtypes": ["float32"], "parts": ["transfer", "pause"]},
    "windowed": {"steps": 8, "seeds": 1},
}  # fmt: skip
"""Values of options by bench."""


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line of the bench that is the main program; every bench calls this, none `parse_args`."""
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, to see in seconds that all of it runs")
    options, _ = parser.parse_known_args()
    if options.smoke:
        sizes = SIZES[Path(parser.prog).stem]
        if unknown := sizes.keys() - vars(options).keys():
            raise KeyError(f"smoke.py names options that {parser.prog} does not have: {', '.join(sorted(unknown))}")
        parser.set_defaults(**{name: _in_folder(value) for name, value in sizes.items()})
    return parser.parse_args()


def _in_folder(value: Any) -> Any:
    if not (isinstance(value, str) and value.startswith(FOLDER)):
        return value
    folder = tempfile.mkdtemp(prefix="asyncrl-smoke-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / value.removeprefix(FOLDER).removeprefix("/")
