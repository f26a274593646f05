"""Mutated files of every reader are values or one sentence: never another exception."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from asyncrl.config.model.adapter import check_adapter
from asyncrl.config.model.directory import check_model, known_positions
from asyncrl.config.model.tokenizer import num_experts
from asyncrl.config.model.weights import read_config
from asyncrl.config.run_file import load_config
from asyncrl.config.sections.trainer import Lora
from asyncrl.data.check import inspect
from asyncrl.errors import ConfigError
from asyncrl.files.json_lines import toml_key, toml_value
from asyncrl.foreign_text import acting
from asyncrl.vision.settings import read_settings
from tests.config.model.directories import write_model, write_safetensors

ROOT = Path(__file__).parents[2]
# ruff: noqa: E501  tables of values
NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**63 - 1, -(2**63), 10**30, 10**9, 0.0, -0.0, 1e308, 5e-324, 2.5])
TEXTS = st.sampled_from(
    ["", "\0", "a\nb", "\x1b[2J", "../x", "/dev/zero", "١", "\u202e", "a" * 5000, "auto", "F32", "1", "None"]
)
KEYS = st.sampled_from(["", "a", "type", "rope_type", "factor", "size", "\0", "a.b", "name", "path"])
ODD = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
DEEP = st.integers(50, 70).map(lambda depth: json.loads("[" * depth + "]" * depth))


def places(value: Any, parent: Any = None, key: Any = None) -> Iterator[tuple[Any, Any]]:
    """Each list or dict in a value, with each key in it."""
    for inner in list(value if isinstance(value, dict) else range(len(value))):
        yield value, inner
        if isinstance(value[inner], dict | list):
            yield from places(value[inner])


@st.composite
def mutations(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """The value with one to three of its parts replaced, removed, nested, or put elsewhere."""
    value: dict[str, Any] = json.loads(json.dumps(original))
    for _ in range(draw(st.integers(1, 3))):
        if not (found := list(places(value))):
            break
        holder, key = draw(st.sampled_from(found))
        match draw(st.integers(0, 4)):
            case 0:
                del holder[key]
            case 1:
                other, place = draw(st.sampled_from(found))
                holder[key] = json.loads(json.dumps(other[place])) if place in other or isinstance(other, list) else 0
            case 2:
                value[draw(KEYS)] = draw(ODD)
            case _:
                holder[key] = draw(ODD | DEEP)
    return value


BYTES = st.tuples(st.floats(0, 1), st.floats(0, 1), st.binary(max_size=8), st.booleans())


def spliced(content: bytes, change: tuple[float, float, bytes, bool]) -> bytes:
    """The bytes with a part of them replaced, by others or by another part."""
    begin, end = sorted(int(part * len(content)) for part in change[:2])
    return (
        content[:begin] + (content[end:][:50] if change[3] else change[2]) + content[end if change[3] else begin + 1 :]
    )


def refused_or_read(read: Callable[[], object]) -> None:
    try:
        read()
    except ConfigError as error:
        lines = str(error).removesuffix("\n").split("\n  ")
        assert all(not acting(line) and len(line) < 8000 for line in lines), lines


EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
"""Files a test: more of them before a release."""
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "float32", "hidden_size": 4, "head_dim": 2,
    "num_hidden_layers": 2, "vocab_size": 8, "num_attention_heads": 2, "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    "rope_theta": 1e6, "max_position_embeddings": 64, "eos_token_id": [1, 2], "num_nextn_predict_layers": 0,
    "quantization_config": {"quant_method": "fp8"}, "auto_map": {"AutoConfig": "x--y.Z"}, "layer_types": ["full_attention"],
    "text_config": None, "num_experts": 4, "image_token_id": 1, "vision_config": {"depth": 2, "patch_size": 14},
}  # fmt: skip
FILES: dict[str, dict[str, Any]] = {
    "config.json": CONFIG,
    "generation_config.json": {"eos_token_id": [1, 2], "temperature": 1.0},
    "tokenizer_config.json": {"chat_template": [{"name": "default", "template": "a"}], "model_max_length": 10**30},
    "tokenizer.json": {"version": "1.0", "added_tokens": [{"id": 7, "content": "a"}], "model": {"vocab": {"a": 0, "b": 1}}},
    "model.safetensors.index.json": {"metadata": {"total_size": 1}, "weight_map": {"model.norm.weight": "part.safetensors"}},
}  # fmt: skip


def look(model: Path) -> None:
    """All that is read of a model without torch."""
    check_model(str(model))
    config = read_config(model)
    known_positions(config, {})
    num_experts(model)
    read_settings(model)


@pytest.mark.parametrize("name", FILES)
@fuzzed
@given(data=st.data())
def test_a_mutated_file_of_a_model(name: str, data: st.DataObject, tmp_path: Path) -> None:
    model = tmp_path / "model"
    if not model.exists():
        write_model(model)
        if "index" in name:
            (model / "model.safetensors").rename(model / "part.safetensors")
    content = json.dumps(data.draw(mutations(FILES[name]))).encode()
    (model / name).write_bytes(spliced(content, data.draw(BYTES)) if data.draw(st.booleans()) else content)
    refused_or_read(lambda: look(model))


@fuzzed
@given(change=BYTES, data=st.data())
def test_a_mutated_header(change: tuple[float, float, bytes, bool], data: st.DataObject, tmp_path: Path) -> None:
    model = tmp_path / "model"
    if not model.exists():
        write_model(model)
        (tmp_path / "whole").write_bytes((model / "model.safetensors").read_bytes())
    content = (tmp_path / "whole").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(data.draw(mutations(json.loads(content[8:end])))).encode()
    header = spliced(header, change) if data.draw(st.booleans()) else header
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + content[end:])
    refused_or_read(lambda: look(model))


@fuzzed
@given(data=st.data())
def test_a_mutated_adapter(data: st.DataObject, tmp_path: Path) -> None:
    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["q"],
        "init_lora_weights": True,
        "bias": "none",
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps(data.draw(mutations(config))))
    write_safetensors(tmp_path / "adapter_model.safetensors", {"a": (2, 2)})
    refused_or_read(lambda: check_adapter(Lora(rank=2, alpha=4, path=str(tmp_path))))


def toml_text(raw: dict[str, Any]) -> str:
    """TOML of a nested dict, with one table a section; null, which it lacks, is a text."""
    return "".join(f"{toml_key(key)} = {toml_value(whole(value))}\n" for key, value in raw.items())


def whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [whole(item) for item in value]
    return "null" if value is None else value


@pytest.fixture(scope="module")
def run_file() -> dict[str, Any]:
    from msgspec import to_builtins

    loaded = load_config(ROOT / "conf" / "quickstart.toml")
    return {key: value for key, value in json.loads(json.dumps(to_builtins(loaded))).items() if value}


@fuzzed
@given(data=st.data())
def test_a_mutated_run_file(data: st.DataObject, tmp_path: Path, run_file: dict[str, Any]) -> None:
    text = toml_text(data.draw(mutations(run_file)))
    content = spliced(text.encode(), data.draw(BYTES)) if data.draw(st.booleans()) else text.encode()
    (tmp_path / "run.toml").write_bytes(content)
    refused_or_read(lambda: load_config(tmp_path / "run.toml"))


@fuzzed
@given(data=st.data())
def test_a_mutated_override(data: st.DataObject, run_file: dict[str, Any]) -> None:
    section = data.draw(st.sampled_from(sorted(run_file)))
    key = data.draw(st.sampled_from(sorted(run_file[section])))
    value = data.draw(ODD.map(lambda odd: toml_value(whole(odd))) | st.text(max_size=20))
    where = data.draw(
        st.sampled_from([f"{section}.{key}", section, key, f"{section}.{key}.a", "." * 5, "a." * 70 + "a"])
    )
    refused_or_read(lambda: load_config(ROOT / "conf" / "quickstart.toml", f"{where}={value}"))


# ── datasets ──────────────────────────────────────────────────────────────────────────────────

ROW: dict[str, Any] = {
    "prompt": [{"role": "user", "content": [{"type": "text", "text": "<image> 2+2?"}]}], "answer": "4", "data_source": "x",
    "images": ["a.png"], "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
    "extra_info": {"index": 1, "level": [1, None]}, "reward_model": {"ground_truth": "4"},
}  # fmt: skip
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)


@fuzzed
@given(rows=st.lists(mutations(ROW), min_size=1, max_size=4), change=st.none() | BYTES)
def test_mutated_rows(rows: list[dict[str, Any]], change: Any, tmp_path: Path) -> None:
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "rows.jsonl").write_bytes(spliced(content, change) if change else content)
    refused_or_read(lambda: inspect(tmp_path / "rows.jsonl"))


@fuzzed
@given(changes=st.lists(BYTES, min_size=1, max_size=3))
def test_a_spliced_table_or_picture(changes: list[Any], tmp_path: Path) -> None:
    table = tmp_path / "rows.parquet"
    if not (tmp_path / "whole").exists():
        parquet.write_table(pa.Table.from_pylist([ROW] * 3), tmp_path / "whole")
    content, picture = (tmp_path / "whole").read_bytes(), PNG
    for change in changes:
        content, picture = spliced(content, change), spliced(picture, change)
    (tmp_path / "a.png").write_bytes(picture)
    table.write_bytes(content)
    refused_or_read(lambda: inspect(table))
    parquet.write_table(pa.Table.from_pylist([ROW] * 3), table)
    refused_or_read(lambda: inspect(table))
