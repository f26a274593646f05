"""
Files of a Hugging Face model directory that turn a prompt into tokens and pixels: the tokenizer in whichever format it
has, chat templates, and the processor of pictures. By name, so that no weights are among them.
"""

from collections.abc import Iterator
from pathlib import Path

VOCABULARIES = ("tokenizer.json", "*.model", "vocab.json", "vocab.txt", "tekken.json", "*.tiktoken")
"""Files of which a tokenizer has at least one."""
PROMPT_FILES = (
    *VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.jinja",
    "additional_chat_templates/*.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)


def has_vocabulary(model: Path) -> bool:
    return any(path.is_file() for pattern in VOCABULARIES for path in model.glob(pattern))


def prompt_files(model: Path) -> Iterator[Path]:
    """The files of `PROMPT_FILES` that a model directory has; links, as in the cache of the Hub, are followed."""
    return (path for pattern in PROMPT_FILES for path in sorted(model.glob(pattern)) if path.is_file())
