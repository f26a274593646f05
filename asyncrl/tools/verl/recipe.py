"""Recipe under translation: options of verl, the settings and comments derived from them, and each option's fate."""

from typing import Any

from asyncrl.errors import ConfigError
from asyncrl.tools.verl.launch import Launch
from asyncrl.tools.verl.lookup import option_for, present
from asyncrl.tools.verl.overrides import Fate

TEXTS = ("data.train", "data.held_out", "data.prompt_column", "data.data_source_column", "data.image_column")
"""Settings that one option decides alone, and that may be empty."""


class LaunchRecipe:
    """
    Options of one launch, and the settings that the rules derive from them.

    Args:
        num_rows: Rows of ``data.train_files``; None if they are unknown.
    """

    def __init__(self, launch: Launch, num_rows: int | None = None) -> None:
        self.mode = launch.mode
        self.release = launch.release
        self.trainer = launch.trainer
        self.variables = launch.variables
        self.given = {present(key): override for key, override in launch.overrides.items()}
        self.fates: dict[str, tuple[Fate, str]] = {}
        """Fates that differ from those in the tables, by verl's key."""
        self.reads: dict[str, None] = {}
        """Options that a rule or a conversion has read, the last one last."""
        engines = (self.get("model_engine"), self.get("actor_rollout_ref.actor.strategy"))
        self.is_megatron = launch.is_megatron or "megatron" in engines
        self.num_rows = num_rows
        self.settings: dict[str, Any] = {}
        self.comments: dict[str, str] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """
        Value of verl's option, or ``default`` if it is absent or null.

        Raises:
            ConfigError: The default is a number and the value is not.
        """
        self._read(key)
        override = self.given.get(key)
        if override is None or override.value is None or override.is_open:
            return default
        if isinstance(default, int | float) and override.value == "":
            self.say(key, "not supported", f"its value is empty: {self.way_to_set(key)}")
            return default
        if isinstance(default, int | float) and not isinstance(override.value, int | float):
            raise ConfigError(f"{override.text}: expected a number such as {default!r}; correct it")
        return override.value

    def _read(self, key: str) -> None:
        if key in self.given:
            self.reads.pop(key, None)
            self.reads[key] = None

    def last_read(self) -> str:
        """Text of the option that was read last; empty if none was."""
        return self.given[next(reversed(self.reads))].text if self.reads else ""

    def way_to_set(self, key: str) -> str:
        """Clause that says how to give an option that is empty: by the script's variable, or by itself."""
        variable = self.variables.get(key)
        return f"give the script's variable, --env {variable}=VALUE" if variable else f"give {key}=VALUE"

    def below(self, prefix: str) -> dict[str, Any]:
        """Options below ``prefix``, by the rest of their keys."""
        start = f"{prefix}."
        found = {key: override.value for key, override in self.given.items() if key.startswith(start)}
        for key in found:
            self._read(key)
        return {key.removeprefix(start): value for key, value in found.items()}

    def put(self, setting: str, value: Any, comment: str = "") -> None:
        """Set asyncrl's ``setting``; the run file has the comment above it."""
        self.settings[setting] = value
        if comment:
            self.comments[setting] = comment

    def say(self, key: str, fate: Fate, why: str) -> None:
        """Replace the fate that the table gives an option, if the launch has the option."""
        if key in self.given:
            self.fates[key] = (fate, why)

    def apply_conversions(self) -> None:
        """Set each setting that one option decides alone."""
        for key, override in self.given.items():
            option = option_for(key)
            if option is None or option.convert is None:
                continue
            if override.value is None or override.is_open:
                continue
            self._read(key)
            if override.value == "" and option.settings[0] not in TEXTS:
                self.say(key, "not supported", f"its value is empty: {self.way_to_set(key)}")
                continue
            try:
                self.put(option.settings[0], option.convert(override.value))
            except (TypeError, ValueError) as error:
                raise ConfigError(f"{override.text}: the value has a wrong type: {error}; correct it") from error
