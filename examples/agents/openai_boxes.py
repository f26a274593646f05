"""
An agent written against OpenAI's client, trained through the gateway without a change.

    environment.command = [".venv-agents/bin/python", "examples/agents/openai_boxes.py"]

Only its last lines know of asyncrl: the task comes from $ASYNCRL_TASK, and the reward goes to $ASYNCRL_REWARD_URL. The
client finds the policy in $OPENAI_BASE_URL and $OPENAI_API_KEY by itself.
"""

import json
import os
import urllib.request
from pathlib import Path
from typing import Any

from boxes import MAX_TURNS, Boxes, is_right
from openai import OpenAI


def solve(question: str, boxes: Boxes) -> str:
    """The last turn of the policy."""
    client, messages = OpenAI(), list[Any]([{"role": "user", "content": question}])
    for _ in range(MAX_TURNS):
        stream = client.chat.completions.create(model="policy", messages=messages, stream=True)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        if (heard := boxes.answer(said)) is None:
            return said
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": heard}]
    return ""


def main() -> None:
    task = json.loads(Path(os.environ["ASYNCRL_TASK"]).read_text())
    question = task["messages"][-1]["content"]
    said = solve(question, Boxes(question, task["extra"]["amounts"]))
    word = {"reward": float(is_right(said, task["answer"]))}
    request = urllib.request.Request(os.environ["ASYNCRL_REWARD_URL"], json.dumps(word).encode(), method="PUT")
    with urllib.request.urlopen(request, timeout=30):
        pass


if __name__ == "__main__":
    main()
