"""A loss is tried where it should agree with the usual one, and where it could overflow."""

import math
from pathlib import Path

import pytest

from asyncrl.errors import ConfigError
from asyncrl.tools.plug_ins.loss import CASES, LENGTHS, batch, examine, table

HEAD = "import torch\ndef loss(tokens, *, clip_high=0.2):\n    ratio = (tokens.logprobs - tokens.old_logprobs).exp()\n"


def examined(tmp_path: Path, body: str, *overrides: str):
    file = tmp_path / "my.py"
    file.write_text(f"{HEAD}    return {body}\n")
    return examine(f"{file}:loss", overrides)


def test_the_built_in_loss_is_equal_to_itself_in_every_case() -> None:
    results = examine("clipped")
    assert [one.case for one in results] == list(CASES)
    assert all(one.loss == one.clipped and math.isclose(one.direction, 1, abs_tol=1e-5) for one in results)
    assert [one.problem for one in results] == [""] * 3
    assert results[0].moved == 1.0
    assert results[2].moved < 1.0, "clipped tokens have no gradient"


@pytest.mark.parametrize("loss", ["gspo", "cispo", "kl_cov", "clip_cov", "sapo"])
def test_every_built_in_loss_can_be_tried(loss: str) -> None:
    settings = {"kl_cov": ["algorithm.cov_ratio=0.5"], "clip_cov": ["algorithm.cov_ratio=0.5"]}.get(loss, [])
    assert all(math.isfinite(one.loss) for one in examine(loss, settings))


def test_settings_reach_the_function(tmp_path: Path) -> None:
    tight, loose = (
        examined(tmp_path, "-tokens.advantages * ratio.clamp(max=1 + clip_high)", f"algorithm.clip_high={bound}")
        for bound in (0.01, 5.0)
    )
    assert tight[2].moved < loose[2].moved


@pytest.mark.parametrize(
    ("body", "case", "said"),
    [
        ("tokens.advantages * ratio", 0, "it lowers the probability of good tokens"),
        ("-tokens.advantages * (ratio ** 60)", 2, "losses are not finite"),
        ("0 * tokens.logprobs", 0, "no token has a gradient"),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_told(tmp_path: Path, body: str, case: int, said: str) -> None:
    assert said in examined(tmp_path, body)[case].problem


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("(-tokens.advantages * ratio).mean()", "expected a tensor of one number for each of the"),
        ("tokens.old_logprobs", "losses have no gradient"),
        ("tokens.nothing", "raised AttributeError"),
    ],
)
def test_what_is_no_loss_is_refused(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        examined(tmp_path, body)


def test_the_batch_is_the_same_each_time() -> None:
    first, second = batch("far off"), batch("far off")
    assert first.logprobs.equal(second.logprobs)
    assert len(first.logprobs) == sum(LENGTHS)
    assert batch("on policy").logprobs.equal(batch("on policy").old_logprobs)


def test_the_table_has_a_row_for_each_case() -> None:
    heads, *rows = table(examine("clipped"))
    assert heads[0] == "case"
    assert [row[0] for row in rows] == list(CASES)
