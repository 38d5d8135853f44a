"""The emulator driven by every record of every chip: the probes find its parameters, and no other unit fits."""

from dataclasses import replace
from itertools import groupby

import pytest

from numsim.reveal.findings import findings
from numsim.reveal.fit import answers_to_probes, candidates, fits_of
from numsim.reveal.operands import Interface
from numsim.reveal.probes import sums_for
from numsim.reveal.reading import Reading
from numsim.tensorcore import list_chips, list_models
from numsim.tensorcore.models import TYPES

RECORDS = [m for chip in list_chips() for m in list_models(chip)]


def interface_key(m):
    return str(Interface.of(m))


# all records of one interface together: the probes are built once
INTERFACES = {key: list(ms) for key, ms in groupby(sorted(RECORDS, key=interface_key), interface_key)}


def arithmetic(m):
    """What decides the result: the unit and the products that it really adds at once."""
    k = m.k if m.unit.path in ("fp8-as-fp16", "groups") else min(m.k, m.unit.length)
    unit = replace(m.unit, length=k) if m.unit.path == "block" else m.unit
    return unit, m.a, m.b, m.c, m.d, k


def test_all_records_are_here():
    assert sum(map(len, INTERFACES.values())) == len(RECORDS) > 500


@pytest.mark.parametrize("key", INTERFACES)
def test_record(key):
    for one in {arithmetic(m): m for m in INTERFACES[key]}.values():
        ix = Interface.of(one)
        answers = answers_to_probes(one, ix)
        alike = {m for group in candidates(ix.words, TYPES[ix.d], ix.k, ix.scale_block) for m in group
                 if arithmetic(m) == arithmetic(one)}  # fmt: skip
        fits = fits_of(ix, answers)
        assert one in alike and {m for f in fits if not f.total for m in f.models} == alike
        seen = {p: dict(zip(s.keys, answers[p].tolist(), strict=True)) for p, s in sums_for(ix).items()}
        found = {f.name: f.value for f in findings(Reading(ix, seen))}
        for name, value in expected(one).items():
            assert found[name] == value, (str(one), name)


def expected(m):
    """What the record says, in the words of findings; of the floor only where it shows."""
    u, path = m.unit, m.unit.path
    output = {
        "rz-fp32": "toward-zero, 23 bits", "rz-e8m13": "toward-zero, 13 bits", "rne-fp16": "nearest-even, 10 bits",
        "rne-fp32": "nearest-even, 23 bits", "rne-fp64": "nearest-even, 52 bits",
    }[u.output]  # fmt: skip
    late = path == "fp8-as-fp16" and m.d == "f32"
    want = {"output": "nearest-even, 23 bits" if late else output}
    if path in ("block", "groups", "fp8-as-fp16", "cdna3", "cdna3-fp8"):
        want["fraction bits"] = u.fraction_bits
    if path == "pairwise":
        want |= {"block": "tree", "subnormal a": "flushed", "subnormal b": "flushed", "subnormal c": "flushed"}
    else:
        want["block"] = m.k // 2 if path == "fp8-as-fp16" else min(u.length, max(m.k, 1))
    if path == "block":
        want |= {"c": "early", "normalised": "no", "cut of c": "toward-zero", "zeros": "+0"}
        if m.d == "f32" or m.a == "f16":  # an FP16 c is never small enough beside narrow formats
            want |= {f"subnormal {x}": "kept, not normalised" for x in ("a", "b")}
        want["NaN"] = "0x7fff" if m.d == "f16" else "0x7fffffff"
        if m.a in ("bf16", "tf32") or (m.a == m.d == "f16") or (m.scale and "e5m2" in (m.a, m.b)):
            want["floor"] = u.floor
        if m.d == "f16" and m.a == m.b and m.a in ("f16", "e4m3", "e5m2") and m.k > 4:
            want["rounded once"] = "yes"
    if path == "groups":
        want |= {"groups": 16, "exponents": "the scales alone", "cut of products": "toward-zero", "c": "early"}
        want |= {"scales": m.scale_block, "floor": u.floor if m.scale == "ue8m0" else None}
    if path == "fp8-as-fp16":
        second = {32: "2-3,6-7,10-11,14-15,18-19,22-23,26-27,30-31", 16: "2-3,6-7,10-11,14-15"}
        first = {32: "0-1,4-5,8-9,12-13,16-17,20-21,24-25,28-29", 16: "0-1,4-5,8-9,12-13"}
        want |= {"c": "last", "cut of c": None, "order": f"(({first[m.k]})>({second[m.k]}))>c"}
    if path == "cdna3":
        want |= {"c": "after each block's products", "cut of products": "toward-zero", "cut of c": "down"}
    if path == "cdna3-fp8":
        want |= {"summed apart": "k = 1,3..15", "cut of c": "down, then dropped"}
    if path in ("fma", "exact"):
        want |= {"c": "first" if path == "fma" else "early", "zeros": "IEEE"}
    if m.a in ("tf32", "xf32"):
        want["bits read"] = 10
    if m.a == "f32":
        want["bits read"] = 23
    return want
