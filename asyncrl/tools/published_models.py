"""
Architectures of published models by their names, without the models, and those that cannot be trained here.

    models/Qwen3-30B-A3B ─▶ "qwen3_moe"          Qwen/Qwen3.5-27B ─▶ "qwen3_5", which cannot: it has linear attention

A launch script and a recipe name models that are on no disk yet. docs/models.md has what was tried with a model of each
type; the sentences of `NOT_TRAINED` are those of its table where it has them.
"""

import re
from pathlib import Path

NAMES = (
    (r"qwen3-vl-\d+b-a\d+b", "qwen3_vl_moe"),
    (r"qwen3-vl-[\d.]+b", "qwen3_vl"),
    (r"qwen3-next-\d+b-a\d+b", "qwen3_next"),
    (r"qwen3[._]5-\d+b-a\d+b", "qwen3_5_moe"),
    (r"qwen3[._]5-[\d.]+b", "qwen3_5"),
    (r"qwen3-\d+b-a\d+b", "qwen3_moe"),
    (r"qwen3-[\d.]+b", "qwen3"),
    (r"qwen2\.5-vl-[\d.]+b", "qwen2_5_vl"),
    (r"(deepseek-r1-distill-)?qwen(1\.5|2|2\.5)?-((math|coder)-)?[\d.]+b", "qwen2"),
    (r"qwen1\.5-moe-|qwen2-\d+b-a\d+b", "qwen2_moe"),
    (r"deepseek-(llm|coder|math)-[\d.]+b|(deepseek-r1-distill-|meta-)?llama-", "llama"),
    (r"deepseek-(v3|r1)|moonlight-", "deepseek_v3"),
    (r"gemma-2-", "gemma2"),
    (r"gpt-oss-", "gpt_oss"),
)
"""Patterns of published names, in lower case, with the ``model_type`` in config.json."""

NOT_TRAINED = {
    "gemma2": "scaled logits",
    "gpt_oss": "its attention cannot be replaced",
    "qwen3_5": "not attention alone",
    "qwen3_5_moe": "not attention alone",
    "qwen3_next": "not attention alone",
    "qwen3_vl_moe": "experts in a model that reads pictures",
}
"""Reasons for which the trainer refuses a ``model_type``."""


def model_type_of(path: str) -> str:
    """Return the ``model_type`` of the published model that the last possible part of ``path`` names, or empty."""
    parts = reversed(Path(path.lower()).parts)
    return next((kind for part in parts for pattern, kind in NAMES if re.match(pattern, part)), "")
