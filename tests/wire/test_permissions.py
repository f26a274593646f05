from typing import get_args

import pytest
from msgspec.structs import fields

from asyncrl.messages.codec import Message
from asyncrl.messages.rollout import Failed
from asyncrl.messages.session import Bye, Hello, Stop, StoreGet, StoreSet
from asyncrl.messages.spool import Fetch, Put, Stored, Trim
from asyncrl.messages.supervisor import Exited
from asyncrl.messages.trainer import Commit, Take
from asyncrl.messages.trajectory import Unit
from asyncrl.messages.weights import Publishing
from asyncrl.messages.wire import MESSAGES, PROTOCOL
from asyncrl.messages.words import EVERY, Role
from asyncrl.wire.curve import Owner
from asyncrl.wire.permissions import key_refusal, refusal, spool_refusal

ROLES: tuple[Role, ...] = get_args(Role)


def test_a_message_that_no_row_lets_a_role_send_is_refused() -> None:
    for kind in MESSAGES:
        message = kind(*["" for field in fields(kind) if field.required])
        allowed = {role for role in ROLES if not refusal(role, message).endswith(f"may not send {kind.__name__}")}
        assert allowed == kind.senders.get("broker", set()), kind


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("reward", Take(1)),
        ("rollout", Commit(1, "c")),
        ("trainer", Stored("rollout-0", "1", [])),
        ("rollout", Exited("trainer-0", "x", restarting=False)),
    ],
)
def test_a_message_of_another_role_is_refused_by_name(role: Role, message: Message) -> None:
    assert refusal(role, message) == f"a {role} may not send {type(message).__name__}"


def test_a_role_reports_failures_of_its_own_stage_only() -> None:
    failed = Failed(Unit(0, 0), 1, "reward", "x", retryable=True)
    assert refusal("rollout", failed) == "a rollout may not report a failure at the stage 'reward'"
    assert refusal("reward", failed) == ""


def test_a_message_to_another_receiver_is_refused() -> None:
    assert refusal("supervisor", Stop("now")) == "a supervisor may not send Stop"


@pytest.mark.parametrize("message", [Take(1), Commit(1, "c"), Publishing(1, 1), StoreSet("g", "k", b"")])
def test_a_machine_that_is_not_the_first_may_neither_train_nor_set_a_key(message: Message) -> None:
    assert refusal("machine", message) == f"a machine may not send {type(message).__name__}"
    assert refusal("machine", StoreGet("g", "k")) == ""


def test_the_rendezvous_of_a_trainers_machines_is_closed_to_rollouts() -> None:
    reason = "a rollout may not take part in the rendezvous of a trainer's machines"
    assert refusal("rollout", StoreGet("trainer-1", "hub")) == reason
    assert refusal("rollout", StoreSet("trainer-1", "hub", b"")) == reason
    assert refusal("rollout", StoreGet("1", "hub")) == refusal("trainer", StoreSet("trainer-1", "hub", b"")) == ""


@pytest.mark.parametrize("role", ["machine", "shard", "broker"])
def test_nobody_joins_in_a_role_that_the_broker_does_not_admit(role: Role) -> None:
    assert refusal(role, Hello(PROTOCOL, role, "n", "0")) == f"a {role} may not send Hello"


def test_every_role_may_leave() -> None:
    assert not [role for role in EVERY if refusal(role, Bye("x"))]


GPU, LOCAL = Owner("gpu-1", frozenset(("rollout",))), Owner("", EVERY)


def test_a_key_is_for_its_roles() -> None:
    assert key_refusal(GPU, "rollout", "gpu-1") == ""
    assert key_refusal(GPU, "trainer", "gpu-1") == (
        "the key gpu-1 is for rollout, not for a trainer; give the node one made by `asyncrl keys add NAME "
        "--role trainer` on the broker's machine"
    )


def test_a_key_is_for_nodes_of_its_name() -> None:
    assert key_refusal(GPU, "rollout", "gpu-1-0") == ""
    assert key_refusal(GPU, "rollout", "gpu-10") == (
        "the key gpu-1 is for nodes called gpu-1 or gpu-1-..., not gpu-10; give the node such a name, or another key"
    )


@pytest.mark.parametrize("owner", [None, LOCAL])
def test_a_node_that_needs_no_key_of_its_own_may_have_any_role_and_name(owner: Owner | None) -> None:
    assert key_refusal(owner, "trainer", "x") == ""
    assert spool_refusal(owner, Put("x", "1", [])) == ""


@pytest.mark.parametrize(
    ("owner", "message", "expected"),
    [
        (GPU, Put("gpu-1-0", "1", []), ""),
        (GPU, Fetch(1, []), ""),
        (GPU, Fetch(1, [], [b"digest"]), ""),
        (
            Owner("r", frozenset(("reward",))),
            Fetch(1, [], [b"digest"]),
            "the key r is for reward, which may not fetch pictures",
        ),
        (GPU, Put("gpu-2", "1", []), "the key gpu-1 is not for the node gpu-2"),
        (Owner("r", frozenset(("reward",))), Put("r", "1", []), "the key r is for reward, which may not send Put"),
        (Owner("s", frozenset(("spool",))), Fetch(1, []), "the key s is for spool, which may not send Fetch"),
        (None, Trim(3), "a spool does not take Trim"),
        (LOCAL, Commit(1, "c"), "a spool does not take Commit"),
    ],
)
def test_a_spool_takes_what_a_role_may_send_from_nodes_of_the_key(
    owner: Owner | None, message: Message, expected: str
) -> None:
    assert spool_refusal(owner, message) == expected
