r"""
Expressions of an answer, read from its tokens: all of them, or none.

    sum        product + product - ...
    product    power * power / power, or side by side: 2xy, 3(x + 1), x\sqrt{2}; but no number after something
    power      postfix ^ argument
    postfix    atom ! °
    atom       number, mixed number, letter, function, fraction, root, (sum), |sum|

``a / b c`` is ``(a / b) c``. What could mean two things, such as ``2 3``, ``\sin x / 2`` or ``a^b^c``, is `Unreadable`.
"""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from asyncrl.reward.answers.notation import Token
from asyncrl.reward.answers.value import (
    EXACT,
    FUNCTIONS,
    Expression,
    Number,
    Operation,
    Symbol,
    TooLarge,
    Unreadable,
)

MAX_DEPTH = 24
NO_NAMES = {"abs", "root", "binom", "floor", "ceil"}
FUNCTION_NAMES = {name: name for name in (*FUNCTIONS, *EXACT) if name.isalpha() and name not in NO_NAMES} | {
    "lg": "log"
}
FUNCTION_NAMES |= {f"\\{command}": name for command, name in FUNCTION_NAMES.items()}
"""Functions by what is written: ``sin``, ``\\sin``."""
ANGLES = ("sin", "cos", "tan", "cot", "sec", "csc")
TOO_LARGE = frozenset(r"\sum \prod \int \iint \oint \lim \limsup \liminf \bigcup \bigcap".split())  # noqa: SIM905
"""Commands of what is never computed."""
SHORT_WORDS = frozenset("no on or as at is it us we he me my am an in of so to do go up by be hi ok if".split())  # noqa: SIM905
"""Words of two letters, which are otherwise a product."""
TOGETHER = tuple(map(frozenset, ("abc", "xyz", "uvw", "mnp", "pqr", "rst", "ijk")))
"""Letters that are variables beside each other."""
PLAIN = frozenset("abcdxyz")
CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|", "lfloor": "rfloor", "lceil": "rceil"}
STARTS = frozenset(("(", "[", "{", "frac", "sqrt", "root", "binom", "lfloor", "lceil"))
"""Signs that begin a factor."""
WRAPPED = {"|": "abs", "lfloor": "floor", "lceil": "ceil"}


def is_product(run: str, *, is_alone: bool) -> bool:
    """
    True if a run of letters is a product of variables; False if it is a word, a name, a choice.

    ``is_alone``: nothing but letters is in the answer, so that ``AB`` is no product, and ``no`` a word.
    """
    if len(run) == 1:
        return True
    letters = set(run)
    if any(letters <= together for together in TOGETHER):
        return True
    if is_alone:
        return run.islower() and run not in SHORT_WORDS and (len(run) == 2 or not letters & set("aeiouy"))
    return len(run) == 2 or letters <= PLAIN or run.isupper() or not letters & set("aeiouAEIOU")


def read_expression(tokens: Sequence[Token], *, degrees_allowed: bool = False) -> tuple[Expression, bool]:
    """
    Read all tokens as one expression, and whether a part of it, outside of functions, is in degrees.

    Raises:
        Unreadable: The tokens are no expression.
        TooLarge: It would take too long to tell.
    """
    reader = _Reader(tokens)
    expression = reader.sum()
    if reader.next is not None:
        raise Unreadable(reader.next.text)
    if reader.has_degrees and not degrees_allowed:
        raise Unreadable("°")
    return expression, reader.has_degrees


def number_of(text: str) -> Number:
    """Number of a token: ``12``, ``.5``, ``1.5e3``, ``0.1(6)``."""
    mantissa, _, power = text.lower().partition("e")
    written, _, again = mantissa.rstrip(")").partition("(")
    whole, point, places = written.partition(".")
    scale = Fraction(10) ** int(power or 0)
    value = Fraction(int(f"{whole or 0}{places}"), 10 ** len(places))
    if again:
        value += Fraction(int(again), 10 ** len(places) * (10 ** len(again) - 1))
    if not point or again:
        return Number(value * scale)
    return Number(value * scale, len(f"{whole}{places}".lstrip("0")), Fraction(1, 10 ** len(places)) * scale)


class _Reader:
    """A place in the tokens of an expression."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = list(tokens)
        self._place = 0
        self._depth = 0
        self._in_function = 0
        self._in_bars = 0
        self._is_alone = all(token.kind == "run" for token in tokens)
        self.has_degrees = False

    # ── tokens ──────────────────────────────────────────────────────────────────────────────

    @property
    def next(self) -> Token | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _is(self, *texts: str) -> bool:
        return self.next is not None and self.next.kind == "sign" and self.next.text in texts

    def _takes(self, *texts: str) -> str:
        """Text of the next sign, which is taken, if it is one of these; else an empty one."""
        if not self._is(*texts):
            return ""
        return self._take().text

    def _take(self) -> Token:
        if self.next is None:
            raise Unreadable("it ends too early")
        self._place += 1
        return self._tokens[self._place - 1]

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise Unreadable(f"expected {text}")

    def _take_first(self) -> Token:
        """The first letter or digit of the next token; the rest of it stays."""
        token = self._take()
        if len(token.text) > 1 and token.kind in ("run", "number"):
            self._place -= 1
            self._tokens[self._place] = token._replace(text=token.text[1:], has_gap=False)
            return token._replace(text=token.text[0])
        return token

    # ── sums and products ───────────────────────────────────────────────────────────────────

    def sum(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge
        total = self._signed(self._product)
        while sign := self._takes("+", "-"):
            total = Operation(sign, (total, self._product()))
        self._depth -= 1
        return total

    def _signed(self, read: Callable[[], Expression]) -> Expression:
        sign = self._takes("+", "-")
        value = read()
        return _negative(value) if sign == "-" else value

    def _product(self) -> Expression:
        product = self._power(is_first=True)
        while self.next is not None:
            if sign := self._takes("*", "/"):
                product = Operation(sign, (product, self._signed(lambda: self._power(is_first=True))))
            elif self._starts_factor():
                product = Operation("*", (product, self._power(is_first=False)))
            else:
                break
        return product

    def _starts_factor(self) -> bool:
        """True before a factor that no sign stands before."""
        token = self.next
        if token is None or token.kind in ("begin", "end", "based"):
            return False
        if token.kind == "number":  # 2!3! and 2^m 2^n, and no other number beside something
            before, *after = self._tokens[self._place - 1 :][:3]
            return before.text == "!" or (before.kind != "number" and [part.text for part in after[1:]] == ["^"])
        is_bar = token.text == "|" and not self._in_bars
        return token.kind != "sign" or token.text in STARTS or token.text in FUNCTION_NAMES or is_bar

    def _power(self, *, is_first: bool) -> Expression:
        base = self._postfix(is_first=is_first)
        if not self._takes("^"):
            return base
        exponent = self._argument()
        if self._is("^", "!", "'"):
            raise TooLarge
        return Operation("^", (base, exponent))

    def _postfix(self, *, is_first: bool) -> Expression:
        value = self._atom(is_first=is_first)
        while sign := self._takes("!", "°"):
            if sign == "!" and self._is("!"):
                raise Unreadable("!!")
            if sign == "!":
                value = Operation("!", (value,))
            elif self._in_function:
                value = Operation("/", (Operation("*", (value, Symbol("\\pi"))), Number(Fraction(180))))
            else:
                self.has_degrees = True
        return value

    def _argument(self) -> Expression:
        """Group in an exponent, or one number, letter or root with its sign."""
        if self._takes("{"):
            return self._closed("}")
        return self._signed(self._single)

    def _single(self) -> Expression:
        """A whole number, a letter, or an atom that begins with a sign."""
        token = self.next
        if token is not None and token.kind == "number":
            return number_of(self._take().text)
        if token is not None and token.kind == "run" and token.text not in FUNCTION_NAMES:
            return self._letter(self._take_first())
        return self._atom(is_first=True)

    def _tex_argument(self) -> Expression:
        """Argument of a command: a group, or one digit or letter."""
        if self._takes("{"):
            return self._closed("}")
        token = self._take_first()
        if token.kind == "number" and token.text.isdecimal():
            return number_of(token.text)
        if token.kind in ("run", "symbol"):
            return self._letter(token)
        if token.text == "sqrt":
            return self._root()
        raise Unreadable(token.text)

    def _closed(self, closing: str) -> Expression:
        value = self.sum()
        if closing == "}" and self._takes("choose"):
            value = Operation("binom", (value, self.sum()))
        self._expect(closing)
        return value

    # ── atoms ───────────────────────────────────────────────────────────────────────────────

    def _atom(self, *, is_first: bool) -> Expression:
        token = self._take()
        if token.kind == "number":
            return self._number(token, is_first=is_first)
        if token.kind in ("run", "symbol"):
            return self._letters(token)
        if token.kind != "sign":
            raise Unreadable(token.text)
        if token.text in TOO_LARGE:
            raise TooLarge
        if token.text in FUNCTION_NAMES:
            return self._function(FUNCTION_NAMES[token.text])
        match token.text:
            case "(" | "[" | "{" | "|" | "lfloor" | "lceil" as opening:
                self._in_bars += opening == "|"
                value = self._closed(CLOSING[opening])
                self._in_bars -= opening == "|"
                return Operation(WRAPPED[opening], (value,)) if opening in WRAPPED else value
            case "frac":
                return Operation("/", (self._tex_argument(), self._tex_argument()))
            case "binom":
                return Operation("binom", (self._tex_argument(), self._tex_argument()))
            case "sqrt":
                return self._root()
            case "root":
                return Operation("root", (self._single(), Number(Fraction(2))))
        raise Unreadable(token.text)

    def _root(self) -> Expression:
        degree: Expression = Number(Fraction(2))
        if self._takes("["):
            degree = self._closed("]")
        return Operation("root", (self._tex_argument(), degree))

    def _number(self, token: Token, *, is_first: bool) -> Expression:
        """A number, with the fraction of a mixed one: ``1 1/2``, ``1\\frac{1}{2}``."""
        number, beside = number_of(token.text), self._tokens[self._place : self._place + 3]
        if self._is("frac"):
            fraction = self._atom(is_first=True)
        elif (
            len(beside) == 3
            and [part.kind for part in beside] == ["number", "sign", "number"]
            and beside[1].text == "/"
        ):
            if not beside[0].has_gap:
                return number
            self._place += 3
            fraction = Operation("/", (number_of(beside[0].text), number_of(beside[2].text)))
        else:
            return number
        match fraction:
            case Operation("/", (Number(top, 0), Number(under, 0))):
                is_proper = 0 < top < under and top.denominator == under.denominator == 1
                if not (is_first and is_proper and token.text.isdecimal()):
                    raise Unreadable("a number beside a fraction")
                return Number(number.value + top / under)
        return Operation("*", (number, fraction))

    def _letters(self, token: Token) -> Expression:
        """A letter, the first one of a product, or a function that is written in plain letters."""
        if token.kind == "symbol":
            return self._letter(token)
        run = token.text
        if run in FUNCTION_NAMES:
            return self._function(FUNCTION_NAMES[run])
        if run == "pi":
            return Symbol("\\pi")
        if run == "sqrt":
            return Operation("root", (self._single(), Number(Fraction(2))))
        if found := re.fullmatch(r"(sin|cos|tan|ln|log)([a-z])", run):
            self._place -= 1
            self._tokens[self._place] = token._replace(text=found[2])
            return self._function(found[1])
        if len(run) == 1 or (not token.is_roman and is_product(run, is_alone=self._is_alone)):
            self._place -= 1
            return self._letter(self._take_first())
        raise Unreadable(run)

    def _letter(self, token: Token) -> Expression:
        """A letter with its index and primes; ``f(x)`` of an unknown function is one too."""
        name = token.text
        if self._takes("_"):
            name += f"_{self._group()}"
        while self._takes("'"):
            name += "'"
        if name in ("f", "g") and self._is("("):
            name += self._group()
        return Symbol(name)

    def _group(self) -> str:
        """Text of the next group, or of the next letter or number."""
        opening = self._takes("{", "(")
        if not opening:
            return self._take_first().text if self.next and self.next.kind == "run" else self._take().text
        depth, texts = 1, []
        while depth:
            token = self._take()
            depth += (token.text == opening) - (token.text == CLOSING[opening])
            texts.append(token.text)
        return " ".join(texts[:-1]) if opening == "{" else f"({' '.join(texts)}"

    def _function(self, name: str) -> Expression:
        """A function with its base, its power, and its argument: a group, or the factors up to the next sign."""
        base = self._tex_argument() if name == "log" and self._takes("_") else Number(Fraction(10))
        exponent = self._argument() if self._takes("^") else None
        if name in ANGLES and exponent == _negative(Number(Fraction(1))):
            name, exponent = f"arc{name}", None
        self._in_function += 1
        if self._in_function > MAX_DEPTH:
            raise TooLarge
        arguments = self._arguments(name)
        self._in_function -= 1
        if name in ("max", "min", "gcd", "lcm") and len(arguments) > 1:
            value = arguments[0]
            for argument in arguments[1:]:
                value = Operation(name, (value, argument))
        elif len(arguments) == 1 and name not in ("max", "min", "gcd", "lcm"):
            value = Operation(name, (arguments[0], base) if name == "log" else (arguments[0],))
        else:
            raise Unreadable(name)
        return value if exponent is None else Operation("^", (value, exponent))

    def _arguments(self, name: str) -> list[Expression]:
        if opening := self._takes("(", "{"):
            found = [self.sum()]
            while self._takes(","):
                found.append(self.sum())
            self._expect(CLOSING[opening])
            if self._is("^", "!"):
                raise Unreadable("a power of a function or of its argument")
            return found
        product = self._power(is_first=True)
        while self._starts_factor() and not (self.next and self.next.text in FUNCTION_NAMES):
            if self._is("(", "[") and name not in ANGLES:
                raise Unreadable("an argument that may go on")
            product = Operation("*", (product, self._power(is_first=False)))
        if self._is("/"):
            raise Unreadable("an argument that may go on")
        return [product]


def _negative(value: Expression) -> Expression:
    if isinstance(value, Number):
        return Number(-value.value, value.digits, value.step)
    return Operation("-", (Number(Fraction(0)), value))
