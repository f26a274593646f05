"""examples/judge_reward.py"""

import asyncio

import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

from asyncrl import VerifierInput
from asyncrl.config.sections.models import ServedModel
from asyncrl.environment import ModelFailed
from asyncrl.served.app import open_models
from tests.examples.conftest import ROOT, load_example
from tests.served.judge import MODEL, Judge

SAMPLE = VerifierInput(prompt="3 + 4?", completion="#### 7", answer="7")


def scored(judge: Judge, monkeypatch: pytest.MonkeyPatch, *, deadline_s: float = 30.0) -> float:
    async def main() -> float:
        async with judge.running() as service:
            served = {"judge": ServedModel(url=service.url, model=MODEL, timeout_s=deadline_s, deadline_s=deadline_s)}
            async with open_models(served) as opened:
                monkeypatch.setenv("ASYNCRL_MODELS", opened.variables["ASYNCRL_MODELS"])
                return float(await load_example("judge_reward").score(SAMPLE))

    return asyncio.run(main())


def test_the_judges_number_is_the_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge(lambda _: " 7", key="")
    assert scored(judge, monkeypatch) == 0.7
    (request,) = judge.requests
    assert "Task: 3 + 4?\nAnswer: #### 7\nReference: 7\n" in request["messages"][0]["content"]


def test_no_number_and_no_judge_are_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the judge said 'good', expected a number from 0 to 10"):
        scored(Judge(lambda _: "good", key=""), monkeypatch)
    with pytest.raises(ModelFailed, match=r"model 'judge': .* status 500"):
        scored(Judge(key="", trouble=[(500, {})] * 100), monkeypatch, deadline_s=2.0)


def test_the_command_in_its_docstring_names_it() -> None:
    assert "examples/judge_reward.py:score" in (ROOT / "examples" / "judge_reward.py").read_text(encoding="utf-8")
