"""
Tiny models of the architectures that recipes train, fitted for seconds to write answers in the form of a reward.

    models/Qwen3-30B-A3B ─▶ qwen3_moe ─▶ 2 layers, 4 experts, random weights ─ fit ─▶ " so so #### 1"
        by config.json, or by the name if there is no such directory

A random model is never right, so that all rewards of a group are equal and every term of the loss is zero. A fitted one
has learned how an answer is written, and not which: it is right now and then.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from asyncrl.config.model.weights import read_config
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import IMAGE_MARK, Prompt
from asyncrl.tools.published_models import model_type_of
from asyncrl.tools.toy.demonstrations import encode
from asyncrl.tools.toy.drawn_squares import (
    FRAMES,
    MERGE,
    PATCH,
    VISION_WORDS,
    image_processor,
    random_vision_model,
)
from asyncrl.tools.toy.models import save_model, tokenizer_from_texts
from asyncrl.tools.toy.warm_up import supervised_step

# ── architectures ─────────────────────────────────────────────────────────────────────────────

MAX_POSITIONS = 4096
TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "tie_word_embeddings": False,
    "bos_token_id": None,
}
"""Sizes that all language models here have in common."""
HEADS = {"head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 64},
    "qwen3": HEADS,
    "qwen3_moe": {**HEADS, **EXPERTS},
}
"""Further sizes of language models, by ``model_type``."""
READ_PICTURES = ("qwen2_5_vl", "qwen3_vl")
KINDS = (*ARCHITECTURES, *READ_PICTURES)
ANY = {False: "qwen3", True: "qwen3_vl"}
"""Architecture in place of one that no name tells, without and with pictures."""


def architecture_of(path: str, setting: str, *, has_pictures: bool = False) -> str:
    """
    ``model_type`` of a model directory, of the published model that a part of its path names, or of a stand-in.

    Raises `ConfigError` if it is one of which no tiny model is made.
    """
    if (Path(path) / "config.json").is_file():
        found = str(read_config(Path(path)).get("model_type"))
    else:
        found = model_type_of(path) or ANY[has_pictures]
    if found not in KINDS:
        raise ConfigError(
            f"{setting}={path} has model_type {found!r}; --scale tiny makes models of {', '.join(KINDS)}: name one of "
            f"those, such as models/Qwen3-8B"
        )
    return found


def random_model(architecture: str, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """A model with random weights, a function of its arguments; the process's random state stays as it was."""
    if architecture == "qwen3_vl":
        return random_vision_model(tokenizer, seed)
    text: dict[str, Any] = {
        **TEXT,
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if architecture in READ_PICTURES:
            return AutoModelForImageTextToText.from_config(_with_tower(architecture, text, tokenizer))
        return AutoModelForCausalLM.from_config(CONFIG_MAPPING[architecture](**text, **ARCHITECTURES[architecture]))


def _with_tower(architecture: str, text: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Any:
    """Config of a Qwen2.5-VL, whose tower attends in windows, for the same pictures as `random_vision_model`."""
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    tower = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": text["hidden_size"],
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "window_size": 2 * MERGE * PATCH,  # four tokens
        "fullatt_block_indexes": [1],
        "tokens_per_second": 2,
    }
    ids = dict(zip(names, tokenizer.convert_tokens_to_ids(list(VISION_WORDS)), strict=True))
    return CONFIG_MAPPING[architecture](text_config={**text, "rope_parameters": rope}, vision_config=tower, **ids)


# ── forms ─────────────────────────────────────────────────────────────────────────────────────
# Completions that a reward function could be content with.
#
#     gsm8k ─▶ " so so so #### 1"          the thought is of any length, the answer one of the data's

FORMS = {
    "geo3k": "<think>{thought}</think> \\boxed{{{answer}}}",
    "math": "{thought} \\boxed{{{answer}}}",
    "gsm8k": "{thought} #### {answer}",
    "math_dapo": "{thought}\nAnswer: {answer}",
}
"""Completion by the verifier that reads it; in one for several, what must be at the end comes last."""
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'
THOUGHT, LONGEST_THOUGHT = " so", 16
LONGEST_ANSWER = 8
"""Characters of an answer that a tiny model is shown."""


def completion(verifiers: Sequence[str], answers: Sequence[str], rng: random.Random, *, may_call: bool = False) -> str:
    """
    A completion with an answer that is right by chance, or a call of a tool.

    It has the forms of all ``verifiers`` one after the other: which one reads it is more than a tiny model learns.
    """
    if may_call and rng.random() < 0.5:
        return CALL
    thought, answer = THOUGHT * rng.randint(0, LONGEST_THOUGHT), rng.choice(answers)
    forms = [
        FORMS[verifier].format(thought=thought if place == 0 else "", answer=answer)
        for place, verifier in enumerate(verifiers)
    ]
    return "".join(forms)


# ── fit ───────────────────────────────────────────────────────────────────────────────────────

VOCAB_SIZE = 512
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{{ '<|vision_start|><|image_pad|><|vision_end|>' if part['type'] == 'image' else part['text'] }}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Template of Qwen's chat format; a content with pictures is a list of parts."""
FIT_STEPS, FIT_BATCH, FIT_LR = 60, 16, 5e-3

Report = Callable[[str], None]


def make(
    directory: Path,
    architecture: str,
    prompts: Sequence[Prompt],
    verifiers: Sequence[str],
    *,
    seed: int,
    may_call: bool,
    report: Report,
) -> None:
    """
    Make a model directory, unless it is there: random weights, fitted to answer ``prompts``.

    Args:
        verifiers: Names of `FORMS`, those that judge the completions.
        may_call: Half of the completions call a calculator.
    """
    if (directory / "config.json").is_file():
        return
    rng = random.Random(seed)
    answers = [prompt.answer for prompt in prompts if 0 < len(prompt.answer) <= LONGEST_ANSWER] or ["1"]
    shown = [completion(verifiers, answers, rng, may_call=may_call) for _ in prompts]
    reads_pictures = architecture in READ_PICTURES
    texts = [CHAT_TEMPLATE, *shown, *(_content(prompt) for prompt in prompts)]
    tokenizer = tokenizer_from_texts(texts, VOCAB_SIZE, VISION_WORDS if reads_pictures else ())
    tokenizer.chat_template = CHAT_TEMPLATE
    model = random_model(architecture, tokenizer, seed)
    torch.set_num_threads(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=FIT_LR, weight_decay=0.0)
    known = sorted((_text(tokenizer, prompt) for prompt in prompts), key=len)
    known = known[: max(FIT_BATCH, len(known) // 2)]  # without those that are too long
    for _ in range(FIT_STEPS):
        batch = rng.choices(known, k=FIT_BATCH)
        shown = [completion(verifiers, answers, rng, may_call=may_call) for _ in batch]
        supervised_step(model, optimizer, encode(tokenizer, batch, shown), FIT_LR)
    save_model(directory, model, tokenizer, report, image_processor() if reads_pictures else None)


def _content(prompt: Prompt) -> str:
    return "\n".join([prompt.text, *(message["content"] for message in prompt.chat)])


def _text(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> str:
    """Text of a prompt as the policy reads it, without its pictures, which say nothing about the form."""
    text = prompt.text
    if prompt.chat:
        text = str(tokenizer.apply_chat_template(prompt.chat, add_generation_prompt=True, tokenize=False))
    return text.replace(IMAGE_MARK, "")
