"""
Memory that real ranks take against the planner's figures: a dense model of 300M parameters, and a small one of experts.

    PYTHONPATH=. python bench/real_memory.py [--cases dense:2,experts:2,experts:4,dense:4]

Each rank is a process on the CPU, which prints by how much its resident memory has grown after loading, at the peak of
its second step, and while it gathers weights to publish. The dense model takes 2.6 GB a rank with two ranks.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import smoke
from transformers import Qwen3Config, Qwen3MoeConfig

from tests.trainer.memory_process import Case
from tests.trainer.test_memory import AT_ONCE, DENSE, EXPERTS, part, planned, saved, settings

MODELS: dict[str, tuple[Any, Any]] = {
    "dense": (
        Qwen3Config(
            vocab_size=32768, hidden_size=1024, intermediate_size=3072, num_hidden_layers=21, num_attention_heads=16,
            num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
        ),
        DENSE,
    ),
    "tiny": (DENSE, DENSE),
    "experts": (
        Qwen3MoeConfig(
            vocab_size=8192, hidden_size=512, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=8,
            num_key_value_heads=4, head_dim=64, tie_word_embeddings=True, num_experts=16, num_experts_per_tok=2,
            moe_intermediate_size=384,
        ),
        EXPERTS,
    ),
}  # fmt: skip
"""Each model, and a small one that has the libraries ready before."""


def main(cases: list[str]) -> None:
    for case in cases:
        name, _, ranks = case.partition(":")
        with TemporaryDirectory(prefix="asyncrl-bench-") as folder:
            measure(name, int(ranks), Path(folder))


def measure(name: str, ranks: int, folder: Path) -> None:
    model, small = MODELS[name]
    path, warm_up = saved(model, folder / "model"), saved(small, folder / "warm-up")
    raw = settings(path, ranks, gradient_checkpointing=True)
    (folder / "case.json").write_bytes(msgspec.json.encode(Case(raw, str(warm_up))))
    command = [sys.executable, "-m", "tests.trainer.memory_process", str(folder)]
    processes = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=os.environ | AT_ONCE)
        for rank in range(ranks)
    ]
    found = [msgspec.json.decode(process.communicate()[0], type=dict[str, int]) for process in processes]
    plan = planned(path, ranks, gradient_checkpointing=True)
    wanted = {phase: plan[phase].device for phase in ("step", "publish")}
    wanted["load"] = part(plan["load"], "weights")[0] + part(plan["load"], "gradients")[0]
    for phase, num_bytes in wanted.items():
        fullest = max(grown[phase] for grown in found)
        line = {"case": f"{name}, {ranks} ranks, {phase}", "ours": round(fullest / 1e6), "unit": "MB a rank"}
        line |= {"peer": "plan", "peer_value": round(num_bytes / 1e6), "ratio": round(fullest / num_bytes, 3)}
        sys.stdout.write(json.dumps({"bench": "real_memory", **line, "better": "near 1"}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    cases = ["dense:2", "experts:2", "experts:4", "dense:4"]
    parser.add_argument("--cases", type=lambda text: text.split(","), default=cases, help="MODEL:RANKS,...")
    main(smoke.parsed(parser).cases)
