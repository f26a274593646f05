"""
Episodes of any taskset of verifiers, named by its id, trained through the gateway from an interpreter of its own.

    .venv-agents/bin/python examples/agents/verifiers_agent.py TASKSET --rows rows.jsonl --num 100          data.train

    environment.command = [".venv-agents/bin/python", "examples/agents/verifiers_agent.py", "TASKSET"]

    environment.function = "examples/agents/verifiers_agent.py:solve"          or, with its imports done once:
    environment.python = ".venv-agents/bin/python"
    environment.options = {taskset = "TASKSET"}

A row names its task by a number, ``extra_info.task``, which ``--rows`` has written. A row without one is itself the
only task of a taskset that takes ``rows``, as verifiers_boxes.py does, which is the default.

Everything else of an environment of verifiers is in ``--config``, or the option ``config``: JSON, as in its own config
files. The harnesses that come with verifiers install their programs with uv; where that cannot be, take another one:
``{"agent": {"harness": {"id": "verifiers_boxes"}, "runtime": {"type": "subprocess"}}}``.
"""

import argparse
import asyncio
import json
import os
import sys
import urllib.request
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.dialects.chat import message_to_wire

sys.path.insert(0, str(Path(__file__).parent))
DEFAULT = "verifiers_boxes"


async def solve(task: Any, client: Any, *, taskset: str = DEFAULT, config: str = "") -> dict[str, float]:
    """Play one episode; return its reward as ``score``, and its metrics. Several agents give the mean of theirs."""
    number = task.extra.get("task")
    rows = [] if number is not None else [{**task.extra, "prompt": task.messages[-1]["content"], "answer": task.answer}]
    env = vf.load_environment(configured(taskset, config, rows))
    chosen = next(iter(env.taskset)) if number is None else numbered(taskset, config, int(number))
    key = f"KEY_OF_{client.key}"  # verifiers reads keys from variables alone
    os.environ[key] = client.key
    policy = vf.EvalClientConfig(base_url=client.base_url, api_key_var=key)
    try:
        async with env.serving():
            context = vf.ModelContext(model="policy", client=policy, sampling=vf.SamplingConfig())
            episode = await env.run_episode(chosen, context)
    finally:
        del os.environ[key]
    if not episode.ok:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise RuntimeError(f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode is not valid")
    traces = [trace for trace in episode.traces if trace.agent.trainable]
    metrics = {name: float(value) for trace in traces for name, value in trace.metrics.items()}
    return {"score": fmean(trace.reward for trace in traces), **metrics}


def configured(taskset: str, config: str, rows: list[dict[str, Any]]) -> vf.EnvConfig:
    """The environment of a taskset, with what ``config`` says of it."""
    given = json.loads(config or "{}")
    given["taskset"] = {**given.get("taskset", {}), "id": taskset, **({"rows": rows} if rows else {})}
    return vf.resolve_env_config(given)


@cache
def numbered(taskset: str, config: str, number: int) -> Any:
    """The task of this number. It is kept, because a taskset may load all of its data for one."""
    tasks = vf.load_environment(configured(taskset, config, [])).taskset.include(idx=[number])
    if (task := next(iter(tasks), None)) is None:
        raise ValueError(f"the taskset {taskset} has no task {number}; write the rows of the data again")
    return task


def row_of(taskset: str, task: Any) -> dict[str, Any]:
    """A row of the data: the task's number, and the messages with which most harnesses begin."""
    system, prompt = task.data.system_prompt, task.data.prompt
    if not isinstance(prompt, list):  # Without a prompt, the environment begins.
        prompt = [vf.UserMessage(content=prompt or task.data.name or f"{taskset} {task.data.idx}")]
    messages = [*([vf.SystemMessage(content=system)] if system else []), *prompt]
    return {
        "prompt": [message_to_wire(message) for message in messages],
        "answer": str(getattr(task.data, "answer", "")),
        "data_source": taskset,
        "extra_info": {"task": task.data.idx},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("taskset", nargs="?", default=DEFAULT)
    parser.add_argument("--config", default="", help="JSON of the environment's settings")
    parser.add_argument("--rows", type=Path, help="write a file of rows instead of playing an episode")
    parser.add_argument("--num", type=int, default=1000, help="most rows to write")
    chosen = parser.parse_args()
    if chosen.rows:
        tasks = vf.load_environment(configured(chosen.taskset, chosen.config, [])).taskset.take(chosen.num)
        chosen.rows.write_text("".join(f"{json.dumps(row_of(chosen.taskset, task))}\n" for task in tasks))
        return
    task = argparse.Namespace(**json.loads(Path(os.environ["ASYNCRL_TASK"]).read_text()))
    client = argparse.Namespace(base_url=os.environ["OPENAI_BASE_URL"], key=os.environ["OPENAI_API_KEY"])
    metrics = asyncio.run(solve(task, client, taskset=chosen.taskset, config=chosen.config))
    word = json.dumps({"reward": metrics.pop("score"), "metrics": metrics}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(os.environ["ASYNCRL_REWARD_URL"], word, method="PUT"), timeout=30
    ):
        pass


if __name__ == "__main__":
    main()
