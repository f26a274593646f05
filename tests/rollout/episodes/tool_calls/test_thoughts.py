import pytest

from asyncrl.rollout.episodes.tool_calls.thoughts import after_thought, opened_thought


@pytest.mark.parametrize(
    ("text", "is_open", "answer"),
    [
        ("yes", False, "yes"),
        ("<think>\nhm\n</think>\n\nyes", False, "yes"),
        ("hm</think>yes", True, "yes"),
        ("\n<think>hm", False, ""),
        ("hm", True, ""),
        ("<think>a</think>b</think>c", False, "c"),
        ("I <think> so", False, "I <think> so"),
    ],
)
def test_the_answer_follows_the_thought(text: str, is_open: bool, answer: str) -> None:
    assert after_thought(text, is_open=is_open) == answer


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [
        ("assistant\n<think>\n", "<think>\n"),
        ("<think>a</think><think>", "<think>"),
        ("assistant\n", ""),
        ("<think>\n\n</think>\n\n", ""),
        ("", ""),
    ],
)
def test_a_prompt_opens_a_thought_if_it_ends_with_its_tag(prompt: str, opened: str) -> None:
    assert opened_thought(prompt) == opened
