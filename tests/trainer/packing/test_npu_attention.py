"""The NPU's kernel is called as its documentation asks, and computes what the other implementation does."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from asyncrl.trainer.packing import packed_attention as module
from asyncrl.trainer.packing.packed_attention import _batched_attention, npu_attention
from tests.rollout.engines.vllm.sources import Source, sources
from tests.weights.groups.fake_npu import npu_fusion_attention

LENGTHS = (1, 2, 2, 5, 9)
ARGUMENTS = ("query", "key", "value", "head_num", "input_layout")
KEYWORDS = {
    *("atten_mask", "scale", "actual_seq_qlen", "actual_seq_kvlen"),
    *("sparse_mode", "pre_tockens", "next_tockens"),
}


@pytest.fixture(autouse=True)
def _kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(npu_fusion_attention=npu_fusion_attention))


def heads(kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(sum(LENGTHS), count, 4) for count in (4, kv_heads, kv_heads)]
    queries, keys, values = (torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes)
    return queries, keys, values


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("at_once", [1000, 2])
def test_each_sequence_attends_to_itself_as_elsewhere(monkeypatch, window, kv_heads, at_once):
    monkeypatch.setattr(module, "MAX_SEQUENCES", at_once)
    found = []
    for compute in (npu_attention, _batched_attention):
        queries, keys, values = heads(kv_heads)
        out = compute((queries, keys, values), LENGTHS, 0.3, window)
        (out * torch.arange(out.numel()).view(out.shape).sin()).sum().backward()
        found.append([out, queries.grad, keys.grad, values.grad])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_without_a_factor_scores_are_divided_by_the_root_of_the_width() -> None:
    found, expected = (npu_attention(heads(4), LENGTHS, scaling, None) for scaling in (None, 0.5))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("torch_npu", sources("torch_npu"))
def test_the_kernel_has_the_arguments_that_are_given_to_it(torch_npu: Source) -> None:
    documentation = torch_npu.bytes("torch_npu/_op_plugin_docs.py").decode()
    signature = re.search(r"torch_npu\.npu_fusion_attention\((Tensor query[^)]*)\)", documentation)
    assert signature
    names = [part.split()[1].partition("=")[0] for part in signature[1].split(", ")]
    assert tuple(names[:5]) == ARGUMENTS
    assert set(names) >= KEYWORDS
