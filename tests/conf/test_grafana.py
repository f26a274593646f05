"""conf/grafana: the board's metrics are in the table. tests/integration/test_metrics.py finds them in a live run."""

import json
import re
from pathlib import Path

from asyncrl.records.metrics import METRICS

BOARD = json.loads((Path(__file__).parents[2] / "conf" / "grafana" / "asyncrl.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
NAMES = {name for expression in EXPRESSIONS for name in re.findall(r"\b(?:asyncrl|process)_[a-z_]+", expression)}


def test_every_metric_of_the_board_is_in_the_table():
    assert METRICS.keys() >= NAMES
    assert len(NAMES) > 40


def test_every_panel_has_a_title_a_description_and_a_place_of_its_own():
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert all(panel["title"] and panel["description"].endswith(".") for panel in PANELS)
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_query_is_of_the_chosen_runs_and_a_counter_is_shown_as_a_rate():
    for expression in EXPRESSIONS:
        selectors = re.findall(r"((?:asyncrl|process)_[a-z_]+)\{([^}]*)\}", expression)
        assert selectors, expression
        assert all('run=~"$run"' in inside for _, inside in selectors)
        for name, _ in selectors:
            assert (METRICS[name].kind == "counter") == (f"rate({name}{{" in expression), expression
