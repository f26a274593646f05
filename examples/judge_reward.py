"""
A judge as the reward: `reward.function = "examples/judge_reward.py:score"`, with a model that others serve.

    vllm serve Qwen/Qwen3-8B --port 8000                            (or any server with OpenAI's Chat Completions)
    asyncrl toy step-sums cache/step-sums                           (once: the model and its data)
    asyncrl run conf/quickstart.toml --set reward.function=examples/judge_reward.py:score --set reward.timeout_s=60
        --set models.judge.url=http://127.0.0.1:8000/v1 --set models.judge.model=Qwen/Qwen3-8B
"""

import re

from asyncrl import VerifierInput
from asyncrl.environment import models

QUESTION = "Task: {}\nAnswer: {}\nReference: {}\nRate the answer from 0 to 10. Say the number alone."


async def score(sample: VerifierInput) -> float:
    """Ask the judge for a number. A judge that is away, or says none, is no reward of zero: the verdict fails."""
    question = QUESTION.format(sample.prompt, sample.completion, sample.answer)
    said = await models()["judge"].chat([{"role": "user", "content": question}], temperature=0, max_tokens=8)
    if not (found := re.fullmatch(r"\s*(10|\d)\s*", said)):
        raise ValueError(f"the judge said {said!r}, expected a number from 0 to 10")
    return int(found[1]) / 10
