"""
Episodes of a verifiers environment, trained through the gateway from an interpreter of its own.

    environment.command = [".venv-agents/bin/python", "examples/agents/verifiers_agent.py"]      a process an episode

    environment.function = "examples/agents/verifiers_agent.py:solve"          or, with its imports done once:
    environment.python = ".venv-agents/bin/python"
    environment.options = {taskset = "verifiers_boxes"}

The taskset is named by its id, as verifiers finds it. For one that loads tasks of its own, keep the number of the task
in a column of your data, and choose it in place of the first.
"""

import argparse
import asyncio
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

sys.path.insert(0, str(Path(__file__).parent))


async def solve(task: Any, client: Any, *, taskset: str = "verifiers_boxes") -> dict[str, float]:
    """Play one episode; return its reward as ``score``, and its metrics."""
    row = {"prompt": task.messages[-1]["content"], "amounts": task.extra["amounts"], "answer": task.answer}
    config = vf.resolve_env_config({"taskset": {"id": taskset, "rows": [row]}})
    env = vf.load_environment(config)
    key = f"KEY_OF_{client.key}"  # verifiers reads keys from variables alone
    os.environ[key] = client.key
    policy = vf.EvalClientConfig(base_url=client.base_url, api_key_var=key)
    try:
        async with env.serving():
            context = vf.ModelContext(model="policy", client=policy, sampling=vf.SamplingConfig())
            episode = await env.run_episode(next(iter(env.taskset)), context)
    finally:
        del os.environ[key]
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise RuntimeError(f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode is not valid")
    (trace,) = episode.traces
    return {"score": trace.reward, **{name: float(value) for name, value in trace.metrics.items()}}


def main() -> None:
    task = argparse.Namespace(**json.loads(Path(os.environ["ASYNCRL_TASK"]).read_text()))
    client = argparse.Namespace(base_url=os.environ["OPENAI_BASE_URL"], key=os.environ["OPENAI_API_KEY"])
    metrics = asyncio.run(solve(task, client))
    word = json.dumps({"reward": metrics.pop("score"), "metrics": metrics}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(os.environ["ASYNCRL_REWARD_URL"], word, method="PUT"), timeout=30
    ):
        pass


if __name__ == "__main__":
    main()
