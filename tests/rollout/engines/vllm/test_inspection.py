"""Settings of a worker that would make its log-probs or weights wrong, with stand-ins for vLLM's and vllm-ascend's."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asyncrl.rollout.engines.vllm.inspection import never_sample, refusal, use_processed_logprobs


def runner(module: str, mode: str = "raw_logprobs", **attributes: Any) -> Any:
    """A model runner whose sampler comes from ``module``."""
    made = type("AscendSampler", (), {"__module__": f"{module}.sample.sampler", "logprobs_mode": mode})
    sampler = made()
    sampler.topk_topp_sampler = made()
    return SimpleNamespace(sampler=sampler, **attributes)


@pytest.fixture
def ascend(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Settings of an installed vllm-ascend, all of them usable."""
    settings = SimpleNamespace(
        weight_nz_mode=0,
        enable_fused_mc2=0,
        enable_reduce_sample=False,
        eplb_config=SimpleNamespace(dynamic_eplb=False),
    )
    module = SimpleNamespace(get_ascend_config=lambda: settings)
    monkeypatch.setitem(sys.modules, "vllm_ascend", SimpleNamespace(ascend_config=module))
    monkeypatch.setitem(sys.modules, "vllm_ascend.ascend_config", module)
    return settings


def test_a_sampler_that_follows_the_engines_arguments_is_not_refused() -> None:
    assert refusal(runner("vllm", "processed_logprobs"), kind="cuda") == ""


def test_a_sampler_in_one_piece_is_judged_by_its_own_mode() -> None:
    whole = SimpleNamespace(sampler=SimpleNamespace(logprobs_mode="processed_logprobs"), rejection_sampler=None)

    assert refusal(whole, kind="cuda") == ""


def test_the_sampler_of_vllm_ascend_is_given_the_mode_in_both_of_its_parts(ascend: SimpleNamespace) -> None:
    npu = runner("vllm_ascend")
    assert "AscendSampler reports 'raw_logprobs' instead of 'processed_logprobs'" in refusal(npu, kind="npu")

    use_processed_logprobs(npu)

    assert npu.sampler.logprobs_mode == npu.sampler.topk_topp_sampler.logprobs_mode == "processed_logprobs"
    assert refusal(npu, kind="npu") == ""


def test_another_sampler_with_raw_log_probs_is_refused_and_not_changed() -> None:
    """vLLM's chooses its kernels by the mode when it is made."""
    cuda = runner("vllm")

    use_processed_logprobs(cuda)

    assert refusal(cuda, kind="cuda").endswith(
        "not be those of the distribution sampled from; install a tested version of vLLM"
    )


def test_filters_with_raw_log_probs_are_refused_though_the_sampler_has_others() -> None:
    half = runner("vllm", "processed_logprobs")
    half.sampler.topk_topp_sampler.logprobs_mode = "raw_logprobs"

    assert "reports 'raw_logprobs'" in refusal(half, kind="cuda")


def test_ids_that_are_never_sampled_have_no_probability() -> None:
    class Model:
        def compute_logits(self, states: torch.Tensor | None) -> torch.Tensor | None:
            return states

    model: Any = Model()
    for never in ([0, 1], [1, 3], []):
        never_sample(model, never, torch.device("cpu"))
        removed = model.compute_logits(torch.zeros(2, 5)).isneginf()
        assert [row.nonzero().flatten().tolist() for row in removed] == [never, never]
        assert model.compute_logits(None) is None, "of tensor parallel workers one has the logits"


def test_a_sampler_of_parts_of_a_batch_would_draw_ids_without_a_text() -> None:
    sharded = runner("vllm", "processed_logprobs", batch_sharder=object())

    assert "remove enable_batch_sharded_sampling" in refusal(sharded, kind="cuda")


def test_a_sampler_that_cannot_be_asked_is_refused() -> None:
    assert "NoneType reports None instead of" in refusal(SimpleNamespace(sampler=None), kind="cuda")


def test_draft_tokens_verified_with_raw_log_probs_are_refused() -> None:
    drafts = SimpleNamespace(is_processed_logprobs_mode=False)

    assert "remove rollout.vllm.engine_args.speculative_config" in refusal(
        runner("vllm", "processed_logprobs", rejection_sampler=drafts), kind="cuda"
    )


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("weight_nz_mode", 2, "layout FRACTAL_NZ, into which new weights cannot be loaded (weight_nz_mode is 2)"),
        ("weight_nz_mode", 1, "(weight_nz_mode is 1); set weight_nz_mode = 0 in rollout.vllm.engine_args.additional_"),
        (
            "enable_fused_mc2",
            1,
            "keeps experts in the layout FRACTAL_NZ, into which new weights cannot be loaded (enable_",
        ),
        ("enable_reduce_sample", True, "log-probs belong to other tokens (enable_reduce_sample is True); set enable_"),
        ("eplb_config", SimpleNamespace(dynamic_eplb=True), "wrong ones (eplb_config.dynamic_eplb is True); remove"),
    ],
)
def test_a_setting_of_vllm_ascend_that_spoils_weights_or_log_probs_is_refused_by_name(
    ascend: SimpleNamespace, setting: str, value: object, expected: str
) -> None:
    setattr(ascend, setting, value)

    reason = refusal(runner("vllm_ascend", "processed_logprobs"), kind="npu")

    assert expected in reason
    assert "\n" not in reason
