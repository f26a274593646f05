"""Random models that read pictures, requests with pictures, and log-probs to compare with."""

from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image as Picture
from transformers import AutoModelForImageTextToText, PreTrainedModel, Qwen2VLImageProcessorPil

from asyncrl.engine import Request
from asyncrl.messages.trajectory import Sampling
from asyncrl.vision.processor import ImageProcessor
from tests.conftest import BEYOND_TOKENIZER, draw_picture

FAMILIES = ("qwen3_vl", "qwen2_5_vl")


def load(path: Path) -> tuple[PreTrainedModel, ImageProcessor]:
    processor = ImageProcessor.load(path)
    assert processor is not None
    model = AutoModelForImageTextToText.from_pretrained(path, local_files_only=True)
    return model.eval().requires_grad_(False), processor


def picture_request(
    processor: ImageProcessor, *sizes: tuple[int, int], seed: int | None = 0, first: int = 0, **sampling: Any
) -> Request:
    """Some words, and a picture of each size among them; ``first`` is the seed of the first picture's colours."""
    files = tuple(draw_picture(*size, seed=place) for place, size in enumerate(sizes, first))
    begin, image, end = processor.placeholder_ids
    ids = [3, 4]
    for size in sizes:
        ids += [begin, *[image] * processor.num_tokens(processor.grid(*size)), end, 5]
    asked = {"max_tokens": 12} | sampling
    return Request(prompt_ids=[*ids, 6, 7], sampling=Sampling(**asked), seed=seed, images=files)


def full_logprobs(path: Path, model: PreTrainedModel, request: Request, completion_ids: list[int]) -> list[float]:
    """Log-probs of a completion by transformers' own pixels, positions and full forward pass, without vision tokens."""
    ids = torch.tensor([request.prompt_ids + completion_ids])
    pixels = _pixels(path, request, ids, model.config.image_token_id) if request.images else {}
    model.base_model.rope_deltas = None
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False, **pixels).logits[0, len(request.prompt_ids) - 1 : -1]
    model.base_model.rope_deltas = None
    config = model.config
    never = [config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id]
    logits[:, [*never, *BEYOND_TOKENIZER]] = -torch.inf
    logprobs = (logits / (request.sampling.temperature or 1.0)).log_softmax(-1)
    return [float(row[token]) for row, token in zip(logprobs, completion_ids, strict=True)]


def _pixels(path: Path, request: Request, ids: torch.Tensor, image_token_id: int) -> dict[str, torch.Tensor]:
    processor = Qwen2VLImageProcessorPil.from_pretrained(path)
    found = processor([Picture.open(BytesIO(file)) for file in request.images], return_tensors="pt")
    return {**found, "mm_token_type_ids": (ids == image_token_id).int()}
