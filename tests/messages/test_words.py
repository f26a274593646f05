"""An engine or a policy may tell the size of its vocabulary."""

from types import SimpleNamespace

from asyncrl.messages.words import vocab_size_of
from asyncrl.testing import FakeEngine


def test_a_size_is_taken_as_told_and_unknown_otherwise() -> None:
    assert vocab_size_of(SimpleNamespace(vocab_size=100)) == 100
    assert vocab_size_of(FakeEngine()) == 0
    assert vocab_size_of(SimpleNamespace(vocab_size=None)) == 0
    assert vocab_size_of(SimpleNamespace(vocab_size=-1)) == 0
