"""Settings of datasets."""

from typing import Annotated, Literal

from msgspec import Meta

from asyncrl.config.sections.section import Count, Limit, Ratio, Section, listed
from asyncrl.errors import ConfigError
from asyncrl.messages.words import Truncation

TEMPLATE_ARGUMENTS = {
    "messages", "conversation", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize",
    "return_dict", "return_tensors", "return_assistant_tokens_mask", "padding", "truncation", "max_length",
}  # fmt: skip
"""Arguments that asyncrl sets itself, or that would make a chat template return something other than token ids."""


class Data(Section, frozen=True, kw_only=True):
    """Prompts, as parquet or JSONL files. Their order depends only on the seed and the epoch."""

    train: str | list[str]
    """
    File with the columns below, or several: one dataset, unless ``ratios`` is set. ``org/name:split`` or
    ``hf://datasets/org/name:split`` is a dataset of the Hugging Face Hub [train_files].
    """
    ratios: list[Ratio] = []
    """
    Prompts taken from each file of ``train`` in turn, such as ``[3, 1]``. Each file then has its own epochs, so a
    small file with a large ratio is repeated more often. Empty: the files are one dataset.
    """
    held_out: str | list[str] = ""
    """File or files of evaluation prompts, never trained on; empty switches evaluation off [val_files]."""
    prompt_column: str = "prompt"
    """
    Column of the prompt: a text or a list of chat messages. In this and each other column, ``problem.text`` is the key
    ``text`` of the objects in ``problem``, unless a column has that very name [prompt_key].
    """
    as_chat: bool = False
    """
    Make each prompt that is a text one message of the user, so that the model's chat template is applied to it. False:
    the model reads the bare text.
    """
    answer_column: str = "answer"
    """Column of the reference answer that the reward function gets."""
    image_column: str = "images"
    """
    Column of the prompt's pictures: a list of files, each as bytes, a path beside the dataset, or ``{bytes, path}``.
    The prompt has a mark ``<image>`` for each. Empty: no row has pictures, and the mark is text [image_key].
    """
    tools_column: str = "tools"
    """
    Column of the tools that a row shows to the policy, by the chat template, and gives to its environment: a list in
    OpenAI's form, or its JSON text; a row without shows those of the environment. Empty: no row has tools.
    """
    image_folders: list[str] = []
    """
    Further folders whose files ``image_column`` may name. Otherwise a row names files below its dataset's own folder
    alone, wherever links lead: who writes a dataset would choose which files of the broker's machine are read.
    """
    data_source_column: str = "data_source"
    """Column that names the row's dataset, such as ``openai/gsm8k``; it may choose the reward [reward_fn_key]."""
    shuffle: bool = True
    """Draw prompts in random order, a new one each epoch; false keeps the order of the files."""
    max_rows: Limit = 0
    """Rows to train on, drawn by the seed, or the first without ``shuffle``; 0 or -1: all [train_max_samples]."""
    on_bad_row: Literal["refuse", "skip"] = "refuse"
    """
    Handling of rows that are not valid prompts. ``refuse``: the run does not start. ``skip``: they are left out,
    counted and reported. `asyncrl data check` lists all of them.
    """
    chat_template_kwargs: dict[str, str | int | float | bool] = {}
    """Arguments of the model's chat template, such as ``enable_thinking = false`` [apply_chat_template_kwargs]."""
    split_special_tokens: bool = True
    """
    Encode special tokens that the texts of a chat spell, such as ``<|im_end|>``, as characters: rows, answers of tools
    and the policy's own text cannot end a message or begin one. False: they are the tokens that they spell.
    """
    max_prompt_tokens: Count = 512
    """Longest prompt, in tokens; the next two settings handle longer ones [max_prompt_length]."""
    truncation: Truncation = "error"
    """
    Part of a longer prompt that is cut out: ``left`` its beginning, ``right`` its end (and with it the chat template's
    generation prompt), ``middle``. ``error`` drops the prompt as a dead letter, and another prompt replaces it; too
    many in a row end the run.
    """
    filter_overlong_prompts: bool = False
    """
    With ``truncation = "error"``: drop longer prompts with the reason ``overlong_prompt``. They are no failures of the
    run, but `asyncrl dead-letters` names their rows.
    """
    retire_at: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """
    Do not sample a prompt again in later epochs once this share of its group was correct; 0 samples all prompts in
    every epoch. The event ``prompts.retired`` counts them; a run whose prompts are all retired fails.
    """

    @property
    def train_files(self) -> list[str]:
        return listed(self.train)

    @property
    def held_out_files(self) -> list[str]:
        return listed(self.held_out)

    def check(self) -> None:
        """Raise `ConfigError` for the first contradiction between settings of the section."""
        files = self.train_files
        if not files:
            raise ConfigError("data.train is empty; name a parquet or JSONL file")
        for key, named in (("train", files), ("held_out", self.held_out_files)):
            if twice := [path for path in named if named.count(path) > 1]:
                raise ConfigError(f"data.{key} names {twice[0]!r} twice; for more of a file set data.ratios")
        if self.ratios and len(self.ratios) != len(files):
            raise ConfigError(
                f"data.ratios has {len(self.ratios)} numbers, but data.train {len(files)} files; give one for each"
            )
        if self.filter_overlong_prompts and self.truncation != "error":
            raise ConfigError(
                f"data.filter_overlong_prompts has no effect: with truncation={self.truncation!r} no prompt is too "
                f"long; use one of them"
            )
        for name in sorted(TEMPLATE_ARGUMENTS & self.chat_template_kwargs.keys()):
            raise ConfigError(f"data.chat_template_kwargs.{name} is set by asyncrl itself; remove it")
