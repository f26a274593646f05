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
import transformers
from transformers import (
    CONFIG_MAPPING,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from asyncrl.config.model.weights import read_config
from asyncrl.errors import ConfigError
from asyncrl.messages.trajectory import IMAGE_MARK, Prompt
from asyncrl.plug_in import describe
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
from asyncrl.trainer.model.architecture import check_config, language_model

# ── architectures ─────────────────────────────────────────────────────────────────────────────

MAX_POSITIONS = 4096
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "encoder_ffn_dim", "decoder_ffn_dim"), 128),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), MAX_POSITIONS),
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": False,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 32),
    "shared_expert_intermediate_size": 64,
    "norm_topk_prob": True,
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "v_head_dim", "qk_rope_head_dim"), 16),
    "qk_nope_head_dim": 8,
}
"""Values of the keys that a type's config may have. Keys whose default is None stay so."""
MOST_PARAMETERS = 200_000_000
"""A type whose sizes have other names than these stays too large to be tried on a CPU."""
READ_PICTURES = ("qwen2_5_vl", "qwen3_vl")
ANY = {False: "qwen3", True: "qwen3_vl"}
"""Architecture in place of one that no name tells, without and with pictures."""


def architecture_of(path: str, *, has_pictures: bool = False) -> str:
    """``model_type`` of a model directory, of the published model that a part of its path names, or of a stand-in."""
    if (Path(path) / "config.json").is_file():
        return str(read_config(Path(path)).get("model_type"))
    return model_type_of(path) or ANY[has_pictures]


def random_model(architecture: str, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """
    A model with random weights, a function of its arguments; the process's random state stays as it was.

    Raises `ConfigError` if the trainer cannot compute the architecture, or no tiny model of it can be made.
    """
    if architecture == "qwen3_vl":
        return random_vision_model(tokenizer, seed)
    config = tiny_config(architecture, tokenizer)
    source = f"a tiny model of type {architecture!r}"
    size = sum(parameter.numel() for parameter in check_config(config, source).parameters())
    if size > MOST_PARAMETERS:
        raise ConfigError(f"{source} has {size:,} parameters: too many for --scale tiny; name a model of another type")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = language_model(config, source).from_config(config)
    return model


def tiny_config(architecture: str, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Config of a type with its defaults and small sizes. Raises `ConfigError` for a type without defaults."""
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    sizes = {**SIZES, "vocab_size": len(tokenizer), "bos_token_id": eos, "eos_token_id": eos, "pad_token_id": pad}
    sizes["vocab_size_per_layer_input"] = len(tokenizer)
    if architecture == "qwen2_5_vl":
        return _with_tower(architecture, sizes, tokenizer)
    if architecture not in CONFIG_MAPPING:
        raise ConfigError(f"transformers {transformers.__version__} has no model of model_type {architecture!r}")
    try:
        return _shrunk(CONFIG_MAPPING[architecture](), sizes)
    except Exception as error:  # a type whose parts must be given raises anything
        raise ConfigError(
            f"no tiny model of model_type {architecture!r} is made: {describe(error, __file__)}"
        ) from error


def _shrunk(config: Any, sizes: dict[str, Any]) -> Any:
    known = config.to_dict()
    taken = {key: size for key, size in sizes.items() if known.get(key) is not None}
    if known.get("kv_lora_rank"):  # keys and values of all heads are made of one latent vector
        taken["num_key_value_heads"] = SIZES["num_attention_heads"]
    if kinds := known.get("layer_types"):
        taken["layer_types"] = kinds[-SIZES["num_hidden_layers"] :]
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    taken |= {name: _shrunk(part, sizes) for name, part in parts.items() if part is not None}
    return type(config)(**taken)


def _with_tower(architecture: str, sizes: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Any:
    """Config of a Qwen2.5-VL, whose tower attends in windows, for the same pictures as `random_vision_model`."""
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    text = _shrunk(CONFIG_MAPPING[architecture]().get_text_config(), sizes).to_dict()
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
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
    return CONFIG_MAPPING[architecture](text_config=text, vision_config=tower, **ids)


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
