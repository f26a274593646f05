"""Environments and agents of real packages, trained for some steps with real processes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncrl.tools.toy.models import save_model, tokenizer_from_words
from asyncrl.tools.toy.text_model import TextModelSizes, random_model
from tests.episodes.environments.agents import PYTHON, has
from tests.examples.test_agents import FRAMEWORKS, HANGMAN, OPENENV, POLICIES, serving_echo, write_words
from tests.integration.conftest import StartRun, ToyRun, samples, starting_runs

pytestmark = pytest.mark.slow("whole runs of real processes")
ROOT = Path(__file__).parents[2]
AGENTS = ROOT / "examples" / "agents"
STEPS = 5
FEW = (
    "trainer.warmup_steps=1",
    "schedule.groups_per_step=2",
    "schedule.group_size=4",
    "evaluation.at_start=false",
    "evaluation.at_end=false",
)
"""A process for each episode: few of them."""
ONE_GROUP = ("schedule.groups_per_step=1", "schedule.group_size=4", "schedule.staleness=0")
"""Fewer still; each step trains tokens of its own version, whose log-probs the trainer's must equal."""
SIZES = TextModelSizes(layers=1, hidden_size=32, intermediate_size=64, heads=2, kv_heads=1, head_dim=16)


def needs(python: str, package: str) -> None:
    if not Path(python).exists() or (python == PYTHON and not has(package)):
        pytest.skip(f"needs {package} in {python}: run bin/venv-agents")


@pytest.fixture
def start(hidden_sums: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartRun]:
    with starting_runs(hidden_sums, tmp_path_factory) as start:
        yield start


def assert_trained(run: ToyRun, *, turns: float = 1.0) -> None:
    assert run.code == 0, run.errors
    steps = run.directory.read_metrics()
    assert len(steps) == STEPS
    assert sum(step.get("turns_mean", 0.0) for step in steps) / STEPS >= turns, "rows without an environment have none"
    assert any(step["advantage_std"] > 0 for step in steps), "some group had unequal rewards"
    assert max(step["logprob_gap_max"] for step in steps if "logprob_gap_max" in step) < 1e-4
    run.assert_adds_up()


@pytest.mark.long("trains until the agent has learned; examples/test_agents.py runs each program")
@pytest.mark.parametrize(
    ("python", "package", "program"),
    [
        (PYTHON, "openai", "openai_boxes.py"),
        (PYTHON, "verifiers", "verifiers_agent.py"),
        (OPENENV, "openenv", "openenv_boxes.py"),
    ],
)
def test_a_program_of_a_package_is_trained(start: StartRun, python: str, package: str, program: str) -> None:
    needs(python, package)
    command = json.dumps([python, str(AGENTS / program)])
    run = start("environment.function=", f"environment.command={command}", *FEW, steps=STEPS).end()
    assert_trained(run, turns=1.5)


@pytest.mark.long("examples/test_agents.py runs programs under another interpreter")
def test_a_function_under_another_interpreter_is_trained(start: StartRun) -> None:
    needs(PYTHON, "verifiers")
    function = f"environment.function={AGENTS}/verifiers_agent.py:solve"
    assert_trained(start(function, f"environment.python={PYTHON}", *FEW, steps=STEPS).end(), turns=1.5)


CALL = '<tool_call>\n{"name": "add", "arguments": {"left": 2, "right": 3}}\n</tool_call>'
TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}{{ ' heard ' if message.role == 'tool' else '' }}{{ message.content }}{% endfor %}"
)
CHATML = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<tool_call><|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
JUDGE_CALLS = """
def judge(inputs):
    return float(any(turn.observation.endswith("5") for turn in inputs.turns))
"""


def write_run(folder: Path, words: list[str], rows: list[dict[str, object]], template: str, settings: str) -> Path:
    """Folder with a run file for a random model of these words."""
    tokenizer = tokenizer_from_words(words, chat_template=template)
    save_model(folder / "model", random_model(SIZES, tokenizer, 0), tokenizer, lambda _: None)
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    (folder / "toy.toml").write_text(f"""
[run]
name = "toy"
[model]
path = "{folder}/model"
[data]
train = "{folder}/rows.parquet"
max_prompt_tokens = 2000
[schedule]
groups_per_step = 2
group_size = 8
[sampling]
max_tokens = 4
[rollout]
replicas = 1
[trainer]
lr = 1e-2
{settings}
""")
    return folder


@pytest.mark.long("a process for each episode; examples/test_agents.py plays each once")
@pytest.mark.parametrize("framework", POLICIES)
def test_an_agent_of_a_framework_is_trained(
    framework: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not Path(FRAMEWORKS).exists():
        pytest.skip(f"needs {FRAMEWORKS}: run bin/venv-agents")
    prompt = [{"role": "user", "content": "What is 12 + 30?"}]
    command = json.dumps([FRAMEWORKS, str(AGENTS / "frameworks.py"), framework])
    folder = write_run(
        tmp_path,
        [*filter(None, POLICIES[framework]), "It is 41 .", "<|im_start|>", "<|im_end|>"],
        [{"prompt": prompt, "answer": "42"}] * 40,
        CHATML,
        f"""
[environment]
command = {command}
max_turns = 4
max_tokens = 30000
[reward]
function = "episode"
""",
    )
    with starting_runs(folder, tmp_path_factory) as start:
        long = ("trainer.max_tokens_per_micro_batch=40000", "model.overrides.max_position_embeddings=65536")
        # Turns that end by themselves: two of these packages take a reply that was cut for an error.
        run = start(*ONE_GROUP, *long, "sampling.max_tokens=64", steps=STEPS).end()
    assert_trained(run)


def run_in(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, *overrides: str, variables: Mapping[str, str] | None = None
) -> ToyRun:
    with starting_runs(folder, tmp_path_factory) as start:
        return start(*overrides, steps=STEPS, environment=variables).end()


@pytest.mark.long("a process for each episode; examples/test_agents.py plays each once")
def test_a_taskset_of_verifiers_is_trained_by_its_id(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    needs(PYTHON, "verifiers")
    variables = write_words(tmp_path / "words", "lion", "tiger")
    program, rows = AGENTS / "verifiers_agent.py", tmp_path / "rows.jsonl"
    prepare = [PYTHON, str(program), "textarena", "--config", HANGMAN, "--rows", str(rows), "--num", "40"]
    subprocess.run(prepare, env=os.environ | variables, check=True)
    folder = write_run(
        tmp_path,
        [*(f"[{letter}]" for letter in "LIONTGER"), "[LION]", "[TIGER]", "<|im_start|>", "<|im_end|>"],
        [json.loads(line) for line in rows.read_text().splitlines()],
        CHATML,
        f"""
[environment]
function = "{program}:solve"
python = "{PYTHON}"
options = {{ taskset = "textarena", config = '{HANGMAN}' }}
workers = 1
max_turns = 12
max_tokens = 2000
[reward]
function = "episode"
""",
    )
    run = run_in(folder, tmp_path_factory, *ONE_GROUP, variables=variables)
    assert_trained(run, turns=1.5)
    assert not any(step["reward/roots"] for step in run.directory.read_metrics()), "all turns follow the rows"


@pytest.mark.long("a process for each episode; examples/test_agents.py plays it once")
def test_an_environment_of_openenv_is_trained_by_its_url(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    needs(OPENENV, "openenv")
    with serving_echo(tmp_path / "echo") as url:
        folder = write_run(
            tmp_path,
            ["a", "aaa", "aaaaa", "<|im_start|>", "<|im_end|>"],
            [{"prompt": [{"role": "user", "content": "Echo."}], "answer": ""}] * 40,
            CHATML,
            f"""
[environment]
command = ["{OPENENV}", "{AGENTS}/openenv_agent.py", "{url}"]
max_turns = 2
max_tokens = 500
[reward]
function = "episode"
""",
        )
        assert_trained(run_in(folder, tmp_path_factory, *ONE_GROUP), turns=1.5)


def test_tools_of_an_mcp_server_are_trained(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    needs(PYTHON, "mcp")
    shutil.copy(ROOT / "tests" / "episodes" / "environments" / "mcp_server.py", tmp_path)
    (tmp_path / "judge.py").write_text(JUDGE_CALLS)
    prompt = [{"role": "user", "content": "add"}]
    words = ["add", CALL, " heard ", *"0123456789", " no", " yes"]
    folder = write_run(
        tmp_path,
        words,
        [{"prompt": prompt, "answer": "5", "data_source": "calls"}] * 8,
        TOOL_TEMPLATE,
        f"""
[environment]
tools = ["mcp:{PYTHON} {tmp_path}/mcp_server.py"]
python = "{PYTHON}"
tool_parser = "hermes"
max_turns = 3
max_tokens = 200
workers = 1
[reward]
function = "{tmp_path}/judge.py:judge"
""",
    )
    run = run_in(folder, tmp_path_factory)
    assert_trained(run)
    turns = [turn for row in samples(run) for turn in row["turns"]]
    assert any(turn["observation"].endswith(" heard 5") for turn in turns), "the server has added"


@pytest.mark.long("tests of data and rewards have the package as well")
def test_a_dataset_of_reasoning_gym_is_trained(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    needs(PYTHON, "reasoning_gym")
    place = subprocess.run(
        [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    beside = f"import sys; sys.path.append({place!r})\n"
    made = str(tmp_path / "made.parquet")
    prepare = ["data", "prepare", "reasoning-gym", "letter_counting", "--size", "40", "-o", made]
    program = f"{beside}sys.argv = ['asyncrl', *{prepare!r}]\nfrom asyncrl.cli.main import main\nmain()"
    subprocess.run([sys.executable, "-c", program], check=True)
    (tmp_path / "judge.py").write_text(
        f"{beside}from asyncrl.reward.verifiers.reasoning_gym import ReasoningGym\n"
        "judging = ReasoningGym()\n\ndef judge(inputs):\n    return judging(inputs)\n"
    )
    answers = [f"<answer>{number}</answer>" for number in range(10)]
    rows = pq.read_table(made).to_pylist()
    folder = write_run(
        tmp_path,
        answers,
        rows,
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        f'[reward]\nfunction = "{tmp_path}/judge.py:judge"\n',
    )
    assert_trained(run_in(folder, tmp_path_factory), turns=0.0)
