"""Environments of other libraries: by their shape here, and with the libraries where they are installed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncrl.config.sections.environment import Environment
from asyncrl.engine import PolicyTurn
from asyncrl.environment import Said, Step, Task
from asyncrl.episodes.environment import Answer, Score, TaskInput
from asyncrl.episodes.pool import EnvironmentPool
from asyncrl.episodes.worker.load import SkyRLGym, TextArena, adapted
from asyncrl.episodes.worker.values import BadValue
from tests.episodes.environments.agents import PYTHON, needs

TASK = Task([{"role": "user", "content": "Guess."}], seed=3)


class Gym:
    def init(self, prompt: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        return [*prompt, {"role": "user", "content": "Begin."}], {}

    def step(self, action: str) -> dict[str, Any]:
        return {"observations": [{"role": "user", "content": action}], "reward": 0.5, "done": False, "metadata": {}}

    def get_metrics(self) -> dict[str, Any]:
        return {"turns": 2, "name": "x"}

    def close(self) -> None: ...


class Game:
    def __init__(self) -> None:
        self.closed = 0

    def reset(self, num_players: int, seed: int) -> None:
        self.seen = f"{num_players} {seed}"

    def get_observation(self) -> tuple[int, Any]:
        return 0, [(-1, self.seen, None), (-1, "?", None)]

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        return action == "right", {}

    def close(self) -> tuple[dict[int, float], dict[str, Any]]:
        self.closed += 1
        return {0: 1.0}, {}


def test_a_gym_of_skyrl_is_told_by_its_methods() -> None:
    gym = adapted(Gym())

    assert isinstance(gym, SkyRLGym)
    assert gym.reset(TASK) == [{"role": "user", "content": "Begin."}]
    assert gym.step(Said("hi")) == Step(messages=[{"role": "user", "content": "hi"}], reward=0.5)
    assert gym.score() == {"turns": 2.0}
    gym.close()


def test_a_gym_that_changes_the_prompt_is_refused() -> None:
    class Rewrites(Gym):
        def init(self, prompt: list[Any]) -> tuple[list[Any], dict[str, Any]]:
            return [], {}

    with pytest.raises(BadValue, match="init changed the prompt"):
        adapted(Rewrites()).reset(TASK)


def test_a_game_of_textarena_is_told_by_its_methods_and_closed_once() -> None:
    game = adapted(inner := Game())

    assert isinstance(game, TextArena)
    assert game.reset(TASK) == Step([{"role": "user", "content": "1 3\n?"}])
    assert game.step(Said("wrong")).messages == [{"role": "user", "content": "1 3\n?"}]
    assert game.step(Said("right")) == Step(done=True)
    assert game.score() == {"score": [1.0]}
    game.close()
    assert inner.closed == 1


def test_an_observation_that_tells_the_whole_game_is_read_once() -> None:
    class Telling(Game):
        def get_observation(self) -> tuple[int, str]:
            return 0, self.seen

        def step(self, action: str) -> tuple[bool, dict[str, Any]]:
            self.seen += f"\n[Player] {action}\n[GAME] No."
            return False, {}

    game = adapted(Telling())
    assert game.reset(TASK).messages == [{"role": "user", "content": "1 3"}]
    for action in ("Is it [4]?", "Is it [5]?"):
        assert game.step(Said(action)).messages == [{"role": "user", "content": "[GAME] No."}]


def test_each_player_of_a_game_is_a_seat_that_reads_the_prompt_and_its_own_observations() -> None:
    class Duel(Game):
        def reset(self, num_players: int, seed: int) -> None:
            self.told = [f"You are {player} of {num_players}." for player in range(num_players)]
            self.turn = 0

        def get_observation(self) -> tuple[int, str]:
            return self.turn, self.told[self.turn]

        def step(self, action: str) -> tuple[bool, dict[str, Any]]:
            self.told = [f"{told}\n[Player {self.turn}] {action}" for told in self.told]
            self.turn = 1 - self.turn
            return action == "mate", {}

        def close(self) -> tuple[dict[int, float], dict[str, Any]]:
            return {0: -1.0, 1: 1.0}, {}

    game = adapted(Duel(), seats=2)
    assert game.reset(TASK) == Step([{"role": "user", "content": "You are 0 of 2."}])
    read = {"role": "user", "content": "You are 1 of 2.\n[Player 0] e4"}
    assert game.step(Said("e4")) == Step([*TASK.messages, read], seat=1)
    answered = {"role": "user", "content": "[Player 0] e4\n[Player 1] e5"}
    assert game.step(Said("e5", seat=1)) == Step([answered])
    assert game.step(Said("mate")) == Step(done=True)
    assert game.score() == {"score": [-1.0, 1.0]}


def test_anything_without_reset_and_step_is_refused() -> None:
    with pytest.raises(BadValue, match="5 is no environment: expected the methods reset and step"):
        adapted(5)


def played(
    folder: Path, code: str, *texts: str, extra: dict[str, Any] | None = None, seats: int = 1
) -> tuple[list[Answer], Score]:
    """Answers to reset and to each turn, and the score, under the interpreter of agents."""
    (folder / "make.py").write_text(code)

    async def play() -> tuple[list[Answer], Score]:
        environment = Environment(function=f"{folder}/make.py:make", python=PYTHON, workers=1, seats=seats)
        async with EnvironmentPool(environment, "run", "node") as pool:
            episode = pool.open("a")
            messages = [{"role": "user", "content": "Play."}]
            answers = [await episode.reset(TaskInput(messages=messages, answer="72", seed=1, extra=extra or {}))]
            for text in texts:
                if not answers[-1].done:
                    answers.append(await episode.step(PolicyTurn(text=text, seat=answers[-1].seat)))
            score = await episode.score()
            await episode.close()
            return answers, score

    return asyncio.run(play())


@needs("skyrl_gym")
@pytest.mark.timeout(120)
def test_the_gsm8k_gym_of_skyrl_judges_an_answer(tmp_path: Path) -> None:
    code = (
        "import skyrl_gym\n"
        "def make(task):\n"
        "    extras = {'reward_spec': {'ground_truth': task.answer}, 'max_turns': 3}\n"
        "    return skyrl_gym.make('gsm8k_multi_turn', extras=extras)\n"
    )

    answers, _ = played(tmp_path, code, "I think #### 71", "No: #### 72")

    assert answers[0].messages == []
    assert not answers[1].done
    assert answers[1].messages[0]["role"] == "user"
    assert answers[2].done
    assert answers[2].reward == 1.0


@needs("textarena")
@pytest.mark.timeout(120)
def test_a_game_of_textarena_is_played_to_its_end(tmp_path: Path) -> None:
    code = "import textarena\ndef make(task, game='GuessTheNumber-v0'):\n    return textarena.make(game)\n"
    answers, score = played(tmp_path, code, *(f"[{number}]" for number in range(1, 21)))

    assert "guess" in str(answers[0].messages[0]["content"]).lower()
    assert not answers[1].done
    assert answers[1].messages
    assert answers[-1].done
    assert isinstance(score.reward, list)
    assert 0 < score.reward[0] <= 1


@needs("textarena")
@pytest.mark.timeout(120)
def test_two_seats_play_tic_tac_toe_of_textarena(tmp_path: Path) -> None:
    code = "import textarena\ndef make(task, game='TicTacToe-v0'):\n    return textarena.make(game)\n"
    answers, score = played(tmp_path, code, "[0]", "[4]", "[1]", "[5]", "[2]", seats=2)

    assert [answer.seat for answer in answers[:-1]] == [0, 1, 0, 1, 0]
    assert answers[1].messages[0]["content"] == "Play.", "the prompt of the row"
    assert "You are Player 1" in answers[1].messages[1]["content"]
    assert answers[-1].done
    assert score.reward == [1.0, -1.0]
