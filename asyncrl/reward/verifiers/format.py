"""Whether a completion has the shape it was asked for."""

from msgspec import Struct

from asyncrl.errors import ConfigError
from asyncrl.reward.answers.template import GAP, fits, has_each_once
from asyncrl.reward.verifier import VerifierInput


class Format(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """1.0 if the completion, white space at both ends aside, fits the template, else 0.0."""

    template: str
    """Such as ``<think>...</think>...<answer>...</answer>``, where ``...`` is any text, or none."""
    once: bool = True
    """A piece that occurs more often than in the template, such as a second ``</think>``, scores 0."""

    def __post_init__(self) -> None:
        """Refuse a template that everything fits."""
        if not self.template.replace(GAP, "").strip():
            raise ConfigError(f"format: template is {self.template!r}, which every text fits; put the tags in")

    def __call__(self, sample: VerifierInput, /) -> float:
        """The score."""
        text = sample.completion.strip()
        return float(fits(self.template, text) and (not self.once or has_each_once(self.template, text)))
