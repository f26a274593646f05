"""The outbox keeps the order of each kind of output, and empties itself."""

from asyncrl.broker.ledger.records import Committed
from asyncrl.broker.outbox import Event, Outbox, OutgoingMessage
from asyncrl.messages.rollout import Release
from asyncrl.messages.weights import Published


def test_output_is_drained_once_in_order() -> None:
    out = Outbox()
    out.send("a", Release())
    out.record(Committed(0, "step_000001"))
    out.event("version.live", policy_version=1)
    out.send("t", Published(1), once_durable=True)

    assert out.drain() == (
        [OutgoingMessage("a", Release()), OutgoingMessage("t", Published(1), once_durable=True)],
        [Committed(0, "step_000001")],
        [Event("version.live", {"policy_version": 1})],
    )
    assert out.drain() == ([], [], [])
