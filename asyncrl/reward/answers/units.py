r"""
Units of an answer: those that convert, and words that only name what is counted.

    km/h, kilometers per hour      length¹ time⁻¹, 5/18 of m/s        m^2, square meters, ㎡      length²
    red balls                      the words "red ball"               thousand, 万                a factor, no unit

The vocabulary is closed, so that a letter is not a unit because some unit in the world is called so.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby

from msgspec import Struct

from asyncrl.reward.answers.notation import Token
from asyncrl.reward.answers.value import Expression, Number, Operation, Symbol

F = Fraction
KINDS: Mapping[str, tuple[str, str, Fraction | int]] = {
    "m": ("Length", "meter metre 米", 1),
    "km": ("Length", "kilometer kilometre 千米 公里", 1000),
    "dm": ("Length", "decimeter decimetre 分米", F(1, 10)),
    "cm": ("Length", "centimeter centimetre 厘米", F(1, 100)),
    "mm": ("Length", "millimeter millimetre 毫米", F(1, 1000)),
    "\\mum": ("Length", "micrometer micrometre micron 微米", F(1, 10**6)),
    "nm": ("Length", "nanometer nanometre 纳米", F(1, 10**9)),
    "in": ("Length", "inch inche", F(254, 10000)),
    "ft": ("Length", "foot feet", F(3048, 10000)),
    "yd": ("Length", "yard", F(9144, 10000)),
    "mi": ("Length", "mile", F(1609344, 1000)),
    "g": ("Mass", "gram gm 克", 1),
    "kg": ("Mass", "kilogram kilo 千克 公斤", 1000),
    "mg": ("Mass", "milligram 毫克", F(1, 1000)),
    "lb": ("Mass", "lbs", F(45359237, 100000)),
    "pound": ("Pound", "", 1),
    "£": ("Sterling", "sterling gbp 英镑", 1),
    "oz": ("Mass", "ounce", F(45359237, 1600000)),
    "s": ("Time", "second sec 秒", 1),
    "ms": ("Time", "millisecond", F(1, 1000)),
    "min": ("Time", "minute 分钟 分", 60),
    "h": ("Time", "hour hr 小时 时", 3600),
    "day": ("Time", "天", 86400),
    "week": ("Time", "周", 604800),
    "month": ("Months", "月", 1),
    "year": ("Months", "yr 年", 12),
    "dollar": ("Dollars", "usd buck 美元", 1),
    "cent": ("Dollars", "¢ 美分", F(1, 100)),
    "euro": ("Euros", "eur 欧元", 1),
    "yuan": ("Yuan", "rmb cny 元 块 人民币", 1),
    "rupee": ("Rupees", "inr", 1),
    "°": ("Angle", "degree deg 度", 1),
    "rad": ("Radians", "radian 弧度", 1),
    "°C": ("Celsius", "celsius", 1),
    "°F": ("Fahrenheit", "fahrenheit", 1),
    "°K": ("Kelvin", "K kelvin", 1),
    "%": ("Percent", "percent", 1),
    "unit": ("Unit", "单位", 1),
    "A": ("Current", "ampere amp", 1),
    "V": ("Voltage", "volt", 1),
    "C": ("Charge", "coulomb", 1),
    "T": ("Field", "tesla", 1),
    "F": ("Capacity", "farad", 1),
    "H": ("Inductance", "henry", 1),
    "\\Omega": ("Resistance", "ohm Ω", 1),
    "mol": ("Amount", "mole", 1),
    "person": ("People", "people 人", 1),
}
"""Units by name: the kind of thing that each measures, its other names in the singular, and its size."""
NEWTON, JOULE = {"Mass": 1, "Length": 1, "Time": -2}, {"Mass": 1, "Length": 2, "Time": -2}
COMPOSED: Mapping[str, tuple[str, Mapping[str, int], Fraction | int]] = {
    "L": ("liter litre l 升", {"Length": 3}, F(1, 1000)),
    "mL": ("milliliter millilitre ml 毫升", {"Length": 3}, F(1, 10**6)),
    "mph": ("", {"Length": 1, "Time": -1}, F(1609344, 3600000)),
    "kmph": ("", {"Length": 1, "Time": -1}, F(5, 18)),
    "Hz": ("hertz", {"Time": -1}, 1),
    "N": ("newton", NEWTON, 1000),
    "kN": ("kilonewton", NEWTON, 10**6),
    "J": ("joule", JOULE, 1000),
    "kJ": ("kilojoule", JOULE, 10**6),
    "W": ("watt", {**JOULE, "Time": -3}, 1000),
    "kW": ("kilowatt", {**JOULE, "Time": -3}, 10**6),
    "Pa": ("pascal", {"Mass": 1, "Length": -1, "Time": -2}, 1000),
}
TEMPERATURES = frozenset(("c", "f", "k", "celsius", "fahrenheit", "kelvin"))
SINGLE = frozenset("mghsLNJW")
"""Letters that are units after a gap."""
SHORT = frozenset(("cm", "mm", "km", "ft", "mi", "in", "yd", "kg"))
"""Two-letter units that nobody reads as variables, whatever stands before them."""
MULTIPLES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MULTIPLES |= {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8}
POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
LATER_POWERS = {"squared": 2, "cubed": 3}
STEMS = "zero|one|two|three|four|five|six|seven|eight|nin|nine|ten|eleven|twel[fv]|twelve|thir|fif|fourth|eigh|twent"
NUMBERS = re.compile(
    rf"(?:{STEMS})(?:teen|t?y|ie)?(?:th)?s?|(?:hundred|thousand|[mbtr]+illion|lakh|crore|score)(?:th)?s?|first|second"
    r"|.*[零一二三四五六七八九十百千万亿两半分成倍以左右多少约近].*"
)
"""Words of numbers, which make another one of what they stand beside."""
NO_UNITS = frozenset(
    "or and to not but than less more most least either neither nor if plus minus times divided over half "  # noqa: SIM905
    "halves third thirds quarter quarters dozen dozens tenth hundredth thousandth through between maybe perhaps is are "
    "equals mod modulo pair pairs double twice about approximately approx around where when for remainder no factorial "
    "choose point below above under beyond out otherwise unless except without else".split()
)
"""Words that make another answer, or several, of what they stand beside."""
ARTICLES = frozenset(("a", "an", "the"))
MOST_WORDS = 8


class Measure(Struct, frozen=True):
    """A product of powers of what is measured."""

    dimensions: frozenset[tuple[str, int]] = frozenset()
    """Powers of lengths, masses, times ...; each other phrase, in small letters, is a kind of its own."""
    scale: Fraction = Fraction(1)
    """Size of the unit."""


def _vocabulary() -> Iterator[tuple[str, tuple[Mapping[str, int], Fraction]]]:
    for short, (kind, names, scale) in KINDS.items():
        for name in (short, *names.split()):
            yield name, ({kind: 1}, Fraction(scale))
    for short, (names, dimensions, scale) in COMPOSED.items():
        for name in (short, *names.split()):
            yield name, (dimensions, Fraction(scale))


KNOWN = dict(_vocabulary())
"""Dimensions and scale of each unit by its names."""


def known(word: str) -> str:
    """Name under which `KNOWN` has a word, in the singular or plural; empty if it has not."""
    lower = word.lower()
    names = (word, lower, lower.removesuffix("s"), lower.removesuffix("es"))
    return next((name for name in names if name in KNOWN and (len(name) > 1 or name == word)), "")


def is_unit_word(word: str) -> bool:
    """True for a unit, and for a word that is said of units: ``sq``, ``squared``, ``million``."""
    lower = word.lower()
    return bool(known(word)) or lower in POWERS or lower in LATER_POWERS or lower in MULTIPLES


def unit_of(written: Sequence[Token]) -> tuple[Measure, int] | None:
    """Unit of the tokens after a value, and the factor, such as a million, by which they multiply it; None if none."""
    texts, factor = _texts(written), 1
    while texts and (multiple := MULTIPLES.get(texts[0].lower().removesuffix("s"))):
        factor *= multiple
        texts.pop(0)
    if any(not known(text) and (text.lower() in NO_UNITS or NUMBERS.fullmatch(text.lower())) for text in texts):
        return None
    if not texts and factor == 1:
        return None
    factors = _factors(texts)
    if factors is None or len(factors) > MOST_WORDS:
        return None
    dimensions: dict[str, int] = {}
    scale = Fraction(1)
    for (name, power), group in groupby(factors, lambda one: (known(one[0]), one[1])):
        if not name:
            dimensions[" ".join(singular(word) for word, _ in group)] = power
            continue
        for _ in group:
            parts, size = KNOWN[name]
            scale *= size**power
            for part, times in parts.items():
                dimensions[part] = dimensions.get(part, 0) + times * power
    return Measure(frozenset((part, times) for part, times in dimensions.items() if times), scale), factor


def _texts(written: Sequence[Token]) -> list[str]:
    """Words and signs of a unit, without those that only set it: ``sq. ft`` and ``sq ft`` are one."""
    texts: list[str] = []
    for token in _in_line(written):
        text = token.text
        while not known(text) and text[:1] in MULTIPLES:
            texts.append(text[0])
            text = text[1:]
        for prefix, word in (("平方", "square"), ("立方", "cubic")):
            if text.startswith(prefix):
                texts.append(word)
                text = text.removeprefix(prefix)
        if texts and (texts[-1] in ("^", "^-") or texts[-1] == "\\mu") and text not in ("{", "}"):
            texts[-1] += text
        elif texts and known(texts[-1]) in ("°", "degree") and text.lower() in TEMPERATURES:
            texts[-1] = f"°{text[0].upper()}"
        elif text not in ("*", ".", "{", "}", ""):
            texts.append(text)
    return texts


def _in_line(written: Sequence[Token]) -> Sequence[Token]:
    r"""Tokens of ``\frac{km}{h}`` as those of ``km/h``."""
    texts = [token.text for token in written]
    if texts[:2] != ["frac", "{"] or texts[-1] != "}" or texts.count("}") != 2 or texts.count("{") != 2:
        return written
    end = texts.index("}")
    return [*written[2:end], Token("sign", "/"), *written[end + 2 : -1]] if texts[end + 1] == "{" else written


def _factors(texts: Sequence[str]) -> list[tuple[str, int]] | None:
    """Words with their powers, which are negative after ``/`` and ``per``; None for what is no product of words."""
    found: list[tuple[str, int]] = []
    sign = power = 1
    rest = iter(texts)
    for text in rest:
        word = text.lower()
        if word in ("/", "per"):
            if sign < 0 or (word == "/" and not found):
                return None
            sign = -1
        elif word in POWERS:
            power = POWERS[word]
        elif times := LATER_POWERS.get(word, 0) or _power(word):
            if not found:
                return None
            found[-1] = found[-1][0], found[-1][1] * times
        elif word[0].isalpha() or known(text):
            if text not in ARTICLES:
                found.append((text, sign * power))
                power = 1
        else:
            return None
    return found if power == 1 else None


def _power(text: str) -> int:
    """2 of ``^2``; 0 of what is no power."""
    return int(text[1:]) if re.fullmatch(r"\^-?[1-9]", text) else 0


def singular(word: str) -> str:
    """A word that is no unit, without case and plural."""
    word = word.casefold()
    if word.endswith("ies") and len(word) > 4:
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def conversion(one: Measure | None, other: Measure | None) -> Expression | None:
    """Factor from one unit to another, which is 1 if one is missing; None if they measure different things."""
    if one is None or other is None:
        return Number(Fraction(1))
    for mine in _senses(one):
        for wanted in _senses(other):
            if mine.dimensions == wanted.dimensions:
                is_any = any(name == "Unit" for name, _ in one.dimensions | other.dimensions)
                return Number(Fraction(1) if is_any else mine.scale / wanted.scale)
    turn, kinds = Symbol("\\pi"), (dict(one.dimensions), dict(other.dimensions))
    factor = Number(one.scale / other.scale * (180 if "Radians" in kinds[0] else Fraction(1, 180)))
    if kinds in (({"Angle": 1}, {"Radians": 1}), ({"Radians": 1}, {"Angle": 1})):
        return Operation("*" if "Angle" in kinds[0] else "/", (factor, turn))
    return None


def _senses(measure: Measure) -> Iterator[Measure]:
    """Meanings of a unit: a pound is a mass or money, a unit one of length, whichever."""
    yield measure
    for name, meant in (("Pound", "Mass"), ("Pound", "Sterling"), ("Unit", "Length")):
        if power := dict(measure.dimensions).get(name):
            rest = measure.dimensions - {(name, power)} | {(meant, power)}
            size = Fraction(KINDS["lb"][2]) ** power if meant == "Mass" else Fraction(1)
            yield Measure(rest, measure.scale * size)
