"""Extraction of the final answer."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncrl.reward.answers.final_answer import after_answer, fits, has_each_once, last_boxed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so \\boxed{18}.", "18"),
        ("\\boxed{1} no, \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{\\left\\{ x \\right.}", "\\left\\{ x \\right."),
        ("\\fbox{ 7 }", "7"),
        ("\\boxed {7}", "7"),
        ("\\boxed 7$ and more", "7"),
        ("\\boxed{a \\boxed{b}}", "a \\boxed{b}"),
        ("\\boxed{a \\boxed{b}", "b"),
        ("$\\boxed{5}$ or $\\boxed{6}$", "5, 6"),
        ("\\boxed{5}\\boxed{5}", "5"),
        ("\\boxed{5}.\n\\boxed{6}", "6"),
        ("} \\boxed{7} {", "7"),
        ("\\boxed{1} then \\boxed{2", None),
        ("\\boxed{}", ""),
        ("\\boxed", None),
        ("18", None),
    ],
)
def test_the_last_box_with_its_braces_balanced(text: str, expected: str | None) -> None:
    assert last_boxed(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Answer: 18", "18"),
        ("The final answer: 18.\n", "18"),
        ("**Answer:** 18", "18"),
        ("ANSWER : 18\nThank you", "18"),
        ("Answer: 1\nAnswer: 2", "2"),
        ("Answer:\n\n18\n", "18"),
        ("Answer: **18**", "18"),
        ("Answer: $\\frac12$", "$\\frac12$"),
        ("Answer: \\[\n5\n\\]", "\\[\n5\n\\]"),
        ("Answer:\n$$\n5\n$$ or 6\nBye", "$$\n5\n$$ or 6"),
        ("Answer: \\[5\nso", "\\[5"),
        ("**Answer:**\n- $5$", "$5$"),
        ("Answer: - 5", "- 5"),
        ("Answer: $\n5\n$", "$\n5\n$"),
        ("答案：`5`", "5"),
        ("Answer:", None),
        ("answer 18", None),
        ("", None),
    ],
)
def test_the_text_after_the_last_answer_mark(text: str, expected: str | None) -> None:
    assert after_answer(text) == expected


@given(st.text(), st.text(alphabet="abc{}\\ 12", max_size=30))
def test_a_balanced_box_is_found_whatever_comes_before(before: str, inside: str) -> None:
    balanced = "{" + inside.replace("{", "").replace("}", "").replace("\\", "") + "}"

    assert last_boxed(f"{before}\\boxed{{{balanced}}}") == balanced.strip()


@pytest.mark.parametrize(
    "unit", ["\\boxed{", "\\boxed", "{", "\\", "answer", "Answer:", "answer" + "*" * 8, "answer  "]
)
def test_a_hostile_megabyte_is_read_in_one_pass(unit: str) -> None:
    hostile = unit * (1_000_000 // len(unit))

    last_boxed("\\boxed{" + hostile)
    after_answer(hostile)


# ── test template ─────────────────────────────────────────────────────────────────────────────
# Templates: text with gaps.


@pytest.mark.parametrize(
    ("template", "text", "expected"),
    [
        ("a...b", "ab", True),
        ("a...b", "a\nx\nb", True),
        ("a...b", "ba", False),
        ("aa...aa", "aaa", False),
        ("...b...", "abc", True),
        ("a", "a", True),
        ("a", "ab", False),
        ("x...aba...ab...y", "xababy", False),
        ("x...aba...ab...y", "xabaaby", True),
    ],
)
def test_pieces_are_found_in_order_and_do_not_overlap(template: str, text: str, expected: bool) -> None:
    assert fits(template, text) is expected


@given(st.lists(st.text(alphabet="ab", max_size=2), min_size=1, max_size=4), st.text(alphabet="ab", max_size=10))
def test_it_agrees_with_a_regular_expression(pieces: list[str], text: str) -> None:
    pattern = ".*".join(map(re.escape, pieces))

    assert fits("...".join(pieces), text) == bool(re.fullmatch(pattern, text, re.DOTALL))


def test_a_piece_that_occurs_too_often_is_noticed() -> None:
    assert has_each_once("a...b...a", "a--b--a")
    assert not has_each_once("a...b", "aab")
