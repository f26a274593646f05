import asyncio

import pytest

from asyncrl.actor.message import Message
from asyncrl.cli.operate.session import operator
from asyncrl.cli.operate.settings import set_settings
from asyncrl.client.run_address import RunAddress
from asyncrl.errors import ConfigError
from asyncrl.messages.session import Bye, Hello
from asyncrl.messages.supervisor import SetSettings, SettingsChanged
from tests.cli.operate.conversation import with_broker


def answered(monkeypatch: pytest.MonkeyPatch, *answers: Message) -> tuple[list[str], list[Message]]:
    """Run `asyncrl set` as the operator ``me``."""
    monkeypatch.setattr("asyncrl.cli.operate.session._name", lambda _: "me")

    async def command(run: RunAddress) -> list[str]:
        return await set_settings(run, ["trainer.lr=0.5"])

    return asyncio.run(with_broker(command, {SetSettings: answers}))


def test_each_change_is_a_line_and_changes_of_others_are_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SettingsChanged({"trainer.lr": 0.1}, "somebody")
    lines, heard = answered(monkeypatch, other, SettingsChanged({"trainer.lr": 0.5}, "me"))
    assert lines == ["trainer.lr = 0.5 from now on"]
    assert [type(message) for message in heard] == [Hello, SetSettings, Bye]
    assert heard[1] == SetSettings(["trainer.lr=0.5"])


def test_values_that_are_so_already_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = answered(monkeypatch, SettingsChanged({}, "me"))
    assert lines == ["nothing changed: the run has these values already"]


def test_a_refusal_is_an_error_with_the_brokers_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.lr: expected a number"):
        answered(monkeypatch, SettingsChanged({}, "me", "trainer.lr: expected a number"))


def test_an_operator_knows_its_name() -> None:
    async def command(run: RunAddress) -> str:
        async with operator(run) as session:
            return session.name

    assert asyncio.run(with_broker(command, {}))[0].startswith("operator-")
