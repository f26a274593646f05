"""
A small part of Prometheus' query language, for the shipped alerts: enough to evaluate each over two scrapes.

    expression   operand [comparison operand]
    operand      term [("-" | "/") term]
    term         NUMBER | time() | SELECTOR | (rate | increase) "(" SELECTOR "[" DURATION "]" ")"

A rate is the change between the two scrapes, which are taken as one range apart; there are no resets, and nothing is
extrapolated. Vectors match by equal labels. Anything else is refused, so that no alert passes unread.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Scrape = Mapping[str, Vector]

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<call>rate|increase)\((?P<ranged>[a-z_]+(?:\{[^}]*\})?)\[(?P<span>\d+m)\]\)"
    r"|(?P<time>time\(\))|(?P<selector>[a-z_]+(?:\{[^}]*\})?)|(?P<operator>==|!=|<|>|-|/))"
)
MATCHER = re.compile(r'\s*([a-z_]+)(=|!=)"([^"]*)"\s*')
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {"-": operator.sub, "/": operator.truediv}


@dataclass(frozen=True)
class Scrapes:
    """Two scrapes; ``now_s`` is the time of the later one."""

    before: Scrape
    now: Scrape
    now_s: float

    def value(self, token: re.Match[str]) -> Vector | float:
        if token["number"]:
            return float(token["number"])
        if token["time"]:
            return self.now_s
        if token["selector"]:
            return selected(self.now, token["selector"])
        span_s = 60.0 * int(token["span"].removesuffix("m"))
        now, before = selected(self.now, token["ranged"]), selected(self.before, token["ranged"])
        increase = {labels: value - before[labels] for labels, value in now.items() if labels in before}
        per = span_s if token["call"] == "rate" else 1.0
        return {labels: value / per for labels, value in increase.items()}


def fires(expression: str, scrapes: Scrapes) -> Vector:
    """The elements for which an alert with this expression fires."""
    tokens, end = [], 0
    while end < len(expression.rstrip()):
        if (token := TOKEN.match(expression, end)) is None:
            raise ValueError(f"not understood: {expression[end:]!r}")
        tokens.append(token)
        end = token.end()
    places = [i for i, token in enumerate(tokens) if token["operator"] in COMPARISONS]
    if len(places) != 1:
        raise ValueError(f"expected one comparison: {expression!r}")
    left, right = _operand(tokens[: places[0]], scrapes), _operand(tokens[places[0] + 1 :], scrapes)
    if not isinstance(left, dict):
        raise ValueError(f"expected a metric on the left: {expression!r}")
    is_true = COMPARISONS[tokens[places[0]]["operator"]]
    return {
        labels: value
        for labels, value in left.items()
        if not (isinstance(right, dict) and labels not in right)
        and is_true(value, right[labels] if isinstance(right, dict) else right)
    }


def _operand(tokens: list[re.Match[str]], scrapes: Scrapes) -> Vector | float:
    if len(tokens) == 1:
        return scrapes.value(tokens[0])
    left, sign, right = tokens
    apply = ARITHMETIC[sign["operator"]]
    one, other = scrapes.value(left), scrapes.value(right)
    if not isinstance(other, dict):
        raise ValueError("expected a metric on the right")
    if not isinstance(one, dict):
        return {labels: apply(one, value) for labels, value in other.items()}
    return {
        labels: apply(one[labels], value)
        for labels, value in other.items()
        if labels in one and (value or sign["operator"] == "-")
    }


def selected(scrape: Scrape, selector: str) -> Vector:
    """Elements of a selector such as ``name{label="value"}``."""
    name, _, inside = selector.partition("{")
    matchers = [MATCHER.fullmatch(part) for part in inside.removesuffix("}").split(",") if part]

    def matches(labels: Labels) -> bool:
        found = dict(labels)
        for matcher in matchers:
            if matcher is None:
                raise ValueError(f"not understood: {selector!r}")
            if (found.get(matcher[1], "") == matcher[3]) != (matcher[2] == "="):
                return False
        return True

    return {labels: value for labels, value in scrape.get(name, {}).items() if matches(labels)}
