"""The table of the keys of metrics.jsonl has what a run writes, and nothing else."""

import re
from pathlib import Path

from asyncrl.records.step_keys import STEP_KEYS, key_of
from asyncrl.tools.report.charts import CURVES

PACKAGE = Path(__file__).parents[2] / "asyncrl"


def test_every_key_of_the_table_is_written_somewhere() -> None:
    writers = [*(PACKAGE / "broker").rglob("*.py"), *(PACKAGE / "trainer").rglob("*.py")]
    writers += [*(PACKAGE / "algo").rglob("*.py"), PACKAGE / "records" / "measures.py"]
    text = "".join(path.read_text() for path in writers)
    ends = {name: re.escape(name.rstrip("*").removeprefix("critic_")) for name in STEP_KEYS}
    unwritten = [name for name, end in ends.items() if not re.search(rf'"(critic_)?{end}', text)]
    assert unwritten == []


def test_curves_of_report_and_dashboard_are_of_keys_that_are_explained() -> None:
    script = (PACKAGE / "tools" / "dashboard" / "static" / "overview.js").read_text()
    curves = script[script.index("const CURVES") : script.index("const KNOWN")]
    shown = {key for each in re.findall(r"keys: \{(.*?)\}", curves) for key in re.findall(r': "([^"]+)"', each)}
    shown |= {key for curve in CURVES for key in curve.keys.values()}
    assert len(shown) > 30
    assert [key for key in sorted(shown) if key_of(key) is None] == []


def test_a_name_that_a_run_chooses_has_the_meaning_of_its_family() -> None:
    families = {"reward/form": "reward/*", "models/judge.requests": "models/*", "rollout_corr/k3_kl": "rollout_corr/*"}
    for name, family in families.items():
        assert key_of(name) == STEP_KEYS[family]
    assert key_of("reward") == STEP_KEYS["reward"]
    assert key_of("of_my_own_loss") is None
