"""Model directories written by hand: config.json, safetensors and tokenizer.json without torch or transformers."""

from pathlib import Path
from typing import Any

import msgspec

Shapes = dict[str, tuple[int, ...]]


def shapes_of(layers: int = 2, vocabulary: int = 8) -> Shapes:
    names: Shapes = {"model.embed_tokens.weight": (vocabulary, 4)}
    for layer in range(layers):
        names[f"model.layers.{layer}.mlp.weight"] = (4, 4)
    return names | {"model.norm.weight": (4,)}


def write_model(path: Path, *, layers: int = 2, vocabulary: int = 8, **config: Any) -> Path:
    """A whole model directory; ``config`` overrides values of its config.json."""
    path.mkdir(parents=True)
    said = {"model_type": "qwen3", "num_hidden_layers": layers, "vocab_size": vocabulary} | config
    (path / "config.json").write_bytes(msgspec.json.encode(said))
    write_safetensors(path / "model.safetensors", shapes_of(layers, vocabulary))
    write_tokenizer(path, vocabulary)
    return path


def write_safetensors(path: Path, shapes: Shapes) -> None:
    """A file of zeros in float32."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, size = end, 4
        for length in shape:
            size *= length
        end = start + size
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    header = msgspec.json.encode(entries)
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(end))


def write_tokenizer(path: Path, tokens: int, added: int = 0) -> None:
    """A tokenizer.json of ``tokens`` words, and ``added`` tokens after them."""
    vocab = {f"word{number}": number for number in range(tokens)}
    more = [{"id": tokens + number, "content": f"<{number}>"} for number in range(added)]
    (path / "tokenizer.json").write_bytes(
        msgspec.json.encode({"version": "1.0", "added_tokens": more, "model": {"type": "WordLevel", "vocab": vocab}})
    )
