"""Nodes that are started again are told until they are back."""

from asyncrl.broker.status.restarts import RestartBook
from asyncrl.messages.supervisor import Exited

KILLED = Exited("trainer-0", "was killed by SIGKILL", restarting=True)


def test_a_node_that_is_started_again_is_told_until_it_is_back() -> None:
    book = RestartBook()
    book.exited(KILLED, "supervisor-0.1", 100.0)
    assert book.notes(112.4) == ["trainer-0 was killed by SIGKILL 12 s ago and is starting again"]
    absence = book.returned("trainer-0")
    assert absence is not None
    assert (absence.since_s, absence.told_by) == (100.0, "supervisor-0.1")
    assert (book.notes(113.0), book.returned("trainer-0")) == ([], None)


def test_what_is_not_started_again_or_is_no_node_is_not_awaited() -> None:
    book = RestartBook()
    book.exited(KILLED, "s", 0.0)
    book.exited(Exited("trainer-0", "exited with 78", restarting=False), "s", 1.0)
    book.exited(Exited("broker-0", "was killed by SIGKILL", restarting=True), "s", 1.0)
    book.exited(Exited("tracker-wandb", "exited with 70", restarting=True, is_needed=False), "s", 1.0)
    assert book.notes(2.0) == []
