import pytest

from asyncrl.tools.dashboard.query import Query, RefusedAnswer


def test_values_are_typed() -> None:
    query = Query(b"a=%C3%A9&n=-1.5&k=7&c=two&empty=")
    assert (query.text("a"), query.number("n"), query.count("k", 0, most=9)) == ("é", -1.5, 7)
    assert (query.choice("c", ("one", "two")), query.choice("d", ("one", "two"))) == ("two", "one")
    assert (query.number("empty"), query.count("absent", 5, most=9), query.text("absent")) == (None, 5, "")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"a=1&a=2", "names a value twice"),
        (b"a=%ff", "not percent-encoded UTF-8"),
        (b"\xff", "not percent-encoded UTF-8"),
        (b"n=nan", "n is 'nan', expected a number"),
        (b"n=1e999", "expected a number"),
        (b"n=x", "n is 'x', expected a number"),
        (b"k=10", "k is '10', expected a whole number from 0 to 9"),
        (b"k=-1", "expected a whole number"),
        ("k=٣".encode(), "not percent-encoded UTF-8"),
        (b"k=%D9%A3", "expected a whole number"),
        (b"c=three", "c is 'three', expected one of one, two"),
        (b"a=" + b"x" * 201, "a has 201 characters, expected at most 200"),
        (b"a=" + b"x" * 5000, "the query has 5002 bytes"),
    ],
)
def test_what_is_not_of_its_kind_is_refused_with_a_sentence(raw: bytes, message: str) -> None:
    with pytest.raises(RefusedAnswer, match=message) as refused:
        read(raw)
    assert 400 <= refused.value.status < 500


def read(raw: bytes) -> None:
    query = Query(raw)
    query.text("a")
    query.number("n")
    query.count("k", 0, most=9)
    query.choice("c", ("one", "two"))
