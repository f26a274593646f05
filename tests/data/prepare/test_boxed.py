import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.data.prepare.boxed import last_boxed


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so $\boxed{5}$.", "5"),
        (r"$\boxed{\frac{1}{2}}$", r"\frac{1}{2}"),
        (r"first $\boxed{1}$, then $\boxed{2}$", "2"),
        (r"\boxed{ 7 }", "7"),
        (r"\fbox{a}", "a"),
        (r"\boxed 5$ is it", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed{}", ""),
        ("no box", None),
        (r"\boxed{never closed", None),
        (r"\boxed", None),
        (r"\boxedness{5}", None),
    ],
)
def test_the_last_box_is_the_answer(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@given(st.text(alphabet="ab {}\\", max_size=30))
def test_any_text_has_an_answer_or_none(text: str) -> None:
    last_boxed("\\boxed{" + text)
    last_boxed(text)


@given(
    st.recursive(
        st.text("ab1", max_size=4), lambda inner: inner.map(lambda text: f"\\frac{{{text}}}{{2}}"), max_leaves=4
    )
)
def test_what_is_put_into_a_box_comes_out(answer: str) -> None:
    assert last_boxed(f"it is \\boxed{{{answer}}}.") == answer
