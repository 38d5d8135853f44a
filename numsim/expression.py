"""Numbers and short expressions as people type them: a small parser of our own, which evaluates nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, NoReturn

from numsim.errors import InputError
from numsim.formats import Format, get_format
from numsim.values import NAN, Rational, rational, to_rational

MAX_LENGTH, MAX_DEPTH, MAX_OPERATIONS = 2000, 40, 100


class Node(NamedTuple):
    """A literal (no operation, no arguments) or an operation on nodes; ``text`` as typed."""

    text: str
    operation: str
    arguments: tuple[Node, ...] = ()
    value: Rational = NAN
    code: tuple[Format, int] | None = None  # for a literal like e4m3:0x7e


_TOKEN = re.compile(
    r"(?P<code>[A-Za-z]\w*:[0-9A-Za-z_|]+)|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?)"
    r"|(?P<number>(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[-+*/(),])",
    re.ASCII,
)
_SIGNS = {"×": "*", "·": "*", "÷": "/", "−": "-", "\N{NO-BREAK SPACE}": " "}  # what people paste
_OPERATIONS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_FUNCTIONS = {"sqrt": 1, "fma": 3}
_SPECIAL = {"inf": Rational(0, 1, 0), "infinity": Rational(0, 1, 0), "nan": NAN}


class _Parser:
    """Recursive descent over a list of tokens; counts operations and depth, so that no input exhausts anything."""

    def __init__(self, text: str) -> None:
        self.text = "".join(_SIGNS.get(c, c) for c in text)
        self.tokens: list[tuple[str, int, int]] = []
        self.at = self.depth = self.operations = 0
        if len(text) > MAX_LENGTH:
            raise InputError(f"an expression of {len(text):,} characters: at most {MAX_LENGTH:,} are read.")
        i = 0
        while i < len(self.text):
            if self.text[i] in " \t\n\r":
                i += 1
            elif match := _TOKEN.match(self.text, i):
                self.tokens.append((str(match.lastgroup), i, match.end()))
                i = match.end()
            else:
                c = self.text[i]
                shown = repr(c) if " " < c < "\x7f" else f"character U+{ord(c):04X}"
                self.fail(f"{shown} is not known here", i)
        self.tokens.append(("end", len(self.text), len(self.text)))

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        """Raise with the place marked by a caret below it."""
        at = self.tokens[self.at][1] if at is None else at
        shown = "".join(c if " " <= c < "\x7f" else "?" for c in self.text)
        start = max(0, at - 40)
        before, after = "..." if start else "", "..." if len(shown) > at + 30 else ""
        line = f"{before}{shown[start : at + 30]}{after}"
        raise InputError(
            f"cannot read the expression: {why}\n  {line}\n  {' ' * (len(before) + at - start)}^\n"
            "Numbers (0.1, 1/3, 0x1.8p-3, inf, e4m3:0x7e), + - * / ( ), sqrt(x) and fma(a, b, c) are read. "
            'Example: numsim explain "2048 + 1" --format fp16'
        )

    def sign(self) -> str:
        kind, start, end = self.tokens[self.at]
        return self.text[start:end] if kind == "sign" else ""

    def since(self, first: int) -> str:
        """The text from a token up to the one before the present."""
        return " ".join(self.text[self.tokens[first][1] : self.tokens[self.at - 1][2]].split())

    def parse(self) -> Node:
        if len(self.tokens) == 1:
            self.fail("it is empty")
        node = self.sum()
        if self.tokens[self.at][0] != "end":
            if self.sign() == ",":
                self.fail("write a decimal point, not a comma")
            self.fail("an operator is missing before this" if self.sign() in ("", "(") else "nothing opens this")
        return node

    def operation(self, operation: str, arguments: tuple[Node, ...], first: int) -> Node:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            self.fail(f"more than {MAX_OPERATIONS} operations")
        return Node(self.since(first), operation, arguments)

    def sum(self) -> Node:
        return self.chain("+-", self.product)

    def product(self) -> Node:
        return self.chain("*/", self.factor)

    def chain(self, signs: str, part: Callable[[], Node]) -> Node:
        first = self.at
        node = part()
        while (sign := self.sign()) and sign in signs:
            self.at += 1
            node = self.operation(_OPERATIONS[sign], (node, part()), first)
        return node

    def factor(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} levels deep")
        node = self.factor_inside()
        self.depth -= 1
        return node

    def factor_inside(self) -> Node:
        first = self.at
        kind, start, end = self.tokens[first]
        word = self.text[start:end]
        self.at += 1
        if word in ("-", "+") and kind == "sign":
            node = self.factor()
            if word == "-" and node.operation == "" and first + 2 == self.at and node.code is None:
                # a minus before a number is part of the number: -0.1 is rounded, not 0.1 negated
                return node._replace(text=f"-{node.text}", value=negative(node.value))
            return self.operation("neg", (node,), first) if word == "-" else node
        if word == "(":
            node = self.sum()
            self.expect(")")
            return node._replace(text=self.since(first))
        if kind == "code":
            return self.literal(word, start)
        if kind in ("number", "hex"):
            return Node(word, "", value=self.number(word, start))
        if kind == "name" and word.lower() in _SPECIAL:
            return Node(word, "", value=_SPECIAL[word.lower()])
        if kind == "name" and word.lower() in _FUNCTIONS:
            self.expect("(")
            arguments = [self.sum()]
            while self.sign() == ",":
                self.at += 1
                arguments.append(self.sum())
            if len(arguments) != (count := _FUNCTIONS[word.lower()]):
                self.fail(f"{word} takes {count} argument{'s' * (count > 1)}, not {len(arguments)}", start)
            self.expect(")")
            return self.operation(word.lower(), tuple(arguments), first)
        self.at = first
        self.fail(
            "a number is missing at the end" if kind == "end" else f"{word!r} is no number" if kind == "name"
            else "power is not known" if word == "*" else "a number is missing before this"
        )  # fmt: skip

    def expect(self, sign: str) -> None:
        if self.sign() != sign:
            self.fail(f"{sign!r} is missing")
        self.at += 1

    def number(self, word: str, at: int) -> Rational:
        """A decimal or hexadecimal literal, exactly as written."""
        digits, _, exponent = word.lower().partition("p" if word[:2] in ("0x", "0X") else "e")
        if len(exponent.lstrip("+-0")) > 4:
            self.fail("exponents of five digits and more are not read; every format ends far below", at)
        if not digits.startswith("0x"):
            return rational(Decimal(word.replace("_", "")))
        whole, _, part = digits[2:].partition(".")
        return rational(Fraction(int(whole + part, 16)) * Fraction(2) ** (int(exponent or 0) - 4 * len(part)))

    def literal(self, word: str, at: int) -> Node:
        """A code of a format: e4m3:0x7e, fp16:0b0|01111|0000000000."""
        name, _, digits = word.partition(":")
        format = get_format(name)
        bits = digits.replace("|", "").replace("_", "")
        if not re.fullmatch(r"0[xX][0-9a-fA-F]+|0[bB][01]+", bits):
            self.fail(f"a code is written like {format}:0x{format.max_code:x} or with 0b and bits", at)
        code = int(bits, 0)
        if code >= format.codes:
            self.fail(f"{format} has codes 0 to {format.codes - 1:#x} only", at)
        return Node(word, "", value=to_rational(code, format), code=(format, code))


def parse(text: str) -> Node:
    """Read a number or an expression.

    A whole text like ``1/3`` is one number, as in ``numsim.encode("1/3", ...)``; with spaces it is a division.

    >>> parse("0.1 * 3 + 2").arguments[0].text, parse("1/3").value
    ('0.1 * 3', Rational(sign=0, numerator=1, denominator=3))
    """
    ratio = re.fullmatch(r"\s*([+-]?)(\d+)/(\d+)\s*", text, re.ASCII) if len(text) <= MAX_LENGTH else None
    if ratio and (d := int(Decimal(ratio[3]))):
        return Node(text.strip(), "", value=Rational(int(ratio[1] == "-"), *_ratio(int(Decimal(ratio[2])), d)))
    return _Parser(text).parse()


def _ratio(n: int, d: int) -> tuple[int, int]:
    return Fraction(n, d).as_integer_ratio()


def negative(x: Rational) -> Rational:
    return x if x == NAN else Rational(1 - x.sign, x.numerator, x.denominator)
