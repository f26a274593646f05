"""Format check of a completion against a template."""

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.reward.answers.template import GAP, fits, has_each_once
from asyncrl.reward.verifier import VerifierInput


class Format(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the stripped completion, with the thought that its prompt has opened, fits the template, else 0.0."""

    template: str
    """For example ``<think>...</think>...<answer>...</answer>``; ``...`` is any text, or none."""
    once: bool = True
    """A piece that occurs more often than in the template, such as a second ``</think>``, scores 0."""

    def __post_init__(self) -> None:
        if not self.template.replace(GAP, "").strip():
            raise ConfigError(f"format: template is {self.template!r}, which every text fits; put the tags in")

    def __call__(self, inputs: VerifierInput, /) -> float:
        text = f"{inputs.opened}{inputs.completion}".strip()
        return float(fits(self.template, text) and (not self.once or has_each_once(self.template, text)))
