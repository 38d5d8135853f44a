"""Explanations as HTML: safe to put into any page, and readable without colours."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from numsim.explain import explain
from numsim.formats import Format, list_formats
from numsim.show import html, text


class Reader(HTMLParser):
    """The text of a page, its tags and attributes; fails on tags that do not close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words, self.tags, self.attributes, self.open = "", [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.mark.parametrize("format", list_formats(), ids=str)
def test_the_words_are_those_of_the_text(format: Format) -> None:
    for x in ("0.1", "1e-9", "1e9", "2 + 1", "0", "inf"):
        try:
            e = explain(x, format)
        except ValueError:
            continue
        page = Reader(e._repr_html_())
        assert page.words == str(e)
        assert set(page.tags) <= {"div", "pre", "span"}
        assert {name for name, _ in page.attributes} <= {"role", "aria-label", "style", "title"}


def test_every_bit_says_its_weight_and_the_card_its_sentence() -> None:
    page = dict.fromkeys(Reader(explain("0.1", "bf16")._repr_html_()).attributes)
    titles = [value for name, value in page if name == "title"]
    assert (
        titles[:2] == ["sign: 1 means minus", "exponent bit, worth 128"] and titles[-1] == "fraction bit, worth 2^-11"
    )
    assert any(
        n == "aria-label" and v.startswith("0.1 in BF16 is 0.10009765625 = 205/2048 exactly; code") for n, v in page
    )


@pytest.mark.parametrize("format", [f for f in list_formats() if f.bits <= 8], ids=str)
def test_the_weights_add_up_to_the_value(format: Format) -> None:
    for code in range(format.codes):
        e = explain(f"{format}:{code:#x}")
        if e.value is None:
            continue
        bits = [bit for field in text.bits_line(code, format) if field.style != "faint" for bit in field.text]
        worth = dict.fromkeys(("sign", "exponent", "fraction"), 0)
        for bit, title in zip(bits, html._bit_titles(code, format), strict=True):
            if bit == "1":
                number = title.rpartition(" ")[2]
                weight = 1 if title.startswith("sign") else 2 ** int(number[2:]) if "^" in number else int(number)
                worth[title.split()[0].rstrip(":")] += weight
        power = max(worth["exponent"] - format.bias, format.emin)
        hidden = 2**power if worth["exponent"] or not format.zero else 0
        assert (hidden + worth["fraction"]) * (-1) ** worth["sign"] == e.value


def test_hostile_names_are_escaped() -> None:
    evil = Format("x", 5, 2, 15, title="<script>alert(1)</script>\"'&")
    card = explain("0.1", evil)._repr_html_()
    assert "<script" not in card and "&lt;script&gt;" in card
    assert "<script" not in html.page(explain("0.1", evil))
    Reader(card)


def test_nothing_is_loaded_and_pages_are_whole() -> None:
    page = html.page(explain("2048 + 1", "fp16"))
    assert not re.search(r"https?:|url\(|<link|<img|@import|src=|href=|\son\w+=", page)
    assert page.startswith("<!DOCTYPE html>") and "<title>2048 + 1 in FP16 is 2048, not 2049</title>" in page
    Reader(page.removeprefix("<!DOCTYPE html>"))
