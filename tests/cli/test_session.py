import asyncio
from pathlib import Path

import pytest

from asyncrl.cli.session import operator
from asyncrl.errors import LinkError
from asyncrl.messages.session import Bye, Hello
from asyncrl.messages.supervisor import Drained, Finished, Progress, Status, StatusWanted
from asyncrl.wire.keys.allow_list import owns
from asyncrl.wire.keys.key import new_key, write_key
from asyncrl.wire.run_address import RunAddress
from tests.cli.conversation import with_broker

STATUS = Status("run", "running", 1, 4, 0, 4, 0, 2, {}, [])


async def ask(run: RunAddress) -> Status:
    async with operator(run) as session:
        return await session.ask(StatusWanted(), Status, wait_s=0.2)


def test_an_answer_is_told_from_what_a_supervisor_hears_besides() -> None:
    answers = {StatusWanted: [Progress(1, 4, {}), Drained("rollout-1"), STATUS]}
    found, heard = asyncio.run(with_broker(ask, answers))
    assert found == STATUS
    assert [type(message) for message in heard] == [Hello, StatusWanted, Bye]


def test_a_broker_that_takes_the_question_and_does_not_answer_is_reported_in_time() -> None:
    with pytest.raises(LinkError, match=r"the broker got StatusWanted and gave no answer within 0\.2 s"):
        asyncio.run(with_broker(ask, {}))


def test_a_run_that_ends_instead_is_reported_with_its_cause() -> None:
    ended = {StatusWanted: [Finished("failed", "trainer-0 was killed")]}
    with pytest.raises(LinkError, match=r"the run has just ended: failed \(trainer-0 was killed\)"):
        asyncio.run(with_broker(ask, ended))


@pytest.mark.parametrize(("key", "name"), [(None, "operator"), ("alice", "alice")])
def test_an_operator_has_a_name_that_the_key_is_for(tmp_path: Path, key: str | None, name: str) -> None:
    if key:
        write_key(tmp_path / "key", new_key(key, ("supervisor",), b"B" * 32))
    answers = {StatusWanted: [STATUS]}
    _, (hello, *_) = asyncio.run(with_broker(ask, answers, key=tmp_path / "key" if key else None))
    assert isinstance(hello, Hello)
    assert hello.role == "supervisor"
    assert owns(name, hello.node)
