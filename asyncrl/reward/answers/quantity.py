"""
The thing that an answer measures, apart from its value: a unit, a currency, percent or degrees, the base of a number.

    5 \\text{ cm}^2 ─▶ 5, cm^2      €1250 ─▶ 1250, euro      60\\% ─▶ 60, %      2012_5 ─▶ 2012, base 5
    5 years old ─▶ 5, years old     5 or 6 ─▶ unread: "or" is no unit, and the answer is another one

An answer without a unit has the value of one with it; two units must be the same or be convertible. Linear in time.
"""

import re
from collections.abc import Mapping
from fractions import Fraction

from msgspec import Struct

from asyncrl.reward.answers.final_answer import DOLLAR

MOST_WORDS = 4
"""Words of a unit, such as ``square miles of land``."""

CURRENCIES = {DOLLAR: "dollar", "€": "euro", "£": "pound", "¥": "yuan", "₹": "rupee", "US" + DOLLAR: "dollar"}
CURRENCIES |= {"USD": "dollar", "EUR": "euro", "GBP": "pound", "RMB": "yuan", "CNY": "yuan"}

NAMES = {
    **dict.fromkeys(("meter", "metre", "米"), "m"),
    **dict.fromkeys(("kilometer", "kilometre", "千米", "公里"), "km"),
    **dict.fromkeys(("centimeter", "centimetre", "厘米"), "cm"),
    **dict.fromkeys(("millimeter", "millimetre", "毫米"), "mm"),
    **dict.fromkeys(("inch", "inche"), "in"),
    **dict.fromkeys(("foot", "feet"), "ft"),
    **dict.fromkeys(("yard",), "yd"),
    **dict.fromkeys(("mile",), "mi"),
    **dict.fromkeys(("gram", "gm", "克"), "g"),
    **dict.fromkeys(("kilogram", "kilo", "千克", "公斤"), "kg"),
    **dict.fromkeys(("milligram", "毫克"), "mg"),
    **dict.fromkeys(("second", "sec", "秒"), "s"),
    **dict.fromkeys(("minute", "分钟"), "min"),
    **dict.fromkeys(("hour", "hr", "小时"), "h"),
    **dict.fromkeys(("day", "天"), "d"),
    **dict.fromkeys(("liter", "litre", "l", "升"), "L"),
    **dict.fromkeys(("milliliter", "millilitre", "ml", "毫升"), "mL"),
    **dict.fromkeys(("dollar", "buck", "usd", "美元"), "dollar"),
    **dict.fromkeys(("cent", "¢", "美分"), "cent"),
    **dict.fromkeys(("euro", "eur", "欧元"), "euro"),
    **dict.fromkeys(("yuan", "rmb", "元", "块", "人民币"), "yuan"),
    **dict.fromkeys(("pound sterling", "gbp", "英镑"), "pound"),
    **dict.fromkeys(("degree", "deg", "度"), "degree"),
    **dict.fromkeys(("percent", "per cent"), "%"),
    **dict.fromkeys(("mile per hour", "miles per hour"), "mph"),
    **dict.fromkeys(("kilometers per hour", "kilometer per hour", "km per hour", "kmph", "km/hr"), "km/h"),
    **dict.fromkeys(("meters per second", "meter per second", "m per s"), "m/s"),
    **dict.fromkeys(("unit", "sq unit", "square unit"), "unit"),
}
"""Units by their names in the singular."""
SCALES: Mapping[str, tuple[str, Fraction | int]] = {
    "m": ("length", 1),
    "km": ("length", 1000),
    "cm": ("length", Fraction(1, 100)),
    "mm": ("length", Fraction(1, 1000)),
    "in": ("length", Fraction(254, 10000)),
    "ft": ("length", Fraction(3048, 10000)),
    "g": ("mass", 1),
    "kg": ("mass", 1000),
    "mg": ("mass", Fraction(1, 1000)),
    "s": ("time", 1),
    "min": ("time", 60),
    "h": ("time", 3600),
    "d": ("time", 86400),
    "L": ("volume", 1),
    "mL": ("volume", Fraction(1, 1000)),
    "dollar": ("dollars", 1),
    "cent": ("dollars", Fraction(1, 100)),
}
"""Kind of thing that a unit measures, and how much of it."""
SHORT = {"m", "g", "s", "h", "d", "L", "l", "N", "J", "W", "V", "A", "K", "C", "F", "Hz", "Pa", "kW", "kJ", "kN", "mg"}
SHORT |= {
    "km",
    "cm",
    "mm",
    "in",
    "ft",
    "yd",
    "mi",
    "kg",
    "min",
    "mL",
    "ml",
    "lb",
    "oz",
    "hr",
    "mph",
    "sec",
    "gm",
    "deg",
}
"""Units that are letters, and could be variables if no space stood before them."""
NO_VARIABLES = SHORT - {"m", "g", "s", "h", "d", "l", "A", "C", "F", "K", "N", "V"}
"""Short units that are units without a space too."""
NO_UNITS = {"or", "and", "to", "not", "but", "than", "less", "more", "either", "neither", "nor", "if", "plus", "minus"}
NO_UNITS |= {"times", "divided", "over", "half", "halves", "third", "thirds", "quarter", "quarters", "dozen", "dozens"}
NO_UNITS |= {
    "hundred",
    "hundreds",
    "thousandth",
    "hundredth",
    "through",
    "between",
    "maybe",
    "is",
    "equals",
    "mod",
    "modulo",
}
NO_UNITS |= {
    "pairs",
    "pair",
    "double",
    "twice",
    "squared",
    "cubed",
    "about",
    "approximately",
    "e",
    "i",
    "where",
    "when",
    "for",
}
"""Words that make another answer, or several, of what they follow."""
MULTIPLES = {"thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "万": 10**4, "亿": 10**8}

PREFIX = re.compile(rf"-?\s?({'|'.join(sorted(map(re.escape, CURRENCIES), key=len, reverse=True))})\s?(?=[-+.0-9])")
BASE = re.compile(r"([0-9][0-9A-Za-z]{0,60})_\{?\s?(?:\\text\{)?\s?([0-9]{1,2}|[a-z]{2,9})\s?\}?\}?")
PERCENT = re.compile(r"\s?\\?%$")
CIRCLE = re.compile(r"\s?\^\s?\{?\s?\\circ\s?\}?\s?(?:\\(?:text|mathrm|rm)\s?\{\s?)?([CFK]?)\s?\}?$")
POWER = r"\s?(\^\s?\{?\s?-?[0-9]\s?\}?)?"
IN_FONT = re.compile(
    rf"[\s~]*\\(?:text|textrm|textbf|textit|mathrm|mbox|operatorname)\s?\{{([^{{}}]{{1,60}})\}}{POWER}$"
)
IN_WORDS = re.compile(rf"(\s*)([A-Za-z/.'µ一-鿿-]+(?: [A-Za-z/.'µ一-鿿-]+){{0,{MOST_WORDS - 1}}}){POWER}$")
CHINESE = re.compile(r"[一-鿿]{1,8}")
WORD = re.compile(r"[A-Za-zµ][A-Za-zµ'/.-]*|[一-鿿]{1,8}|\\mu\s?[a-z]|\\Omega")


class Quantity(Struct, frozen=True):
    """A value as text, and what it measures."""

    value: str
    unit: str = ""
    """Empty if it measures nothing."""
    factor: int = 1
    """Multiple of the value: a thousand, a million."""


def quantity(text: str) -> Quantity:
    """Read an answer in one notation (`plain`); an answer that has no unit is all value."""
    if found := BASE.fullmatch(text):
        return Quantity(found[1], f"base {found[2]}")
    if found := PREFIX.match(text):
        sign = "-" if text.startswith("-") else ""
        inner = quantity(sign + text[found.end() :].strip())
        return Quantity(inner.value, CURRENCIES[found[1]], inner.factor)
    if (found := PERCENT.search(text)) and found.start():
        return Quantity(text[: found.start()], "%")
    if (found := CIRCLE.search(text)) and found.start():
        return Quantity(text[: found.start()], f"degree{found[1]}")
    if (found := IN_FONT.search(text)) and found.start():
        return _measured(text[: found.start()], found[1], found[2], text)
    if (found := IN_WORDS.search(text)) and found.start() and text[found.start() - 1] in "0123456789}!)":
        words = found[2]
        is_apart = bool(found[1]) and (len(words) > 1 or words in SHORT)
        if is_apart or words in NO_VARIABLES or CHINESE.match(words):
            return _measured(text[: found.start()], words, found[3], text)
        if len(words) > 3:
            return _measured(text[: found.start()], words, found[3], text)
    return Quantity(text)


def _measured(value: str, words: str, power: str | None, text: str) -> Quantity:
    """A value with its unit, unless the words are no unit."""
    words = " ".join(words.replace("~", " ").split()).strip(".")
    first, _, rest = words.partition(" ")
    if first in MULTIPLES:
        return Quantity(value.strip(), _unit(rest, power), MULTIPLES[first])
    for multiple in ("万", "亿"):
        if words.startswith(multiple):
            return Quantity(value.strip(), _unit(words[1:], power), MULTIPLES[multiple])
    spoken = WORD.findall(words)
    if not words or NO_UNITS.intersection(word.lower() for word in spoken) or re.search(r"[0-9()=]", words):
        return Quantity(text)
    return Quantity(value.strip(), _unit(words, power), 1)


def _unit(words: str, power: str | None) -> str:
    """One name for a unit."""
    if words in SHORT:
        name, square = {"l": "L", "ml": "mL", "hr": "h", "sec": "s", "gm": "g"}.get(words, words), ""
    else:
        name, square = words.lower(), ""
        for word, found in (
            ("square ", "^2"),
            ("sq ", "^2"),
            ("sq. ", "^2"),
            ("cubic ", "^3"),
            ("平方", "^2"),
            ("立方", "^3"),
        ):
            if name.startswith(word) and name != "square unit":
                name, square = name.removeprefix(word), found
        single = name[:-1] if len(name) > 2 and name.endswith("s") and not name.endswith("ss") else name
        name = NAMES.get(name, NAMES.get(single, single))
    if power:
        square = "^" + "".join(character for character in power if character in "-0123456789")
    return f"{name}{square}" if name else ""


def conversion(given: str, answer: str) -> Fraction | None:
    """Factor from one unit to another; 1 if one of the two is missing, None if they measure different things."""
    if not given or not answer or given == answer:
        return Fraction(1)
    if "unit" in (given.partition("^")[0], answer.partition("^")[0]):
        return Fraction(1)
    if set(given.split()) & set(answer.split()) - {"of", "per", "the", "base"} and "base" not in (
        given[:4],
        answer[:4],
    ):
        return Fraction(1)
    (name, _, power), (other, _, other_power) = given.partition("^"), answer.partition("^")
    if power != other_power or name not in SCALES or other not in SCALES:
        return None
    (kind, size), (other_kind, other_size) = SCALES[name], SCALES[other]
    factor = Fraction(size) / Fraction(other_size)
    whole = int(power or 1)
    return (factor**whole if whole > 0 else 1 / factor**-whole) if kind == other_kind else None
