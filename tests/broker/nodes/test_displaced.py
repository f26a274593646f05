"""Of two processes of one name the older one stays displaced, until the name is free."""

from asyncrl.broker.nodes.displaced import DisplacedBook, is_late
from asyncrl.messages.session import Hello
from asyncrl.messages.wire import PROTOCOL


def hello(incarnation: str, node: str = "twin") -> Hello:
    return Hello(PROTOCOL, "rollout", node, incarnation)


def test_a_process_whose_place_is_taken_is_displaced_in_all_its_sessions() -> None:
    book = DisplacedBook()
    book.joined(hello("1-a-7"), [])
    book.joined(hello("2-b-7"), ["1-a-7"])
    assert book.is_displaced(hello("3-a-7"))
    assert not book.is_displaced(hello("3-b-7"))
    assert not book.is_displaced(hello("3-a-7", node="other"))


def test_a_process_that_joins_again_displaces_nobody() -> None:
    book = DisplacedBook()
    book.joined(hello("2-a-7"), ["1-a-7"])
    assert not book.is_displaced(hello("3-a-7"))


def test_a_process_that_got_the_place_back_is_not_displaced() -> None:
    book = DisplacedBook()
    book.joined(hello("2-b-7"), ["1-a-7"])
    book.joined(hello("3-a-7"), [])
    assert not book.is_displaced(hello("4-a-7"))


def test_an_incarnation_that_tells_no_process_is_never_displaced() -> None:
    book = DisplacedBook()
    book.joined(hello("1"), ["0"])
    assert not book.is_displaced(hello("0"))


def test_what_a_process_said_before_its_successor_started_is_late() -> None:
    assert is_late("18ebca6fd756a632-a-7", "18ebca6fd756a633-b-9")
    assert not is_late("18ebca6fd756a633-b-9", "18ebca6fd756a632-a-7")
    assert not is_late("1-a-7", "2-a-7"), "sessions of one process end each other"
    assert not is_late("no time", "neither"), "nothing is known"
