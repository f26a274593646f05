import pytest
import torch

from asyncrl.algo.attention import ready_kernels


def allowed() -> dict[str, bool]:
    cuda = torch.backends.cuda
    return {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }


def test_on_cuda_no_attention_makes_a_plan_for_each_shape() -> None:
    before = allowed()
    with ready_kernels(torch.device("cuda:0")):
        inside = allowed()
    assert inside == {"flash": True, "efficient": True, "math": True, "cudnn": False}
    assert allowed() == before


@pytest.mark.parametrize("kind", ["cpu", "meta"])
def test_elsewhere_nothing_is_chosen(kind: str) -> None:
    before = allowed()
    with ready_kernels(torch.device(kind)):
        assert allowed() == before
