"""
Architectures of published models by their names: a launch script and a recipe name models that are on no disk yet.

    models/Qwen3-30B-A3B ─▶ "qwen3_moe"

Whether a type can be trained is asked of `asyncrl.runtime.check_type`.
"""

import re
from pathlib import Path

NAMES = (
    (r"qwen3-vl-\d+b-a\d+b", "qwen3_vl_moe"),
    (r"qwen3-vl-[\d.]+b", "qwen3_vl"),
    (r"qwen3-(coder-)?next", "qwen3_next"),
    (r"qwen3[._]5-\d+b-a\d+b", "qwen3_5_moe"),
    (r"qwen3[._]5-[\d.]+b", "qwen3_5"),
    (r"qwen3-omni-", "qwen3_omni_moe"),
    (r"qwen3-(coder-)?\d+b-a\d+b|qwen3-(30|235)b", "qwen3_moe"),
    (r"(deepseek-r1-0528-)?qwen3-[\d.]+b", "qwen3"),
    (r"qwen2\.5-vl-|mimo-vl-", "qwen2_5_vl"),
    (r"qwen2\.5-omni-", "qwen2_5_omni"),
    (r"qwen2-vl-|qvq-", "qwen2_vl"),
    (r"qwen2-audio-", "qwen2_audio"),
    (r"qwen1\.5-moe-|qwen2-\d+b-a\d+b", "qwen2_moe"),
    (r"(deepseek-r1-distill-)?qwen(1\.5|2|2\.5)?-((math|coder)-)?[\d.]+b|qwq-|eurus-2-", "qwen2"),
    (r"deepseek-v4", "deepseek_v4"),
    (r"deepseek-v3\.2", "deepseek_v32"),
    (r"deepseek-(v3|r1)(?!-distill)|moonlight-", "deepseek_v3"),
    (r"deepseek-(v2|coder-v2)", "deepseek_v2"),
    (r"llama-3\.2-\d+b-vision", "mllama"),
    (r"llama-4-", "llama4"),
    (r"deepseek-(llm|coder|math)-[\d.]+b|(deepseek-r1-distill-|meta-|tiny)?llama-|smollm2?-|yi-|falcon3-", "llama"),
    (r"mixtral-", "mixtral"),
    (r"mistral-small-3\.[12]-", "mistral3"),
    (r"mistral-(7b|nemo|small-24b|small-instruct|large)|ministral-8b-", "mistral"),
    (r"gemma-3n-", "gemma3n"),
    (r"gemma-3-(270m|1b)", "gemma3_text"),
    (r"gemma-3-", "gemma3"),
    (r"gemma-2-", "gemma2"),
    (r"gemma-(1\.1-)?[\d.]+b", "gemma"),
    (r"phi-4-multimodal", "phi4mm"),
    (r"phi-3(\.5)?-vision", "phi3_v"),
    (r"phi-3\.5-moe", "phimoe"),
    (r"phi-[34]", "phi3"),
    (r"phi-[12]", "phi"),
    (r"glm-4\.1v-", "glm4v"),
    (r"glm-4\.[56]v", "glm4v_moe"),
    (r"glm-4\.7-flash", "glm4_moe_lite"),
    (r"glm-4\.[567]", "glm4_moe"),
    (r"glm-5", "glm_moe_dsa"),
    (r"glm-(4|z1)-\d+b-0414", "glm4"),
    (r"internvl[\d_.]*-[\d.]+b-hf", "internvl"),
    (r"internvl", "internvl_chat"),
    (r"kimi-vl-", "kimi_vl"),
    (r"kimi-k2\.", "kimi_k25"),
    (r"kimi-k2", "kimi_k2"),
    (r"minicpm-o-", "minicpmo"),
    (r"minicpm-v-", "minicpmv"),
    (r"minimax-m2", "minimax_m2"),
    (r"mimo-7b", "mimo"),
    (r"gpt-oss-", "gpt_oss"),
    (r"seed-oss-", "seed_oss"),
    (r"hy3\b", "hy_v3"),
    (r"nvidia-nemotron-3|nemotron-(3-)?nano", "nemotron_h"),
    (r"olmo-?2-", "olmo2"),
    (r"olmo-?3-", "olmo3"),
    (r"smollm3-", "smollm3"),
    (r"granite-3", "granite"),
    (r"granite-4", "granitemoehybrid"),
    (r"exaone-4", "exaone4"),
    (r"openvla", "openvla"),
)
"""Patterns of published names, in lower case, with the ``model_type`` in config.json."""


def model_type_of(path: str) -> str:
    """Return the ``model_type`` of the published model that the last possible part of ``path`` names, or empty."""
    parts = reversed(Path(path.lower()).parts)
    return next((kind for part in parts for pattern, kind in NAMES if re.match(pattern, part)), "")
