"""Datasets on the command line: what is written, what is told, and what is refused."""

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from asyncrl.cli.data import prepare
from asyncrl.cli.main import main
from asyncrl.data.table import open_rows


def asyncrl(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["data", *map(str, arguments)])


def jsonl(path: Path, *rows: object) -> Path:
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with a tokenizer of one token a word, whose template adds two, or three if it is to think."""
    words = Tokenizer(models.WordLevel({"?": 0, "<user>": 1, "<policy>": 2, "<think>": 3}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    template = (
        "<user> {{ messages[0].content }} {% if add_generation_prompt %}<policy>{% endif %}"
        "{% if enable_thinking %} <think>{% endif %}"
    )
    PreTrainedTokenizerFast(tokenizer_object=words, chat_template=template).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


# ── prepare ─────────────────────────────────────────────────────────────────────────────────


def test_the_kinds_are_these():
    assert set(prepare.commands) == {"gsm8k", "geo3k", "math", "dapo-math", "jsonl", "csv", "reasoning-gym", "harbor"}


def test_what_was_prepared_can_be_used(tmp_path):
    source = jsonl(tmp_path / "train.jsonl", {"question": "How many?", "answer": "6 * 7\n#### 42"})
    out = tmp_path / "gsm8k.parquet"

    result = asyncrl("prepare", "gsm8k", source, "-o", out)

    assert (result.exit_code, result.output) == (0, f"{out}: 1 of 1 rows\n")
    assert asyncrl("check", out).exit_code == 0
    assert open_rows(out)[0]["prompt"][0]["content"].startswith("How many? Let's think")


def test_form_instruction_and_split_can_be_chosen(tmp_path):
    source = jsonl(tmp_path / "a.jsonl", {"problem": "How many?", "solution": r"\boxed{42}"})
    out = tmp_path / "math.parquet"

    asyncrl("prepare", "math", source, "-o", out, "--text", "--instruction", "", "--split", "dev")

    row = open_rows(out)[0]
    assert (row["prompt"], row["extra_info"]["split"]) == ("How many?", "dev")


def test_bad_rows_end_with_78_or_are_listed(tmp_path):
    source = jsonl(tmp_path / "a.jsonl", {"q": "1 + 1", "a": 2}, {"q": "", "a": 2}, {"q": "1 + 1", "a": 2})
    command = ["prepare", "jsonl", source, "-o", tmp_path / "out.parquet", "--prompt-column", "q"]
    command += ["--answer-column", "a", "--unique"]

    refused, listed = asyncrl(*command), asyncrl(*command, "--skip-bad")

    assert refused.exit_code == 78
    assert refused.stderr.startswith("asyncrl: 1 of 3 rows cannot be used, and nothing was written")
    assert listed.output.splitlines() == [
        f"{tmp_path}/out.parquet: 1 of 3 rows",
        "  1 repeat others and were left out",
        "  1 row cannot be used",
        f"         1  'q' is empty: {source} line 2",
    ]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("jsonl", '{"kind": 1, "question": "2 + 3?", "label": 5}'),
        ("csv", "kind,question,label\n1,2 + 3?,5\n"),
    ],
)
def test_columns_of_own_rows_are_guessed_and_said(tmp_path, kind, text):
    source, out = tmp_path / f"rows.{kind}", tmp_path / "out.parquet"
    source.write_text(text)

    found = asyncrl("prepare", kind, source, "-o", out)

    assert found.stdout == f"{source}: prompt from 'question', answer from 'label'\n{out}: 1 of 1 rows\n"
    assert open_rows(out)[0]["reward_model"]["ground_truth"] == "5"
    wrong = asyncrl("prepare", kind, source, "-o", out, "--prompt-column", "q")
    assert wrong.exit_code == 78
    assert "has no column 'q': it has kind, question, label; name it with --prompt-column NAME" in wrong.stderr


def test_nested_columns_are_named_with_a_dot_and_what_is_left_out_is_told(tmp_path):
    row = {"problem": {"text": "2 + 3?", "id": 7}, "solution": {"final": 5}, "tags": ["sum"]}
    source, out = jsonl(tmp_path / "rows.jsonl", row, row | {"solution": None}, row), tmp_path / "out.parquet"
    named = ("--prompt-column", "problem.text", "--answer-column", "solution.final")

    refused = asyncrl("prepare", "jsonl", source, "-o", out, *named)
    found = asyncrl("prepare", "jsonl", source, "-o", out, *named, "--skip-bad")

    assert f"{source} line 2: 'solution.final' must be text or a number, got null" in refused.stderr
    assert f"{out}: 2 of 3 rows" in found.stdout
    for name in ("problem.id", "tags"):
        assert f"note: 2 of 2 rows have '{name}', which reaches neither" in found.stdout
        assert f"2 of 2 rows have '{name}', which reaches neither" in asyncrl("check", source, *named).stdout
    assert [open_rows(out)[row]["reward_model"]["ground_truth"] for row in range(2)] == ["5", "5"]


def test_own_rows_in_verls_form_keep_their_answers(tmp_path):
    source = jsonl(tmp_path / "a.jsonl", {"prompt": "2 + 3?", "reward_model": {"ground_truth": "5"}})

    asyncrl("prepare", "jsonl", source, "-o", tmp_path / "out.parquet")

    assert open_rows(tmp_path / "out.parquet")[0]["reward_model"]["ground_truth"] == "5"


def test_dapo_math_and_geo3k_are_prepared_too(tmp_path):
    dapo = {"prompt": [{"role": "user", "content": "1 + 1"}], "reward_model": {"ground_truth": "2"}, "extra_info": {}}
    folder = tmp_path / "test" / "1"
    folder.mkdir(parents=True)
    jsonl(folder / "data.json", {"annotat_text": "Find x.", "choices": ["1", "2"], "answer": "A"})
    (folder / "img_diagram.png").write_bytes(b"PNG")

    for kind, source in (("dapo-math", jsonl(tmp_path / "d.jsonl", dapo, dapo)), ("geo3k", tmp_path / "test")):
        result = asyncrl("prepare", kind, source, "-o", tmp_path / f"{kind}.parquet")
        assert result.exit_code == 0, result.stderr
        assert len(open_rows(tmp_path / f"{kind}.parquet")) == 1


def test_a_missing_file_is_one_sentence(tmp_path):
    result = asyncrl("prepare", "gsm8k", tmp_path / "nowhere.jsonl", "-o", tmp_path / "out.parquet")
    assert result.exit_code == 78
    assert len(result.stderr.splitlines()) == 1


# ── check ───────────────────────────────────────────────────────────────────────────────────


def test_check_says_what_datasets_hold(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in paths:
        pq.write_table(pa.Table.from_pylist([{"prompt": "how many", "answer": "1"}] * 4), path)

    result = asyncrl("check", *paths)

    assert result.exit_code == 0
    assert result.output.count(": 4 rows") == result.output.count("every row can be used") == 2


def test_check_of_an_unusable_dataset_ends_with_78_and_can_name_every_row(tmp_path):
    path = jsonl(tmp_path / "bad.jsonl", *[{"prompt": "", "answer": "1"}] * 3)

    result = asyncrl("check", path, "--list")

    assert result.exit_code == 78
    assert result.stderr.startswith("asyncrl: 3 of 3 rows cannot be used")
    assert result.stdout.splitlines()[-3:] == [f"{path} line {line}: 'prompt' is empty" for line in (1, 2, 3)]


def test_check_counts_tokens_with_a_models_tokenizer(tmp_path, model):
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "one two", "answer": 1}, {"prompt": "one", "answer": 1})

    result = asyncrl("check", path, "--model", model, "--max-prompt-tokens", 1)

    assert "prompt tokens  min 1   5% 1   median 1   95% 2   max 2" in result.stdout
    assert "it has more than 1 tokens" in result.stderr


def test_check_of_a_run_file_reads_its_datasets_as_the_run_would(tmp_path, model):
    chat = [{"role": "user", "content": "one two"}]
    train, held_out = (jsonl(tmp_path / name, {"q": chat, "answer": 1}) for name in ("train", "held_out"))
    config = tmp_path / "run.toml"
    config.write_text(
        f'[model]\npath = "{model}"\n[data]\ntrain = "{train}"\nheld_out = "{held_out}"\nprompt_column = "q"\n'
        f"max_prompt_tokens = 5\nchat_template_kwargs = {{enable_thinking = true}}\n[reward]\nfunction = 'gsm8k'\n"
    )

    result = asyncrl("check", config)

    assert result.exit_code == 0, result.stderr
    assert result.output.count("prompt tokens  min 5 ") == 2
    config.write_text(config.read_text().replace("enable_thinking", "thinking"))
    assert "thinking is set, but the model's chat template never reads it" in asyncrl("check", config).stderr


def test_check_of_a_run_file_names_rows_that_no_reward_is_for(tmp_path):
    train = jsonl(tmp_path / "train.jsonl", {"prompt": "one", "answer": 1, "data_source": "mine"})
    config = tmp_path / "run.toml"
    config.write_text(f'[model]\npath = "model"\n[data]\ntrain = "{train}"\n')

    result = asyncrl("check", config)

    assert result.exit_code != 0
    assert "no reward is for rows with data_source 'mine'" in result.stderr
    config.write_text(config.read_text() + '[reward]\nfunction = "gsm8k"\n')
    assert asyncrl("check", config).exit_code == 0


def test_check_guesses_the_columns_of_a_dataset_alone(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"question": "one two", "solution": 1})
    result = asyncrl("check", path)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"{path}: prompt from 'question', answer from 'solution'\n")
    unknown = asyncrl("check", jsonl(tmp_path / "b.jsonl", {"q": 1, "a": 1}))
    assert unknown.exit_code == 78
    assert "name it with --prompt-column NAME" in unknown.stderr
    named = asyncrl("check", tmp_path / "b.jsonl", "--prompt-column", "q", "--answer-column", "a")
    assert "1 row cannot be used\n         1  'q' is neither text nor a list of chat messages" in named.stdout


def test_check_lists_rows_without_a_prompt_in_columns_that_it_guessed(tmp_path):
    rows = [{"question": "one two", "label": 1, "kind": "a"} for _ in range(4)]
    path = jsonl(tmp_path / "broken.jsonl", *rows, {"question": None, "label": 1, "kind": "a"})

    result = asyncrl("check", path)

    assert result.exit_code == 78
    assert "  1 row cannot be used" in result.stdout.splitlines()
    assert f"{path} line 5: 'question' is null or missing" in result.stderr


def test_columns_of_a_run_file_are_named_there(tmp_path):
    result = asyncrl("check", tmp_path / "run.toml", "--prompt-column", "q")
    assert result.exit_code == 2
    assert "a run file names its columns" in result.stderr


def test_check_with_a_model_tells_of_texts_that_its_chat_template_does_not_reach(tmp_path, model):
    path = jsonl(tmp_path / "a.jsonl", {"prompt": "one two", "answer": 1})
    config = tmp_path / "run.toml"
    config.write_text(f'[model]\npath = "{model}"\n[data]\ntrain = "{path}"\n[reward]\nfunction = "gsm8k"\n')

    for result in (asyncrl("check", path, "--model", model), asyncrl("check", config)):
        assert result.stdout.splitlines()[-1].startswith("note: prompts are plain text")
    config.write_text(config.read_text().replace("[reward]", "as_chat = true\n[reward]"))
    result = asyncrl("check", config)

    assert "note" not in result.output
    assert "0 chat, 1 text, each read as a chat of one message (data.as_chat)" in result.output
    assert "prompt tokens  min 4 " in result.output


def test_a_limit_without_a_tokenizer_is_a_mistake(tmp_path):
    result = asyncrl("check", tmp_path, "--max-prompt-tokens", 1)
    assert result.exit_code == 2
    assert "--max-prompt-tokens needs --model" in result.stderr


def test_check_counts_prompts_of_a_file_that_are_in_one_before_it(tmp_path, model):
    rows = [{"prompt": letter, "answer": "1", "data_source": "openai/gsm8k"} for letter in "abca"]
    train, held_out = jsonl(tmp_path / "train.jsonl", *rows), jsonl(tmp_path / "held.jsonl", *rows[:1])
    run = tmp_path / "run.toml"
    run.write_text(f'[model]\npath = "{model}"\n[data]\ntrain = "{train}"\nheld_out = "{held_out}"\n')
    for arguments in ([train, held_out], [run]):
        lines = asyncrl("check", *arguments).output.splitlines()
        assert "  odd            1 of 4 rows repeat the prompt of an earlier one" in lines
        assert f"{held_out}: 1 of 1 prompts are in a file before it too" in lines
    run.write_text(f'{run.read_text()}[environment]\ntools = ["calculator"]\n')
    assert "before it" not in asyncrl("check", run).output
