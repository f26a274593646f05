from importlib.metadata import version

import pytest
from transformers import Qwen3VLForConditionalGeneration

from asyncrl.errors import ConfigError
from asyncrl.vision.encoded import require_encoded, takes_encoded


class Older:
    def forward(self, input_ids, pixel_values=None, **kwargs): ...


class Newer:
    def forward(self, input_ids, pixel_values=None, mm_encoder_outputs=None, **kwargs): ...


def test_a_model_that_would_ignore_encoded_pictures_is_refused_by_what_it_takes():
    require_encoded(Newer, "model.path=here")
    with pytest.raises(ConfigError) as refused:
        require_encoded(Older, "model.path=here")
    assert str(refused.value) == (
        f"model.path=here reads pictures, which Older of transformers {version('transformers')} does not take encoded "
        f"('mm_encoder_outputs'); install transformers 5.18 or newer, or use a model of text alone"
    )


def test_transformers_takes_encoded_pictures_since_5_18():
    release = tuple(map(int, version("transformers").split(".")[:2]))
    assert takes_encoded(Qwen3VLForConditionalGeneration) == (release >= (5, 18))
