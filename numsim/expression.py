"""Numbers and short expressions as people type them: a small parser of our own, which evaluates nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple, NoReturn

from numsim.errors import InputError, short
from numsim.formats import Format, get_format
from numsim.values import NAN, Rational, rational, to_rational

MAX_LENGTH, MAX_DEPTH, MAX_OPERATIONS = 2000, 40, 100


_HELP = (
    "Numbers (0.1, 1/3, 0x1.8p-3, 2^-7, inf, e4m3:0x7e), + - * / ( ), sqrt(x) and fma(a, b, c) are read. "
    'Example: numsim explain "2048 + 1" --format fp16',
    "With --chip, sums of products are read: a*b, 31 x a*b for 31 of them, and one lone number, c. "
    'Example: numsim explain "1*1 + 31 x 2^-7*2^-7" --chip h100 --format e4m3',
)


class Node(NamedTuple):
    """A literal (no operation, no arguments) or an operation on nodes; ``text`` as typed."""

    text: str
    operation: str
    arguments: tuple[Node, ...] = ()
    value: Rational = NAN
    code: tuple[Format, int] | None = None  # for a literal like e4m3:0x7e


_TOKEN = re.compile(
    r"(?P<code>[A-Za-z]\w*:[0-9A-Za-z_|]+)|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?\d+)?)"
    r"|(?P<power>2(?:\^|\*\*)[+-]?\d+(?![\w.]))"
    r"|(?P<number>(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[-+*/(),])",
    re.ASCII,
)
_SIGNS = {"×": "*", "·": "*", "÷": "/", "−": "-", "\N{NO-BREAK SPACE}": " "}  # what people paste
_OPERATIONS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_FUNCTIONS = {"sqrt": 1, "fma": 3}
_POWERS = "only whole powers of two are read, as 2^-7"
_SPECIAL = {"inf": Rational(0, 1, 0), "infinity": Rational(0, 1, 0), "nan": NAN}


class _Parser:
    """Recursive descent over a list of tokens; counts operations and depth, so that no input exhausts anything."""

    def __init__(self, text: str, repeats: bool = False) -> None:
        self.repeats = repeats  # whether "31 x" says how often a product is there
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
                end = match.end()
                if repeats and self.text[i] in "xX" and self.tokens and self.tokens[-1][0] == "number":
                    end = i + 1  # "31 x2*2"
                self.tokens.append((str(match.lastgroup), i, end))
                i = end
            else:
                c = self.text[i]
                shown = repr(c) if " " < c < "\x7f" else f"character U+{ord(c):04X}"
                self.fail(_POWERS if c == "^" else f"{shown} is not known here", i)
        self.tokens.append(("end", len(self.text), len(self.text)))

    def fail(self, why: str, at: int | None = None) -> NoReturn:
        """Raise with the place marked by a caret below it."""
        at = self.tokens[self.at][1] if at is None else at
        shown = "".join(c if " " <= c < "\x7f" else "?" for c in self.text)
        start = max(0, at - 40)
        before, after = "..." if start else "", "..." if len(shown) > at + 30 else ""
        line = f"{before}{shown[start : at + 30]}{after}"
        raise InputError(
            f"cannot read the expression: {why}\n  {line}\n  {' ' * (len(before) + at - start)}^\n{_HELP[self.repeats]}"
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
        first = self.at
        minus = self.repeats and self.sign() == "-" and self.repeated(first + 1)
        self.at += minus
        if not (self.repeats and self.repeated(self.at)):
            return self.chain("*/", self.factor)
        count = self.factor()
        self.at += 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} levels deep")
        node = self.operation("repeat", (count, self.product()), first)
        self.depth -= 1
        return self.operation("neg", (node,), first) if minus else node

    def repeated(self, at: int) -> bool:
        """Whether "31 x" stands here."""
        words = [self.text[start:end] for _, start, end in self.tokens[at : at + 2]]
        return len(words) == 2 and words[1] in ("x", "X") and self.tokens[at][0] == "number"

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
        if kind == "power":
            exponent = word.lstrip("2^*")
            if len(exponent.lstrip("+-0")) > 4:
                self.fail("exponents of five digits and more are not read; every format ends far below", start)
            return Node(word, "", value=rational(Fraction(2) ** int(exponent)))
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
            else _POWERS if word == "*" else "a number is missing before this"
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


# --- sums of products -------------------------------------------------------------------------------------------------
MAX_PRODUCTS = 1024


class Products(NamedTuple):
    """c and the products that are added to it; ``c`` is None where no lone number stands in the sum."""

    pairs: list[tuple[Rational, Rational]]
    c: Rational | None


def parse_products(text: str) -> Products:
    """Read a sum of products as a tensor core adds it: ``a*b``, ``31 x a*b`` for 31 of them, and one lone number, c.

    >>> read = parse_products("1 + 3 x 2^-7*2^-7 - 0.5*4")
    >>> len(read.pairs), read.pairs[-1][0], read.c
    (4, Rational(sign=1, numerator=1, denominator=2), Rational(sign=0, numerator=1, denominator=1))
    """
    found: list[tuple[Rational, Rational]] = []
    lone: list[tuple[str, Rational]] = []
    waiting = [(_Parser(text, repeats=True).parse(), False)]  # the last first: a sum's left part is deeply nested
    while waiting:
        node, minus = waiting.pop()
        if (x := _number(node)) is not None:
            lone.append((node.text, negative(x) if minus else x))
        elif node.operation in ("add", "sub"):
            left, right = node.arguments
            waiting += [(right, minus != (node.operation == "sub")), (left, minus)]
        elif node.operation == "neg":
            waiting.append((node.arguments[0], not minus))
        elif node.operation == "repeat":
            waiting += [(node.arguments[1], minus)] * _count(node)
        elif node.operation == "mul":
            factors = [_number(x) for x in node.arguments]
            if factors[0] is None or factors[1] is None:
                raise InputError(f"{short(node.text)}: a product has two numbers, a*b. {_HELP[True]}")
            found.append((negative(factors[0]) if minus else factors[0], factors[1]))
        else:
            raise InputError(f"{short(node.text)}: a tensor core only multiplies and adds. {_HELP[True]}")
        if max(len(found), len(waiting) // 2) > MAX_PRODUCTS:
            raise InputError(f"more than {MAX_PRODUCTS} products: no sum as long is explained. {_HELP[True]}")
    if len(lone) > 1:
        first, second = lone[0][0], lone[1][0]
        raise InputError(
            f"{first} and {second} are no products: one lone number is c, write any other as {second}*1. {_HELP[True]}"
        )
    return Products(found, lone[0][1] if lone else None)


def _number(node: Node) -> Rational | None:
    """A number with its signs, or a ratio of two; None for what has to be computed."""
    if node.operation == "neg":
        x = _number(node.arguments[0])
        return None if x is None else negative(x)
    if node.operation == "div" and not any(x.operation for x in node.arguments):
        x, y = (a.value for a in node.arguments)
        if x.denominator and y.denominator and y.numerator:
            ratio = _ratio(x.numerator * y.denominator, x.denominator * y.numerator)
            return Rational(int(x.sign != y.sign), *ratio)
    return None if node.operation else node.value


def _count(node: Node) -> int:
    x = node.arguments[0].value
    if x.denominator != 1 or not 1 <= x.numerator <= MAX_PRODUCTS:
        raise InputError(
            f"{node.arguments[0].text} x: a whole number from 1 to {MAX_PRODUCTS} is needed. {_HELP[True]}"
        )
    return x.numerator
