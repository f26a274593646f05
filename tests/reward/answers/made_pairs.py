r"""
Pairs of answers made from values: what a pair means is known before it is written, and no parser is asked.

    value    of a kind: a fraction, coefficients, the parts of a union; `means` is what is compared of it
    form     one way to write a value, `\frac{<top>}{<bottom>}`, by its own name; `says` is the value without what it
             leaves out: a unit, a name
    near     another value, off by one digit, sign, letter, term, place, order, unit, bracket or operator
    trap     the text of a value with something added: `n^2 - x`, `5 x y`, `5 (or 6)`
    dress    what changes no value: delimiters, fonts, spaces, Unicode signs, the words before an answer

Any form may be the reference. What the docs do not decide is not made: `same` is None for it.
"""

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from math import comb, factorial, gcd, isqrt
from random import Random
from typing import Any, NamedTuple

Parts = dict[str, object]
"""What forms are made of; None where a value has no such part."""
Dress = dict[str, Callable[[str], str | None]]
Term = tuple[Fraction | int, str]


class Pair(NamedTuple):
    kind: str
    form: str
    """Names of the written form of `given`, and of its dress."""
    answer_form: str
    given: str
    answer: str
    is_same: bool


class Kind(NamedTuple):
    draw: Callable[[Random], Any]
    near: Callable[[Random, Any], Any]
    parts: Callable[[Any], Parts]
    texts: str = ""
    """Forms, divided by bars; without them each part is one."""
    means: Callable[[Any], Any] = lambda value: value
    same: Callable[[Any, Any], bool | None] = operator.eq
    says: Callable[[Any, str], Any] = lambda value, form: value
    traps: Dress = {}
    dress: str = "math"

    def forms(self, value: Any) -> dict[str, str]:
        parts = {f"<{name}>": part for name, part in self.parts(value).items() if part is not None}
        forms = {}
        for form in self.texts.split(" | ") if self.texts else list(parts):
            names = re.findall(r"<\w+>", form)
            if all(name in parts for name in names):
                forms[form] = re.sub(r"<\w+>", lambda found: str(parts[found[0]]), form)
        return forms


# ── text of numbers ──────────────────────────────────────────────────────────────────────────


def only(condition: object, part: object) -> object:
    return part if condition else None


def frac(top: object, bottom: object) -> str:
    return rf"\frac{{{top}}}{{{bottom}}}"


def sqrt(inside: object) -> str:
    return rf"\sqrt{{{inside}}}"


def over(text: str, bottom: int) -> str:
    return frac(text, bottom) if bottom > 1 else text


def sign_of(q: Fraction | int) -> str:
    return "-" * (q < 0)


def tex(q: Fraction | int) -> str:
    return sign_of(q) + over(str(abs(q.numerator)), q.denominator)


def decimal(q: Fraction | int) -> str | None:
    """Finite, without a zero at its end."""
    for places in range(30):
        if (scaled := Fraction(q) * 10**places).denominator == 1:
            digits = str(abs(scaled.numerator)).rjust(places + 1, "0")
            return sign_of(q) + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)
    return None


def grouped(text: str, sign: str) -> str | None:
    """With a sign between the thousands of the whole part, if it has any."""
    full, dot, rest = text.partition(".")
    groups = re.split(r"(?<=\d)(?=(?:\d{3})+\b)", full)
    return sign.join(groups) + dot + rest if len(groups) > 1 else None


def add(*terms: Term, gap: str = "") -> str:
    """The sum of coefficients and letters, as it is written: no 0, no 1 before letters, no plus in front."""
    text = ""
    for factor, letters in terms:
        if factor:
            size = letters if letters and abs(factor) == 1 else tex(factor).strip("-") + letters
            text += f"{gap}{sign_of(factor) or '+'}{gap}{size}" if text else sign_of(factor) + size
    return text or "0"


# ── near values ──────────────────────────────────────────────────────────────────────────────


def whole(random: Random, low: int = 1, high: int = 9) -> int:
    return random.randint(low, high) * random.choice((1, 1, -1))


def small(random: Random) -> Fraction:
    return Fraction(whole(random), random.choice((1, 1, 1, 2, 3, 5)))


def ratio(random: Random) -> Fraction:
    bottom = random.choice((1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 25, 40))
    return Fraction(whole(random, 1, random.choice((9, 99, 999))), bottom)


def near_number(random: Random, q: Fraction) -> Fraction:
    """Also what a careless reader makes of it: 11/2 of 1 1/2, 2/3 of 2 1/3."""
    top, bottom = abs(q.numerator), q.denominator
    ways = [q + 1, q - 1, -q, 1 / q if q else q + 2, q + Fraction(1, bottom), q * 10, q / 10, Fraction(q.numerator)]
    if top > bottom > 1:
        full, rest = divmod(top, bottom)
        ways += [Fraction(int(f"{full}{rest}"), bottom), Fraction(full * rest, bottom)]
    if top > 10 and bottom > 1:
        ways += 2 * [int(str(top)[0]) + Fraction(int(str(top)[1:]), bottom)]
    return random.choice(ways)


def nudge(random: Random, values: Sequence[Any]) -> tuple[Any, ...]:
    """One number off by 1 or of the other sign, or two of them exchanged."""
    new, at, other = list(values), random.randrange(len(values)), random.randrange(len(values))
    match random.randrange(4):
        case 0:
            new[at] = -new[at]
        case 1:
            new[at], new[other] = new[other], new[at]
        case way:
            new[at] += 2 * way - 5
    return tuple(new)


def near_it(random: Random, value: Any) -> Any:
    return value.near(random)


def up_to_a_factor(values: Sequence[Fraction | int]) -> tuple[Fraction, ...]:
    lead = next((Fraction(value) for value in values if value), Fraction(1))
    return tuple(value / lead for value in values)


def agree(one: Sequence[object], other: Sequence[object]) -> bool:
    """What one of them leaves out is not compared."""
    return all(a == b or "" in (a, b) for a, b in zip(one, other, strict=True))


def named(value: tuple[Any, ...], form: str) -> tuple[Any, ...]:
    """The value, without its name, which stands first, if the form has none."""
    return value if "<name" in form else ("", *value[1:])


TERMS: Dress = {
    "c": lambda text: text + "c" if text[-1].isdigit() else None,
    **{form: form.format for form in ("{} - x", "{} x y", "{} / x", "{} (or 987)", "{0}, {0}", "{0} and {0}")},
}
ALTERED = "{} or 987|{} = 987|987 = {}|{} or more|at least {}|about {}|not {}|half of {}|twice {}|{} dozen|{} pairs"
TRAPS = {**TERMS, **{form: form.format for form in ALTERED.split("|")}}
KINDS: dict[str, Kind] = {}

# ── numbers ──────────────────────────────────────────────────────────────────────────────────


def fraction_parts(q: Fraction) -> Parts:
    top, bottom, n = q.numerator, q.denominator, abs(q.numerator)
    full, rest = divmod(n, bottom)
    is_mixed, vulgar = full and rest, dict(zip(("1/2", "1/4", "3/4", "1/3", "2/3"), "½¼¾⅓⅔", strict=True))
    return {
        "q": q, "tex": tex(q), "s": sign_of(q), "n": n, "d": only(bottom > 1, bottom), "top": top, "bottom": bottom,
        "minus_top": -top, "minus_bottom": -bottom, "top6": top * 6, "bottom6": bottom * 6, "n1": only(n < 10, n),
        "d1": only(1 < bottom < 10, bottom), "w": only(is_mixed, full), "r": rest, "plus": only(q > 0, q),
        "finite": only(bottom > 1, decimal(q)), "vulgar": vulgar.get(str(q)),
    }  # fmt: skip


FRACTIONS = (
    r"<q> | <tex> | x = <tex> | \frac{<top>}{<bottom>} | \frac{<minus_top>}{<minus_bottom>}"
    r" | \frac{<top6>}{<bottom6>} | +<plus>"
    r" | <top6>/<bottom6> | <s>\frac<n1><d1> | <s>\frac<n1>{<d>} | <s>{<n>}/{<bottom>} | <finite>"
    r" | <tex> = <finite> | <top>÷<d>"
    r" | <s><w> <r>/<d> | <s><w>\frac{<r>}{<d>} | <s><w> \frac{<r>}{<d>} | <s><w>\,\frac{<r>}{<d>}"
    r" | <s><w>\frac<r><d1> | <vulgar>"
)
KINDS["rationals"] = Kind(ratio, near_number, fraction_parts, FRACTIONS, traps=TRAPS, dress="number")


def decimal_parts(q: Fraction) -> Parts:
    exponent = len(str(int(abs(q)))) - 1 if abs(q) >= 1 else -next((n for n in range(30) if abs(q) * 10**n >= 1), 0)
    if not (text := decimal(q)):
        return {"q": q, "tex": tex(q)}
    is_whole, is_short = q.denominator == 1, 0 <= exponent < 10
    words = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "wan": 4, "yi": 8}
    texts = {word: decimal(q / 10**power) or "" for word, power in words.items()}
    return {
        "decimal": text, "zeros": text + (".0" if is_whole else "00"),
        "no_zero": only(abs(q) < 1, text.replace("0.", ".")),
        "q": q, "tex": tex(q), "plus": only(q > 0, text), "full": only(q > 0 and is_whole, q),
        "comma": grouped(text, ","),
        "braces": grouped(text, "{,}"), "thin": grouped(text, r"\,"), "space": only(is_whole, grouped(text, " ")),
        "aops": only(is_whole, grouped(text, r",\!")), "m": decimal(q / Fraction(10) ** exponent), "e": exponent,
        "e1": only(is_short, exponent), **{word: only(len(size) < 5, size) for word, size in texts.items()},
    }  # fmt: skip


DECIMALS = (
    r"<decimal> | <zeros> | <no_zero> | <q> | <tex> | +<plus> | 00<full> | <comma> | <braces> | <thin> | <space>"
    r" | <aops> | <m>e<e> | <m>E<e>"
    r" | <m>\times10^<e1> | <m>\times10^{<e>} | <m> \times 10^{<e>} | <m> \cdot 10^{<e>} | <m>×10^{<e>} | <m>×10^<e1>"
)
MULTIPLES = (
    r"<decimal> | <comma> | <hundred> hundred | <thousand> thousand | <million> million | <billion> billion"
    r" | <million> \text{million}"
    r" | <million>\text{ million} | <wan>万 | <yi>亿 | <m> \times 10^{<e>}"
)
for name, draw in {
    "integers": lambda r: Fraction(whole(r, 1, 10 ** r.randint(1, 9))),
    "decimals": lambda r: Fraction(whole(r, 1, 10**6), 10 ** r.randint(0, 6)),
    "scientific": lambda r: whole(r, 10, 999) * Fraction(10) ** r.randint(-12, 20),
}.items():
    KINDS[name] = Kind(draw, near_number, decimal_parts, DECIMALS, traps=TRAPS, dress="number")
KINDS["multiples"] = Kind(
    lambda r: Fraction(r.randint(1, 99), 10 ** r.randint(0, 1)) * 10 ** r.choice((3, 4, 6, 8, 9)),
    near_number, decimal_parts, MULTIPLES, dress="text")  # fmt: skip

Period = tuple[int, str, str]
"""12.3456565..: 12, "34", "56"."""


def near_period(random: Random, value: Period) -> Period:
    full, before, period = value
    digit = str((int(period[-1]) + 1) % 9)
    ends = [
        (before, period[:-1] + digit),
        (before, period + "0"),
        ("", before + period),
        (before + "0", period),
        (before, period[::-1]),
    ]
    return random.choice([(full + 1, before, period), *((full, *end) for end in ends)])


def repeated(value: Period) -> Fraction:
    full, before, period = value
    nines, shift = 10 ** len(period) - 1, 10 ** len(before)
    return full + Fraction(int(before or 0) * nines + int(period), shift * nines)


KINDS["repeating decimals"] = Kind(
    lambda r: (r.randint(0, 9), r.choice(("", "0", "1", "25")), r.choice(("3", "6", "1", "09", "16", "142857"))),
    near_period,
    lambda v: {"b": f"{v[0]}.{v[1]}", "p": v[2], "first": v[2][0], "rest": v[2][1:], "q": repeated(v),
    "tex": tex(repeated(v))},
    r"<b>\overline{<p>} | <b>\bar{<p>} | <b>\overline{<p><p>} | <b><first>\overline{<rest><first>} | <q>"
    r" | <tex>", repeated,
    traps={"cut": lambda text: re.sub(r"\\overline|[{}]", "", text) if "line" in text and len(text) < 15 else None},
)  # fmt: skip


class Real(NamedTuple):
    """A number, or the decimal that it is rounded to."""

    text: str
    number: Fraction
    digits: int = 0
    """Significant ones; 0: not rounded."""
    off: int = 0
    """Added to the last place."""

    def rounded(self) -> tuple[Fraction, Fraction]:
        """The decimal and its last place."""
        place = Fraction(1, 10**12)
        while abs(self.number) / place >= 10**self.digits:
            place *= 10
        return Fraction(round(self.number / place) + self.off) * place, place

    def same(self, other: "Real") -> bool:
        if self.digits and other.digits:
            return self.rounded()[0] == other.rounded()[0]
        if not self.digits:
            return other.same(self) if other.digits else self.number == other.number
        near, place = self.rounded()
        is_finite = other.number.denominator < 10**6 and decimal(other.number)
        return near == other.number if self.digits < 6 or is_finite else abs(near - other.number) * 2 <= place

    def near(self, random: Random) -> "Real":
        ways = [*(self._replace(off=off) for off in (1, -1, 10)), self._replace(digits=random.randint(3, 5))]
        return random.choice([*ways, Real(f"{self.text}+1", self.number + 1, self.digits)])

    def parts(self) -> Parts:
        near, place = self.rounded()
        full, _, rest = (decimal(near) or "").partition(".")
        places = len(str(place.denominator)) - 1
        return {"exact": self.text, "decimal": only(places, f"{full}.{rest.ljust(places, '0')}")}


PI, E = (Fraction(digits) / 10**30 for digits in ("3141592653589793238462643383280", "2718281828459045235360287471353"))


def real(random: Random) -> Real:
    n, d = random.randint(2, 60), random.choice((3, 6, 7, 9, 11, 13, 16))
    root = Fraction(isqrt(n * 10**60), 10**30)
    exact = {frac(n, d): Fraction(n, d), f"{n}/{d}": Fraction(n, d), sqrt(n): root, frac(sqrt(n), 3): root / 3, "e": E,
             rf"{n}\pi": n * PI, frac(r"\pi", d): PI / d, r"\pi": PI, f"{n}+{sqrt(n)}": n + root}  # fmt: skip
    return Real(*random.choice(list(exact.items())), random.choice((6, 6, 7, 8, 10)))


KINDS["rounded decimals"] = Kind(
    real, near_it, Real.parts, same=Real.same, dress="number",
    says=lambda value, form: value._replace(digits=0) if form == "<exact>" else value)  # fmt: skip


class Big(NamedTuple):
    """A whole number by expressions, such as `2^{100}`, and what is added to them."""

    writings: tuple[str, ...]
    number: int
    plus: int

    def near(self, random: Random) -> "Big":
        text, at = str(self.number), random.randrange(len(str(self.number)))
        text = text[:at] + str((int(text[at]) + random.randint(1, 8)) % 9 + 1) + text[at + 1 :]
        return random.choice([self._replace(plus=self.plus + random.choice((-1, 1))), Big((text,), int(text), 0)])

    @classmethod
    def draw(cls, random: Random) -> "Big":
        n, k = random.choice((random.randint(6, 60), random.randint(70, 900))), random.randint(2, 4)
        b, m = random.randint(2, 12), n % 90 + 4
        p, binomial, below = b ** (k + 5) + 1, rf"\binom{{{n}}}", rf"{k}! \cdot {n - k}!"
        power = (
            f"{b}^{{{n}}}",
            rf"{b} \cdot {b}^{{{n - 1}}}",
            rf"{b}^{{{n - 2}}}\times {b * b}",
            rf"{b * b}^{{{n}}} \cdot {b}^{{{-n}}}",
        )
        products = (f"{m}!", rf"{m} \cdot {m - 1}!", rf"{m * (m - 1)} \times {m - 2}!", frac(f"{m + 1}!", m + 1))
        choose = (f"{binomial}{{{k}}}", f"{{{n} \\choose {k}}}", f"{binomial}{{{n - k}}}", frac(f"{n}!", below))
        times = (rf"{p} \cdot {n}", rf"{n} \times {p}", f"{n}({p})", f"{p}·{n}")
        texts, number = random.choice([(power, b**n), (products, factorial(m)), (choose, comb(n, k)), (times, p * n)])
        return cls(texts[: 3 if n > 60 else 4], number, random.choice((0, 0, 1, -1)))

    def parts(self) -> Parts:
        digits = str(self.number + self.plus) if self.number < 10**80 else None
        texts = {
            f"expression_{at}": only(len(text) < 99, add((1, text), (self.plus, "")))
            for at, text in enumerate(self.writings)
        }
        turned = add((self.plus, ""), (1, self.writings[0]), gap=" ")
        return {
            **texts,
            "digits": digits,
            "grouped": digits and grouped(digits, ","),
            "turned": only(self.plus and len(texts) > 1, turned),
        }


KINDS["big integers"] = Kind(Big.draw, near_it, Big.parts, means=lambda value: value.number + value.plus, traps=TERMS)

# ── roots, logarithms, complex numbers ───────────────────────────────────────────────────────


def square_part(n: int, power: int = 2) -> tuple[int, int]:
    """The largest k and the m of k^2 m = n."""
    k = next(k for k in range(round(n ** (1 / power)) + 1, 0, -1) if n % k**power == 0)
    return k, n // k**power


def root_parts(s: Fraction) -> Parts:
    """Of the root of |s|, with the sign of s."""
    n, bottom, (k, m) = abs(s.numerator), s.denominator, square_part(abs(s.numerator) * s.denominator)
    factor, rest = Fraction(k, bottom), sqrt(m) if m > 1 else ""
    top, d, product = factor.numerator, factor.denominator, add((factor.numerator, rest))
    return {
        "s": sign_of(s), "inside": tex(abs(s)), "simplest": over(product, d), "n": n, "nd": n * bottom,
        "d": only(bottom > 1, bottom),
        "n0": only(bottom == 1, n), "product": product, "below": only(d > 1, d), "factor": only(d > 1, tex(factor)),
        "rest": rest,
        "top": only(d == 1 < top and m > 1, top), "m": m, "m1": only(1 < m < 10, m),
    }  # fmt: skip


KINDS["roots"] = Kind(
    lambda r: Fraction(whole(r, 2, 12) * r.choice((1, 4, 9)), r.choice((1, 1, 1, 2, 3, 5))),
    lambda r, s: near_number(r, s) or s + 5, root_parts,
    r"<s>\sqrt{<inside>} | <s><simplest> | <s>\frac{<n>}{\sqrt{<nd>}} | <s><product>/<below> | <s><factor><rest>"
    r" | <s><n0>^{1/2}"
    r" | <s>\frac{\sqrt{<n>}}{\sqrt{<d>}} | <s>sqrt(<n0>) | <s><top>\sqrt<m1> | <s><top> <rest>"
    r" | <s><top>\cdot<rest> | <s><top>√<m>",
    traps=TRAPS)  # fmt: skip


def cube_root_parts(n: int) -> Parts:
    k, m = square_part(n, 3)
    return {"n": n, "simplest": add((k, rf"\sqrt[3]{{{m}}}" if m > 1 else ""))}


KINDS["cube roots"] = Kind(
    lambda r: r.choice((1, 8, 27)) * r.randint(2, 9), lambda r, n: max(1, n + r.choice((1, -1, 8))), cube_root_parts,
    r"\sqrt[3]{<n>} | <n>^{1/3} | <n>^{\frac13} | <simplest>")  # fmt: skip


def sum_parts(a: Fraction | int, b: Fraction | int, letters: str) -> Parts:
    one, other, twice = (a, ""), (b, letters), ((2 * a, ""), (2 * b, letters))
    return {
        "sum": add(one, other),
        "spaced": add(one, other, gap=" "),
        "turned": add(other, one),
        "divided": frac(add(*twice), 2),
    }


def surd_parts(value: tuple[int, int, int]) -> Parts:
    (a, b, c), inside = value, value[1] ** 2 * value[2]
    below = frac(a * a - inside, add((a, ""), (-b, sqrt(c))))
    return {
        **sum_parts(a, b, sqrt(c)),
        "under": add((a, ""), ((b > 0) - (b < 0), sqrt(inside))),
        "below": only(a or b, below),
    }


KINDS["surds"] = Kind(
    lambda r: (whole(r), whole(r, 1, 4), r.choice((2, 3, 5, 6, 7))), lambda r, v: (*nudge(r, v[:2]), v[2]), surd_parts,
    traps=TERMS)  # fmt: skip
KINDS["complex numbers"] = Kind(
    lambda r: (r.choice((small(r), Fraction(0))), small(r)), nudge,
    lambda v: {**sum_parts(v[0], v[1], "i"), "roman": add((v[0], ""), (v[1], r"\mathrm{i}")),
    "by_i": only(v[0], add((v[1], ""), (-v[0], "i")))},
    "<sum> | <spaced> | <turned> | <divided> | <roman> | i(<by_i>) | z = <spaced>", traps=TERMS)  # fmt: skip


def pi_parts(q: Fraction) -> Parts:
    product, d, is_factor = add((abs(q.numerator), r"\pi")), q.denominator, q.denominator == 1 < abs(q)
    return {"s": sign_of(q), "over": over(product, d), "tex": tex(q), "product": product, "d": only(d > 1, d),
    "n": only(is_factor, q),
            "plus": only(q > 0, tex(q)), "decimal": decimal(q)}  # fmt: skip


KINDS["multiples of pi"] = Kind(
    ratio, near_number, pi_parts,
    r"<s><over> | <tex>\pi | <s><product>/<d> | <n>π | <n>pi | \pi\cdot <plus>"
    r" | <decimal>\pi", traps=TRAPS)  # fmt: skip
KINDS["logarithms"] = Kind(
    lambda r: (r.randint(2, 5), r.randint(2, 4), r.randint(1, 3)),
    lambda r, v: r.choice(((v[0], v[1] + 1, v[2]), (v[0], v[2], v[1]))),
    lambda v: {"b": v[0] ** v[2], "n": v[0] ** v[1], "one": v[0], "rest": v[0] ** (v[1] - 1),
    "q": tex(Fraction(v[1], v[2]))},
    r"\log_{<b>}{<n>} | \log_{<b>} <n> | \log_{<b>}(<n>) | \frac{\ln <n>}{\ln <b>}"
    r" | \log_{<b>} <one> + \log_{<b>} <rest> | <q>",
    lambda v: Fraction(v[1], v[2]))  # fmt: skip
KINDS["natural logarithms"] = Kind(
    lambda r: (r.randint(2, 7), r.randint(2, 4)), lambda r, v: r.choice(((v[0], v[1] + 1), (v[0] + 1, v[1]))),
    lambda v: {"n": v[0] ** v[1], "b": v[0], "k": v[1], "rest": v[0] ** (v[1] - 1)},
    r"\ln <n> | \ln{<n>} | \ln(<n>) | <k>\ln <b> | <k> \ln{<b>} | -\ln\frac{1}{<n>} | \ln <rest> + \ln <b>",
    lambda v: v[0] ** v[1], traps=TERMS)  # fmt: skip
KINDS["powers"] = Kind(
    lambda r: (r.randint(2, 9), r.randint(2, 4)),
    lambda r, v: r.choice(((v[0], v[1] + 1), (v[0] + r.randint(1, 3), v[1]))),
    lambda v: {"b": v[0], "m": v[1], "c": v[0] ** v[1], "more": v[1] + 1, "less": v[1] - 1},
    r"<b>^{n+<m>} | <b>^{<m> + n} | <c>\cdot <b>^n | \frac{<b>^{n+<more>}}{<b>}"
    r" | <b> \times <b>^{n+<less>}")  # fmt: skip
KINDS["exponentials"] = Kind(
    lambda r: (r.randint(1, 4), r.randint(-5, 5)), nudge,
    lambda v: {"sum": add((v[0], "x"), (v[1], "")), "turned": add((v[1], ""), (v[0], "x"), gap=" "),
    "ax": add((v[0], "x")), "b": v[1], "minus_b": -v[1]},
    r"e^{<sum>} | e^{<turned>} | e^{<b>}\cdot e^{<ax>} | \frac{e^{<ax>}}{e^{<minus_b>}}", traps=TERMS)  # fmt: skip

# ── algebra ──────────────────────────────────────────────────────────────────────────────────

LETTERS = "xntyakmsc"


class Product(NamedTuple):
    """k (ax+b) (cx+d) + e."""

    name: str
    """f(x), g(x) or none."""
    x: str
    numbers: tuple[int, ...]
    """k, a, b, c, d, e."""

    def terms(self) -> list[Term]:
        k, a, b, c, d, e = self.numbers
        return [(k * a * c, f"{self.x}^2"), (k * (a * d + b * c), self.x), (k * b * d + e, "")]

    def means(self) -> tuple[str, list[Term]]:
        return self.name, [term for term in self.terms() if term[0]]

    def near(self, random: Random) -> "Product":
        new = self._replace(numbers=nudge(random, self.numbers))
        other = self._replace(name="g(x)") if self.name else self._replace(x=random.choice(LETTERS))
        return random.choice([new, new, new, other])

    @classmethod
    def draw(cls, random: Random) -> "Product":
        a, c = random.choice(((1, 1), (1, 1), (2, 1), (3, 2)))
        b, d = (random.choice((whole(random), whole(random), 0)) for _ in range(2))
        return cls(
            "", random.choice(LETTERS), (random.choice((1, 1, 1, 2, 3, -1)), a, b, c, d, random.choice((0, 0, 1, -3)))
        )

    def factored(self, gap: str = "", times: str = "", step: int = 1) -> str:
        k, a, b, c, d, e = self.numbers
        pairs = ((a, b), (c, d))
        factors = [
            self.x if pair == (1, 0) else f"({add((pair[0], self.x), (pair[1], ''), gap=gap)})" for pair in pairs
        ]
        return add((k, times.join(factors[::step])), (e, ""), gap=gap)

    def parts(self) -> Parts:
        terms, x = self.terms(), self.x
        text, (p, q, s) = add(*terms), terms
        return {
            "name": self.name or None, "expanded": text, "spaced": add(*terms, gap=" "),
            "turned": add(*terms[::-1], gap=" "),
            "braces": text.replace("^2", "^{2}"), "square": text.replace("^2", "²"),
            "doubled": text.replace(f"{x}^2", f"{x}{x}"),
            "halved": frac(add(*((2 * factor, letters) for factor, letters in terms)), 2), "factored": self.factored(),
            "wide": self.factored(" "), "dots": self.factored(" ", r" \cdot "),
            "factors_turned": self.factored(step=-1),
            "Horner": only(q[0], add((1, f"{x}({add((p[0], x), (q[0], ''))})"), s)),
        }  # fmt: skip


KINDS["polynomials"] = Kind(Product.draw, near_it, Product.parts, means=Product.means, traps=TERMS)
KINDS["functions"] = Kind(
    lambda r: Product.draw(r)._replace(name="f(x)", x="x"), near_it, Product.parts,
    "<name>=<expanded> | <name> = <spaced> | <name> = <factored> | <turned> | <braces> | <wide>", Product.means, agree,
    lambda value, form: value if "<name" in form else value._replace(name=""))  # fmt: skip


def near_monomial(random: Random, value: tuple[Fraction, str]) -> tuple[Fraction, str]:
    (factor, letters), other = value, random.choice("bchknxz")
    texts = (letters[1:], letters + other, other + letters[1:])
    return random.choice([(factor + 1, letters), (-factor, letters), *((factor, text) for text in texts)])


def monomial_parts(value: tuple[Fraction, str]) -> Parts:
    (factor, letters), n, bottom = value, abs(value[0].numerator), value[0].denominator
    each = [letter + (f"^{times}" if (times := letters.count(letter)) > 1 else "") for letter in dict.fromkeys(letters)]
    joined, is_plain = "".join(each), len(each) > 1 and "h" not in letters
    return {
        "product": add((factor, joined)), "turned": add((factor, "".join(each[::-1]))), "flat": add((factor, letters)),
        "s": sign_of(factor),
        "top": add((n, joined)), "d": only(bottom > 1, bottom), "n1": only(n < 10, n),
        "letters": only(is_plain, joined), "joined": joined,
        "d1": only(1 < bottom < 10, bottom), "b_h": only(n == 1 < bottom, " ".join(each)),
        "factor": only(abs(factor) != 1, tex(factor)),
        "spaced": only(is_plain, " ".join(each)), "dots": r" \cdot ".join(each),
    }  # fmt: skip


KINDS["monomials"] = Kind(  # no two letters together, and no letter after a gap, are a unit or a word
    lambda r: (Fraction(whole(r), r.choice((1, 1, 2, 3))), "".join(r.sample("bchknpqtvwxz", r.choice((2, 2, 3))))),
    near_monomial, monomial_parts,
    r"<product> | <turned> | <flat> | <s>\frac{<top>}{<d>} | <s><top>/<d> | <s>\frac<n1><d1> <letters>"
    r" | <s>\frac{<b_h>}{<d>}"
    r" | <factor> <spaced> | <factor> \cdot <dots> | <factor>(<joined>)", lambda v: (v[0], sorted(v[1])))  # fmt: skip


def same_quotient(one: tuple[int, ...], other: tuple[int, ...]) -> bool | None:
    is_constant = any(a * d == b * c for a, b, c, d in (one, other))
    return None if is_constant else up_to_a_factor(one) == up_to_a_factor(other)


def quotient_parts(value: tuple[int, int, int, int]) -> Parts:
    """Of (ax+b) / (cx+d)."""
    a, b, c, d = value
    rest = Fraction(b * c - a * d, c or 1)
    return {
        "top": add((a, "x"), (b, "")), "bottom": add((c, "x"), (d, "")), "wide": add((a, "x"), (b, ""), gap=" "),
        "turned": add((d, ""), (c, "x"), gap=" "),
        "top3": add((3 * a, "x"), (3 * b, "")), "bottom3": add((-3 * c, "x"), (-3 * d, "")),
        "ax": only(a, add((a, "x"))), "s": "+-"[b < 0], "b": abs(b),
        "whole": only(a and c, tex(Fraction(a, c or 1))), "rest": rest.numerator,
        "below": rest.denominator if rest.denominator > 1 else "",
    }  # fmt: skip


KINDS["rational functions"] = Kind(
    lambda r: (r.randint(0, 4), whole(r), r.choice((1, 1, 2, 3)), whole(r)),
    lambda r, v: r.choice((nudge(r, v), (*v[2:], *v[:2]))), quotient_parts,
    r"\frac{<top>}{<bottom>} | (<top>)/(<bottom>) | \frac{<wide>}{<turned>} | -\frac{<top3>}{<bottom3>}"
    r" | \frac{<ax>}{<bottom>}<s>\frac{<b>}{<bottom>}"
    r" | <whole>+\frac{<rest>}{<below>(<bottom>)}", same=same_quotient, traps=TERMS)  # fmt: skip


class Curve(NamedTuple):
    """ax^2 + by^2 + cx + dy + e = 0, or < 0, or <= 0."""

    numbers: tuple[Fraction, ...]
    relation: str = "="

    def near(self, random: Random) -> "Curve":
        a, b, c, d, e = self.numbers
        relation = {"<": r"\le", r"\le": "<"}.get(self.relation, "=")
        others = [
            nudge(random, self.numbers),
            nudge(random, self.numbers),
            (b, a, d, c, e),
            (a, b, c, d, -e),
            tuple(-n for n in self.numbers),
        ]
        return random.choice(
            [self._replace(relation=relation), *(self._replace(numbers=numbers) for numbers in others)]
        )

    def means(self) -> tuple[object, ...]:
        lead = next((abs(n) for n in self.numbers if n), Fraction(1))
        return self.relation, up_to_a_factor(self.numbers) if self.relation == "=" else tuple(
            n / lead for n in self.numbers
        )

    def written(self, factor: Fraction | int = 1, gap: str = "", to_zero: bool = False, turned: bool = False) -> str:
        terms: list[Term] = [
            (n * factor, name) for n, name in zip(self.numbers, ("x^2", "y^2", "x", "y", ""), strict=True)
        ]
        sides = [add(*terms, gap=gap), "0"] if to_zero else [add(*terms[:4], gap=gap), tex(-terms[4][0])]
        relation = {"<": ">", r"\le": r"\ge"}.get(self.relation, "=") if (factor < 0) != turned else self.relation
        return f"{gap}{relation}{gap or ' ' * (relation > '>')}".join(sides[::-1] if turned else sides)

    def parts(self) -> Parts:
        a, b, c, d, e = self.numbers
        parts: Parts = {
            "standard": self.written(), "spaced": self.written(gap=" "), "to_zero": self.written(to_zero=True),
            "tripled": self.written(3),
            "halved": self.written(Fraction(1, 2)), "by_minus_2": self.written(-2, " ", to_zero=True),
            "turned": self.written(turned=True),
            "from_zero": self.written(-1, " ", to_zero=True, turned=True),
        }  # fmt: skip
        if self.relation != "=":
            return parts
        if a == b == 0 != d:
            slope, start = (-c / d, "x"), (-e / d, "")
            parts |= {"slope": f"y={add(slope, start)}", "wide_slope": f"y = {add(slope, start, gap=' ')}",
            "slope_turned": f"{add(start, slope)}=y",
                      "by_a_point": only(c,
                      f"{add((1, 'y'), ((c + e) / d, ''))}={add((-c / d, '(x-1)'))}")}  # fmt: skip
        if a == b != 0:
            x, y = (f"({add((1, name), (n / a / 2, ''))})^2" if n else f"{name}^2" for name, n in (("x", c), ("y", d)))
            right = tex((c * c + d * d) / a / a / 4 - e / a)
            parts |= {
                "centred": f"{x}+{y}={right}",
                "wide_centred": f"{x} + {y} = {right}",
                "centred_turned": f"{right}={y}+{x}",
            }
        if c == d == 0 not in (a, b, e) and (e / a).denominator == (e / b).denominator == 1:
            parts["by_axes"] = f"{sign_of(-e / a)}{frac('x^2', abs(e / a))}{'+-'[e / b > 0]}{frac('y^2', abs(e / b))}=1"
        return parts


def curve(*numbers: int, relation: str = "=") -> Curve:
    return Curve(tuple(map(Fraction, numbers)), relation)


def circle(random: Random) -> Curve:
    h, k, r = whole(random), random.randint(-4, 4), random.randint(1, 9)
    return curve(1, 1, -2 * h, -2 * k, h * h + k * k - r * r)


for name, draw_curve in {
    "lines": lambda r: curve(0, 0, whole(r), whole(r), whole(r, 1, 20)),
    "circles": circle,
    "conics": lambda r: curve(r.choice((1, 4, 9)), r.choice((4, 9, -4, -9)), 0, 0, -36),
    "linear inequalities": lambda r: curve(0, 0, whole(r), whole(r), whole(r, 1, 20), relation=r.choice(("<", r"\le"))),
}.items():
    KINDS[name] = Kind(draw_curve, near_it, Curve.parts, means=Curve.means)

# ── many members, intervals ──────────────────────────────────────────────────────────────────


class Members(NamedTuple):
    """A list "", a tuple "(", a closed interval "[" or a set "{" of numbers."""

    bracket: str
    items: tuple[Fraction, ...]
    name: str = ""

    def same(self, other: "Members") -> bool | None:
        brackets = {self.bracket, other.bracket}
        if brackets == {"", "["} or len(self.items) == 1:
            return None
        if not agree((self.name,), (other.name,)) or (len(brackets) == 2 and "" not in brackets):
            return False
        return self.items == other.items if brackets & {"(", "["} else sorted(self.items) == sorted(other.items)

    def near(self, random: Random) -> "Members":
        items, at = self.items, random.randrange(len(self.items))
        shorter, longer = items[:at] + items[at + (len(items) > 2) :], (*items, random.choice((*items, small(random))))
        lists = (shorter, longer, items[::-1], nudge(random, items), nudge(random, items))
        bracket = random.choice("([{" if len(items) == 2 else "({")
        other = self._replace(name=random.choice("PQ")) if self.name else self._replace(bracket=bracket)
        return random.choice([self._replace(bracket=bracket), other, *(self._replace(items=each) for each in lists)])

    def says(self, form: str) -> "Members":
        if form in ("<listed>", r"\{<set_of>\}"):
            return Members("" if form == "<listed>" else "{", self.items)
        return self if "<name>" in form else self._replace(name="")

    def parts(self) -> Parts:
        bracket, texts = self.bracket, [tex(item) for item in self.items]
        if (is_twice := len(set(texts)) < len(texts)) and bracket == "{":
            return {}
        left, right = {"": ("", ""), "(": "()", "[": "[]", "{": (r"\{", r"\}")}[bracket]
        tight, wide, (*first, last) = ",".join(texts), ", ".join(texts), texts
        is_list, is_set, is_ordered = not bracket, bracket == "{", bracket in ("(", "[")
        return {
            "tight": left + tight + right, "wide": left + wide + right,
            "slashes": f"{left} {', '.join(map(str, self.items))} {right}".strip(),
            "braces": grouped(left + wide + right, "{,}"), "thin": grouped(left + wide + right, r"\,"),
            "name": self.name or None,
            "listed": only(bracket in ("(", "{") and max(self.items) < 1000, wide),
            "set_of": only(is_list and not is_twice, tight),
            "turned": only(not is_ordered, left + ",".join(texts[::-1]) + right), "inside": only(is_set, wide),
            "first": only(is_list, ", ".join(first)),
            "last": last, "more": only(is_list and len(first) > 1, ", ".join(first)),
            "semicolons": only(is_list, "; ".join(texts)),
            "list": only(is_list, tight), "by_x": only(is_list, r" \text{ or } ".join(f"x={text}" for text in texts)),
            "x_each": only(is_list, ", ".join(f"x = {text}" for text in texts)),
        }  # fmt: skip


def members(bracket: str, low: int, high: int, names: str = "") -> Callable[[Random], Members]:
    def draw(random: Random) -> Members:
        items = [small(random) for _ in range(random.randint(low, high))]
        if bracket == "(" and random.random() < 0.3:
            items[0] = Fraction(random.randint(1001, 99999))
        return Members(
            bracket, tuple(dict.fromkeys(items)) if bracket == "{" else tuple(items), random.choice(names or [""])
        )

    return draw


MEMBERS = (
    r"<tight> | <wide> | <slashes> | <braces> | <thin> | <name>=<tight> | <name> = <wide> | <listed>"
    r" | \{<set_of>\} | <turned>"
    r" | \lbrace <inside> \rbrace | <first> and <last> | <first> or <last> | <first> \text{ and } <last>"
    r" | <first>\text{ or }<last>"
    r" | <more>, and <last> | <semicolons> | x=<list> | <by_x> | <x_each>"
)
for name, draw in {
    "lists": members("", 2, 4),
    "sets": members("{", 2, 4, "PQ"),
    "points": members("(", 2, 3, "PQ"),
}.items():
    KINDS[name] = Kind(
        draw, near_it, Members.parts, MEMBERS, same=Members.same, says=Members.says,
        traps={"- t": lambda text: text.replace(", ", " - t, ", 1)})  # fmt: skip
KINDS["empty sets"] = Kind(
    lambda r: "", lambda r, v: r.choice(("0", r"\{0\}", "0, 0", r"\{\emptyset\}", "1")),
    lambda v: {"other": v} if v else {"0": r"\emptyset",
    "1": r"\varnothing", "2": r"\{\}", "3": "∅", "4": r"\{ \}"})  # fmt: skip


class PlusMinus(NamedTuple):
    """a + r and a - r, or one of them; r is a number or the root of one."""

    a: int
    r: int
    is_root: bool
    signs: tuple[int, ...] = (1, -1)

    def near(self, random: Random) -> "PlusMinus":
        a, r, is_root, signs = self
        ways = [PlusMinus(a + 1, r, is_root), PlusMinus(a, r + 1, is_root), PlusMinus(a, r, not is_root)]
        return random.choice([*ways, self._replace(signs=signs[:1]), self._replace(signs=signs[1:])])

    def means(self) -> list[tuple[int, int]]:
        k, m = square_part(self.r) if self.is_root else (self.r, 1)
        return sorted((self.a + k * sign, 0) if m == 1 else (self.a, sign * k * k * m) for sign in self.signs)

    def parts(self) -> Parts:
        a, r, is_root, signs = self
        size = sqrt(r) if is_root else str(r)
        each = [add((a, ""), (sign, size)) if is_root else str(a + sign * r) for sign in signs]
        return {
            "a": only(len(signs) == 2, a or ""), "size": size, "list": ", ".join(each), "turned": ",".join(each[::-1]),
            "or": r" \text{ or } ".join(each), "x_or": " or ".join(f"x={text}" for text in each),
        }  # fmt: skip


KINDS["plus or minus"] = Kind(
    lambda r: PlusMinus(r.choice((0, whole(r))), r.randint(2, 13), r.random() < 0.6), near_it, PlusMinus.parts,
    r"<a>\pm <size> | <a> \pm <size> | x=<a>\pm <size> | x = <a> \pm <size> | <list> | <turned> | <or>"
    r" | \{<turned>\} | <x_or>",
    PlusMinus.means)  # fmt: skip
KINDS["two plus or minus"] = Kind(
    lambda r: (r.randint(1, 5), r.randint(6, 9)), lambda r, v: (v[0] + 1, v[1]), lambda v: {"a": v[0], "b": v[1]},
    r"\pm<a>,\pm<b> | \pm <a>, \pm <b> | <a>,-<a>,<b>,-<b> | \{-<b>, -<a>, <a>, <b>\}")  # fmt: skip
NAMES = ("x", "y", "k", "n", "AB", "CD", "f(3)", r"\text{Area}")
KINDS["named numbers"] = Kind(
    lambda r: (r.choice(NAMES), small(r)),
    lambda r, v: r.choice(((r.choice(NAMES), v[1]), (v[0], near_number(r, v[1])))),
    lambda v: {"name": v[0], "tex": tex(v[1]), "q": v[1], "finite": only(v[1].denominator > 1, decimal(v[1]))},
    "<name>=<tex> | <name> = <q> | <tex> = <name> | <tex>"
    " | <name> = <tex> = <finite>", same=agree, says=named)  # fmt: skip
KINDS["named values"] = Kind(
    lambda r: (r.choice(("xy", "ab", "mn")), small(r), small(r)), lambda r, v: (v[0], *nudge(r, v[1:])),
    lambda v: {"x": v[0][0], "y": v[0][1], "p": tex(v[1]), "q": tex(v[2])},
    r"<x>=<p>,<y>=<q> | <x> = <p>, <y> = <q> | <y> = <q>, <x> = <p> | <x>=<p> \text{ and } <y>=<q> | (<p>,<q>)"
    r" | (<p>, <q>)",
    lambda v: v[1:])  # fmt: skip

Matrix = tuple[tuple[Fraction, ...], ...]


def matrix(random: Random) -> Matrix:
    height, width = random.choice(((2, 2), (2, 2), (2, 3), (3, 3), (2, 1), (3, 1), (1, 3)))
    return tuple(tuple(small(random) for _ in range(width)) for _ in range(height))


def near_matrix(random: Random, value: Matrix) -> Matrix:
    flat, width = tuple(cell for row in value for cell in row), len(value[0])
    other = random.choice([n for n in range(1, len(flat) + 1) if len(flat) % n == 0])
    cells, width = random.choice([(nudge(random, flat), width), (flat, other)])
    rows = tuple(cells[at : at + width] for at in range(0, len(flat), width))
    return random.choice([rows, rows, value[::-1], tuple(zip(*value, strict=True))])


def rows_of(value: Matrix) -> Parts:
    styles = {"tight": (r"\\", "&"), "wide": (r" \\ ", " & "), "wider": (r" \\  ", "  & "), "lines": (" \\\\\n", " & "),
              "apart": (r" \\[4pt] ", " & "), "tight_apart": (r"\\[4pt]", "&")}  # fmt: skip
    return {style: line.join(cell.join(map(tex, row)) for row in value) for style, (line, cell) in styles.items()}


def as_tuple(text: str) -> str | None:
    return None if "frac" in text or "4pt" in text else f"({', '.join(re.findall('-?[0-9]+', text))})"


KINDS["matrices"] = Kind(
    matrix, near_matrix, rows_of,
    r"\begin{pmatrix}<tight>\end{pmatrix} | \begin{pmatrix} <wide> \end{pmatrix} | \begin{bmatrix}<tight>\end{bmatrix}"
    r" | \begin{bmatrix}  <wider>  \end{bmatrix} | \begin{pmatrix} <apart> \end{pmatrix}"
    r" | \begin{bmatrix}<tight_apart>\end{bmatrix}"
    " | \\begin{pmatrix}\n<lines>\n\\end{pmatrix} | A = \\begin{pmatrix} <wide> \\end{pmatrix}",
    traps={"tuple": as_tuple})  # fmt: skip
SIGNS = (("<", ">"), (r"\le ", r"\ge "))
WIDE_SIGNS = ((" < ", " > "), (" ≤ ", " ≥ "))


class Span(NamedTuple):
    low: int | None
    high: int | None
    low_closed: bool = False
    high_closed: bool = False

    def __str__(self) -> str:
        low, high = (r"-\infty" if self.low is None else self.low), (r"\infty" if self.high is None else self.high)
        return f"{'(['[self.low_closed]}{low},{high}{')]'[self.high_closed]}"

    def inequality(self, x: str = "x", signs: Sequence[Sequence[str]] = SIGNS, turned: bool = False) -> str:
        """Nothing for all numbers."""
        low = "" if self.low is None else f"{self.low}{signs[self.low_closed][0]}"
        high = "" if self.high is None else f"{signs[self.high_closed][0]}{self.high}"
        if turned or not low:
            before = "" if self.high is None or not turned else f"{self.high}{signs[self.high_closed][1]}"
            after = "" if self.low is None else f"{signs[self.low_closed][1]}{self.low}"
            return before + x + (after if turned else high) if self.low is not None or self.high is not None else ""
        return low + x + high if high else f"{x}{signs[self.low_closed][1]}{self.low}"

    def scaled(self, by: int) -> str:
        low, high = (None if end is None else end * by for end in self[:2])
        new = Span(low, high, *self[2:]) if by > 0 else Span(high, low, self.high_closed, self.low_closed)
        return new.inequality(f"{by}x") if (low is None) != (high is None) else ""

    def near(self, random: Random) -> "Span":
        low, high, low_closed, high_closed = self
        return random.choice([
            Span(low, high, not low_closed and low is not None, high_closed),
            Span(low, high, low_closed, not high_closed and high is not None),
            Span(low and low - 1, high, low_closed, high_closed), Span(low, high and high + 1, low_closed, high_closed),
            Span(low, None, low_closed), Span(None, high, False, high_closed),
            Span(None if high is None else -high, None if low is None else -low, high_closed, low_closed),
        ])  # fmt: skip


Spans = tuple[Span, ...]


def spans(random: Random) -> Spans:
    a, b, c, d = sorted(random.sample(range(-12, 13), 4))
    e, f, g, h = (random.random() < 0.5 for _ in range(4))
    one, ray, other, rest = Span(a, b, e, f), Span(None, b, False, f), Span(a, None, e), Span(None, a, False, e)
    unions = [
        (one, Span(c, d, g, h)),
        (Span(None, a), Span(a, None)),
        (rest, Span(d, None, f)),
        (rest, Span(b, c, f, g), Span(d, None, h)),
    ]
    return random.choice([(one,), (one,), (ray,), (ray,), (other,), (other,), (Span(None, None),), *unions])


def near_spans(random: Random, value: Spans) -> Spans:
    at = random.randrange(len(value))
    new = (*value[:at], value[at].near(random), *value[at + 1 :])
    is_apart = all(one.high is not None and two.low is not None and one.high < two.low for one, two in pairwise(new))
    return new if is_apart else value[:1]


def span_parts(value: Spans) -> Parts:
    first, is_one = value[0], len(value) == 1
    plain, turned = (
        (first.inequality() or None, first.inequality(" x ", WIDE_SIGNS, True).strip() or None)
        if is_one
        else (None, None)
    )
    tight = r"\cup".join(map(str, value))
    return {
        "tight": tight, "wide": r" \cup ".join(str(span).replace(",", ", ") for span in value),
        "turned": " ∪ ".join(map(str, value[::-1])),
        "plus": only(value[-1].high is None, tight.replace(r",\infty", r",+\infty")), "one": only(is_one, tight),
        "plain": plain,
        "hole": only(len(value) == 2 and first.high == value[1].low, first.high),
        "all": only(value == (Span(None, None),), r"\mathbb{R}"),
        "by_words": plain and first.inequality(" x ", WIDE_SIGNS).strip(), "inequality_turned": turned,
        "tripled": (plain and first.scaled(3)) or None, "by_minus_2": (plain and first.scaled(-2)) or None,
    }  # fmt: skip


KINDS["intervals"] = Kind(
    spans, near_spans, span_parts,
    r"<tight> | <wide> | <turned> | x \in <wide> | <plus> | I = <one> | <plain> | <by_words>"
    r" | <inequality_turned> | \{x \mid <plain>\}"
    r" | \mathbb{R}\setminus\{<hole>\} | <all> | <tripled> | <by_minus_2>")  # fmt: skip

# ── quantities ───────────────────────────────────────────────────────────────────────────────


class Unit(NamedTuple):
    dimension: str
    factor: Fraction
    singular: str = ""
    plural: str = ""


TABLE = """
length: km 1000 kilometer kilometers, m 1 meter meters, cm 1/100 centimeter centimeters
length: mm 1/1000 millimeter millimeters, in 127/5000 inch inches, ft 381/1250 foot feet
length: yd 1143/1250 yard yards, mi 201168/125 mile miles, units 1 unit units
mass: kg 1000 kilogram kilograms, g 1 gram grams, mg 1/1000 milligram milligrams
mass in pounds: lb 16, oz 1 ounce ounces
time: s 1 second seconds, min 60 minute minutes, h 3600 hour hours, day 86400 day days, week 604800 week weeks
volume: L 1/1000 liter liters, mL 1/1000000 milliliter milliliters
frequency: Hz 1
force: N 1, kN 1000
energy: J 1, kJ 1000
power: W 1, kW 1000
percent: % 1
dollar: dollar 1 dollar dollars, cent 1/100 cent cents
euro: euro 1 euro euros
pound: pound 1 pound pounds
yuan: yuan 1 yuan yuan
rupee: rupee 1 rupee rupees
"""
UNITS = {
    name: Unit(dimension, Fraction(factor), *words)
    for dimension, row in re.findall("(.+): (.+)", TABLE)
    for name, factor, *words in (unit.split() for unit in row.split(","))
}
STEPS = "km m,m cm,cm mm,ft in,yd ft,mi ft,kg g,g mg,lb oz,min s,h min,day h,week day,L mL,kN N,kJ J,kW W,dollar cent"
SMALLER = dict(re.findall(r"(\w+) (\w+)", STEPS))
OTHER = {"in": "cm"} | {small: large for large, small in SMALLER.items()} | SMALLER
CURRENCIES = {"dollar": r"\$", "cent": "", "euro": "€", "pound": "£", "rupee": "₹", "yuan": ""}
CHINESE = {"km": "公里", "m": "米", "cm": "厘米", "kg": "千克", "g": "克", "h": "小时", "min": "分钟", "yuan": "元"}
WIDE = str.maketrans("0123456789(),", "０１２３４５６７８９（），")


class Quantity(NamedTuple):
    number: Fraction
    unit: str = ""
    """A name of UNITS, its square or cube `m^2`, a rate `km/h`, or none."""

    def split(self) -> tuple[str, int, str]:
        top, _, below = self.unit.partition("/")
        name, _, power = top.partition("^")
        return name, int(power or 1), below

    def means(self) -> tuple[str, int, str, Fraction]:
        name, power, below = self.split()
        (dimension, factor, *_), per = UNITS[name], UNITS[below] if below else Unit("", Fraction(1))
        dimension, power, factor = ("length", 3, factor) if dimension == "volume" else (dimension, power, factor**power)
        return dimension, power, per.dimension, self.number * factor / per.factor

    def same(self, other: "Quantity") -> bool:
        if not self.unit:
            return self.number == other.number or (other.unit == "%" and self.number == other.number / 100)
        if not other.unit:
            return other.same(self)
        if ("units" in self.unit) != ("units" in other.unit):
            return self.number == other.number and self.means()[:3] == other.means()[:3]
        return self.means() == other.means()

    def says(self, form: str) -> "Quantity":
        if "<other" in form:
            return self.converted() or self
        return Quantity(self.number / 100) if "<part" in form else Quantity(self.number) if form == "<finite>" else self

    def near(self, random: Random) -> "Quantity":
        name, _, below = self.split()
        if self.unit == "%" or random.random() < 0.3:
            return Quantity(near_number(random, self.number), random.choice((self.unit, self.unit, "dollar")))
        alike = random.choice([other for other, unit in UNITS.items() if unit.dimension == UNITS[name].dimension])
        others = [self.unit.replace(name, alike, 1), random.choice(["km", "kg", "s", "dollar", "euro", "cm^2"]), name]
        powers = [f"{name}^{power}" for power in (2, 3) if UNITS[name].dimension == "length"]
        others += [f"{name}/{random.choice(['s', 'h', 'min'])}"] if below else powers
        return self._replace(unit=random.choice(others))

    def converted(self) -> "Quantity | None":
        """By another unit, if its number is short."""
        name, power, below = self.split()
        if name not in OTHER or (below and below not in OTHER):
            return None
        unit = OTHER[name] + f"^{power}" * (power > 1) + f"/{OTHER.get(below)}" * (below > "")
        new = Quantity(self.means()[3] / Quantity(Fraction(1), unit).means()[3], unit)
        return new if decimal(new.number) and 10**-6 < abs(new.number) < 10**9 else None

    def by_unit(self) -> Parts:
        """The short name of the unit, and its words."""
        name, power, below = self.split()
        exponent, square, small_exponent = (("", "", None), ("^2", "square ", "²"), ("^3", "cubic ", "³"))[power - 1]
        has_short = name not in (*CURRENCIES, "units", "%", "day", "week")
        short = f"{name}/{below}" if below else name
        words = square + UNITS[name].plural + (f" per {UNITS[below].singular}" if below else "")
        return {
            "number": decimal(self.number), "unit": only(has_short, short), "e": exponent, "e2": small_exponent,
            "sq": only(power == 2, short),
            "tight": only(has_short and len(name) > 1 and name != "in", short),
            "words": only(UNITS[name].plural, words),
        }  # fmt: skip

    def parts(self) -> Parts:
        number, unit, other = decimal(self.number), self.unit, self.converted()
        if not number:
            return {}
        sign, chinese, is_percent = CURRENCIES.get(unit) if self.number > 0 else None, CHINESE.get(unit), unit == "%"
        has_cents = sign and (self.number * 100).denominator == 1
        return {
            **self.by_unit(), "finite": number, "mph": only(unit == "mi/h", "mph"), "sign": sign or None,
            "percent": only(is_percent, number),
            "cents": only(has_cents, f"{float(self.number):,.2f}"),
            "part": only(is_percent, decimal(self.number / 100)),
            "part_tex": only(is_percent, tex(self.number / 100)), "Chinese": chinese, "wide": number.translate(WIDE),
            **({f"other_{name}": part for name, part in other.by_unit().items()} if other else {}),
        }  # fmt: skip


def quantity(*units: str) -> Callable[[Random], Quantity]:
    def draw(random: Random) -> Quantity:
        n = Fraction(random.randint(1, 60))
        return Quantity(random.choice((n, n / 10, n * 60)), random.choice(units))

    return draw


QUANTITIES = (
    r"<number> <unit><e> | <number>\text{ <unit>}<e> | <number>\,\mathrm{<unit>}<e> | <number>~\text{<unit>}<e>"
    r" | <number><tight><e>"
    r" | <number> <unit><e2> | <number>\text{ <unit><e2>} | <number> sq <sq> | <number> <words>"
    r" | <number>\text{ <words>}"
    r" | <number> \text{<words>} | <number> <mph> | <finite> | <other_number> <other_unit><other_e>"
    r" | <other_number>\text{ <other_words>}"
    r" | <sign><finite> | <sign><cents> | <percent>\% | <percent>% | <percent> \% | <percent> percent"
    r" | <percent>\text{ percent}"
    r" | <part> | <part_tex> | <finite><Chinese> | <wide><Chinese>"
)
LINEAR = [name for name in UNITS if name not in CURRENCIES and name != "%"]
AREAS = ("m^2", "cm^2", "ft^2", "in^2", "km^2", "units^2", "cm^3", "m^3", "ft^3", "units^3")
for name, units in {
    "units": LINEAR, "areas and volumes": AREAS, "rates": ("m/s", "km/h", "ft/s", "ft/min", "mi/h", "m/min", "L/min"),
    "money": CURRENCIES, "Chinese units": CHINESE, "percent": ("%",),
}.items():  # fmt: skip
    KINDS[name] = Kind(
        quantity(*units), near_it, Quantity.parts, QUANTITIES, same=Quantity.same, says=Quantity.says,
        dress="math" if name == "percent" else "text")  # fmt: skip

LOOKS, NOUNS = ("red", "blue", "green", "small", "wooden"), ("ball", "marble", "apple", "student", "ticket", "chair")


def near_things(random: Random, value: tuple[str, int]) -> tuple[str, int]:
    (look, noun), n = value[0].split(), value[1]
    names = [f"{random.choice(LOOKS)} {noun}", noun, f"{look} {random.choice(NOUNS)}"]
    return random.choice([(value[0], n + 1), (value[0], n * 10), *((name, n) for name in names)])


KINDS["things"] = Kind(
    lambda r: (f"{r.choice(LOOKS)} {r.choice(NOUNS)}", r.randint(2, 60)), near_things,
    lambda v: {"n": v[1], "name": v[0], "name_title": v[0].title()},
    r"<n> <name>s | <n>\text{ <name>s} | <n> \text{<name>s} | <n>\text{ <name>} | <n> <name_title>s | <n> <name> | <n>",
    same=agree, says=named, dress="text")  # fmt: skip


def same_angle(one: tuple[str, int], other: tuple[str, int]) -> bool | None:
    """A number without a unit is no count of radians."""
    return None if {one[0], other[0]} == {"", "radians"} else one[1] == other[1]


KINDS["degrees"] = Kind(
    lambda r: ("degrees", r.choice((30, 36, 45, 60, 90, 120, 150, r.randint(1, 179)))),
    lambda r, v: (v[0], r.choice((180 - v[1], abs(90 - v[1]) or 1, v[1] + 1, v[1] * 10))),
    lambda v: {"n": v[1], "pi": add((Fraction(v[1], 180), r"\pi"))},
    r"<n> | <n>^\circ | <n>^{\circ} | <n>° | <n> degrees | <n>\text{ degrees} | <n>\degree"
    r" | \angle ABC = <n>^\circ | <pi> radians"
    r" | <pi>\text{ radians}", same=same_angle,
    says=lambda v, form: ("" if form == "<n>" else "radians" * ("<pi>" in form) or v[0], v[1]),
    dress="text")  # fmt: skip

SINES = {
    30: 1, 45: 2, 60: 3, 90: 4, 120: 3, 135: 2, 150: 1, 210: -1, 225: -2, 240: -3, 270: -4, 300: -3, 315: -2, 330: -1,
}  # fmt: skip
"""Four times the square of each sine, with the sign of the sine."""


def trig_value(value: tuple[str, int]) -> Fraction:
    """Its square, with its sign; 0 where it is 0 or infinite."""
    sine, cosine = SINES.get(value[1], 0), SINES.get((value[1] + 90) % 360, 0)
    if value[0] == "tan":
        return Fraction(sine, cosine) if cosine else Fraction(0)
    return Fraction(sine if value[0] == "sin" else cosine, 4)


def trig(random: Random) -> tuple[str, int]:
    return random.choice(("sin", "cos", "tan")), random.choice(list(SINES))


def trig_parts(value: tuple[str, int]) -> Parts:
    root = root_parts(trig_value(value) or Fraction(1))
    return {
        "f": value[0],
        "n": value[1],
        "pi": add((Fraction(value[1], 180), r"\pi")),
        "root": f"{root['s']}{root['simplest']}",
    }


KINDS["trig of degrees"] = Kind(
    trig, lambda r, v: r.choice(((trig(r)[0], v[1]), (v[0], trig(r)[1]))), trig_parts,
    r"\<f> <n>^\circ | \<f> <n>^{\circ} | \<f>(<n>^\circ) | \<f>{<n>^\circ} | \<f>(<n>°) | \<f>\left(<pi>\right)"
    r" | <root>",
    trig_value, lambda v, w: v == w if v and w else None,
    traps={"radians": lambda text: re.sub(r"\^\\circ|\^\{\\circ\}|°", "", text) if re.search("circ|°",
    text) else None})  # fmt: skip


def near_time(random: Random, value: tuple[str, int, int]) -> tuple[str, int, int]:
    """Also the time that is the same as a ratio: 2:15 for 6:45."""
    half, hour, minute = value
    third = (hour // 3, minute // 3) if minute % 3 == hour % 3 == 0 and minute >= 30 else (hour, (minute + 30) % 60)
    times = ((hour % 12 + 1, minute), (hour, (minute + 1) % 60), third)
    return random.choice([("PM" if half == "AM" else "AM", hour, minute), *((half, *time) for time in times)])


KINDS["times of day"] = Kind(
    lambda r: (r.choice(("AM", "PM")), r.randint(1, 12), r.choice((0, 5, 15, 30, 36, 45, 54))), near_time,
    lambda v: {"name": v[0], "name_low": v[0].lower(), "name_dots": f"{v[0][0].lower()}.m.", "h": v[1],
    "hh": f"{v[1]:02}", "m": f"{v[2]:02}"},
    r"<h>:<m> | <hh>:<m> | <h>:<m> <name> | <h>:<m> <name_low> | <h>:<m> <name_dots> | <h>:<m>\text{ <name>}"
    r" | <h>:<m>\text{ <name_low>}"
    r" | <h>:<m> \text{<name_dots>} | <hh>:<m> <name>", same=agree, says=named, dress="text")  # fmt: skip


def ratio_parts(value: tuple[int, ...]) -> Parts:
    """None of them is a time of day."""
    double, more = (":".join(str(by * n) for n in value) for by in (2, 30))
    pair = {"a": value[0], "b": value[1]} if len(value) == 2 else {}
    return {"tight": ":".join(map(str, value)), "wide": " : ".join(map(str, value)), "more": more,
            "double": only(len(value) == 3 or value[1] < 5, double), **pair}  # fmt: skip


KINDS["ratios"] = Kind(
    lambda r: tuple(r.randint(1, 9) for _ in range(r.randint(2, 3))),
    lambda r, v: tuple(max(1, abs(n)) for n in nudge(r, v)), ratio_parts,
    r"<tight> | <wide> | <double> | <more> | <a>/<b>"
    r" | \frac{<a>}{<b>}", lambda v: [n // gcd(*v) for n in v])  # fmt: skip

BASES = {
    2: "two",
    3: "three",
    4: "four",
    5: "five",
    6: "six",
    7: "seven",
    8: "eight",
    9: "nine",
    12: "twelve",
    16: "sixteen",
}
HEX = "0123456789ABCDEF"


def based(random: Random) -> tuple[object, str]:
    base = random.choice(list(BASES))
    return base, random.choice(HEX[1:base]) + "".join(random.choices(HEX[:base], k=random.randint(2, 5)))


def near_based(random: Random, value: tuple[int, str]) -> tuple[object, str]:
    (base, digits), at = value, random.randrange(1, len(value[1]))
    base_of_these = random.choice([other for other in BASES if other > int(max(digits), 16)])
    others = (digits[:at] + random.choice(HEX[:base]) + digits[at + 1 :], digits[0] + digits[:0:-1], digits + "0")
    return random.choice([(base_of_these, digits), *((base, other) for other in others)])


KINDS["bases"] = Kind(
    based, near_based, lambda v: {"d": v[1], "name": v[0], "name_1": only(v[0] < 10, v[0]), "name_word": BASES[v[0]],
    "bare": only(v[1].isdigit(), v[1])},
    r"<d>_{<name>} | <d>_<name_1> | (<d>)_{<name>} | (<d>)_<name_1> | <d>_{\text{<name_word>}} | <bare>",
    same=agree, says=named, dress="text")  # fmt: skip

# ── words ────────────────────────────────────────────────────────────────────────────────────

WORDS = ("Yes", "No", "True", "False", "Monday", "Tuesday", "Alice", "Bob", "even", "odd", "parabola", "ellipse",
"north", "infinitely many",
         "no solution", "east", "seat", "listen", "silent")  # fmt: skip


def near_word(random: Random, value: str) -> str:
    is_sequence = value.isupper() and random.random() < 0.8
    return "".join(random.sample(value, len(value))) if is_sequence else random.choice((*WORDS, f"not {value}"))


CHOICE_TRAPS: Dress = {
    "lower": lambda text: text.lower() if text.isalpha() else None,
    "or": lambda text: None if text[-1] == "." else f"{text} or F",
    "not": "not {}".format,
    "two": "{}, F".format,
}
KINDS["choices"] = Kind(
    lambda r: r.choice("ABCDE"), lambda r, v: r.choice("ABCDE"), lambda v: {"a": v},
    r"<a> | (<a>) | \text{<a>} | <a>. | \textbf{(<a>)} | \text{(<a>)} | \mathrm{<a>} | \textbf{<a>}"
    r" | \textbf{<a>.} | \mathbf{<a>}"
    r" | \mathrm{(<a>)} | （<a>）", traps=CHOICE_TRAPS, dress="text")  # fmt: skip
KINDS["words"] = Kind(
    lambda r: "".join(r.sample("ABCDEFGH", r.randint(3, 5))) if r.random() < 0.3 else r.choice(WORDS), near_word,
    lambda v: {"w": v, "one": only(" " not in v, v), "low": only(not v.isupper(), v.lower()),
    "capital": only(not v.isupper(), v.capitalize())},
    r"<w> | \text{<w>} | \textbf{<w>} | \mathrm{<one>} | <low> | \text{<low>} | <capital>", dress="text")  # fmt: skip


# ── dress ────────────────────────────────────────────────────────────────────────────────────


def grown(text: str) -> str | None:
    r"""With \left and \right."""
    if not re.search(r"[(\[]|\\\{", text) or re.search(
        r"left|matrix|sqrt[\[(]|text|4pt|[a-zA-Z]\(|[Oo]r|and|_|choose", text
    ):
        return None
    return re.sub(
        r"\\\}|[)\]]",
        lambda found: rf"\right{found[0]}",
        re.sub(r"\\\{|[(\[]", lambda found: rf"\left{found[0]}", text),
    )


def spaced(space: str) -> Callable[[str], str | None]:
    """Not between words or numbers."""
    tight = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2}|[0-9] [0-9]|\\\\|text|\\[a-z]+ |choose")
    return lambda text: text.replace(" ", space) if " " in text and not tight.search(text) else None


def within(left: str, right: str) -> Callable[[str], str | None]:
    return lambda text: None if "$" in text.replace(r"\$", "") else left + text + right


def in_font(font: str) -> Callable[[str], str | None]:
    return lambda text: f"{font}{{{text}}}" if re.fullmatch(r"[-\d.,/]+", text) else None


TYPESETTING: Dress = {
    "U+2212": lambda text: text.replace("-", "−"),
    r"\left": grown,
    r"\dfrac": lambda text: text.replace(r"\frac{", r"\dfrac{"),
    r"\tfrac": lambda text: text.replace(r"\frac{", r"\tfrac{"),
    "full width": lambda text: text.translate(WIDE) if re.fullmatch(r"[\d(), ]+", text) else None,
    **{space: spaced(space) for space in (r"\,", "~", r"\;", r"\ ", r"\quad ")},
}  # fmt: skip
FRAMES: Dress = {
    "$": within("$", "$"), r"\(": within(r"\(", r"\)"), r"\[": within(r"\[ ", r" \]"),
    r"\[, lines": within("\\[\n", "\n\\]"),
    "the final answer is $": within("the final answer is $", "$."), r"\boxed": r"\boxed{{{}}}".format,
    "spaces": "  {} ".format,
    ".": lambda text: None if text[-1] == "." else f"{text}.", "The answer is": "The answer is {}".format,
    "Answer:": "Answer: {}".format,
    "答案": "答案：{}".format, "最终答案是": "最终答案是 {}".format,
}  # fmt: skip
FONTS: Dress = {
    "。": "{}。".format, "=": lambda text: None if "=" in text else f"= {text}",
    **{font: in_font(font) for font in (r"\text", r"\mathbf", r"\boldsymbol", r"\textbf")},
}  # fmt: skip
DRESSES: dict[str, Sequence[Dress]] = {
    "math": (TYPESETTING, FRAMES),
    "number": (TYPESETTING, {**FRAMES, **FONTS}),
    "text": (FRAMES,),
}


def dressed(random: Random, dress: str, form: str, text: str) -> tuple[str, str]:
    for ways in DRESSES[dress]:
        name = random.choice(list(ways))
        if random.random() < 0.4 and (new := ways[name](text)) not in (None, text):
            form, text = f"{form} // {name}", str(new)
    return form, text


# ── pairs ────────────────────────────────────────────────────────────────────────────────────


def pair(random: Random, name: str, wants_same: bool) -> Pair | None:
    kind = KINDS[name]
    values = [value := kind.draw(random), value if wants_same else kind.near(random, value)]
    texts = [kind.forms(each) for each in values]
    if not all(texts):
        return None
    forms = [random.choice(list(each)) for each in texts]
    written = [each[form] for each, form in zip(texts, forms, strict=True)]
    is_same = kind.same(*(kind.means(kind.says(each, form)) for each, form in zip(values, forms, strict=True)))
    if kind.traps and not wants_same and random.random() < 0.4:
        trap = random.choice(list(kind.traps))
        forms[1], written[1], is_same = (
            f"{forms[0]} // trap: {trap}",
            str(kind.traps[trap](written[0]) or written[0]),
            False,
        )
    if is_same is not wants_same or written[0] == written[1]:
        return None
    sides = [dressed(random, kind.dress, form, text) for form, text in zip(forms, written, strict=True)]
    (form, given), (answer_form, answer) = random.sample(sides, 2)
    return Pair(name, form, answer_form, given, answer, wants_same)


def made(seed: int, count: int) -> Iterator[Pair]:
    """Of each kind as many, every other one the same."""
    random, names = Random(seed), list(KINDS)
    for number in range(count):
        name, wants_same = names[number % len(names)], number // len(names) % 2 == 0
        yield next(one for _ in range(10_000) if (one := pair(random, name, wants_same)))
