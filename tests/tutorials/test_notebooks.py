"""The notebooks run in a clean kernel without network, give what is stored in them, and judge guesses rightly."""

from __future__ import annotations

import ast
import base64
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from numsim.cli import main
from numsim.experiments import list_experiments
from tests.tutorials import notebooks
from tests.tutorials.notebooks import METADATA, NOTEBOOKS, TUTORIALS

pytest.importorskip("nbformat", reason="nbformat is not installed (extra 'test')")

FLOATS = TUTORIALS / "01-what-a-float-is.ipynb"
SUMS = TUTORIALS / "02-rounding-and-sums.ipynb"
CORES = TUTORIALS / "03-inside-a-tensor-core.ipynb"
SCALERS = TUTORIALS / "04-loss-scaling.ipynb"
BLOCKS = TUTORIALS / "05-fp8-and-block-scaling.ipynb"
# What the outputs of a cell must say, whatever is stored.
KEY_NUMBERS = {
    FLOATS.name: {
        "a-tenth": ["It is 0.", "0.1000000000000000055511151231257827021181583404541015625", "0x1d  holds 0.1015625"],
        "e-tenth": ["0.0999755859375 = 819/8192 exactly", "0|01011|1001100110", "guard 0, sticky 1"],
        "by-hand": ["Fraction(819, 8192)"],
        "e-others": ["0|01111011|1001101", "0|0011|101"],
        "a-spacing": ["It is 0.5."],
        "a-subnormal": ["It is not zero.", "0x00a8, subnormal"],
        "a-tie": ["It is 4.0.", "guard 1, sticky 0: a tie"],
        "c-tie": ["[4. 5. 5. 6. 6. 7. 7. 8.] mean error 0.0", "mean error 0.25"],
        "a-integers": ["It is 2048.0.", "2048 + 1 in FP16 is 2048, not 2049"],
        "c-integers": ["FP16  has all integers up to      2,048", "256 = 2^8", "16 = 2^4", "8 = 2^3"],
        "a-overflow": ["It is 448.0.", "[448. 448.  nan  nan]", "[65504. 65504.    inf    inf]"],
        "a-ones": ["It is (2048.0, 256.0, 16.0).", "from term 2048 on no addition counts"],
        "a-cures": ["It is 32.0.", "in pairs          100.0", "FP32 accumulator  100.09765625"],
        "a-updates": ["It is 1.0.", "the mean of 100 weights: 1.10"],
        "a-double": ["It is -416.0.", "-431.99999999999994 -> -432.0 -> -448.0"],
        "a-gradients": ["It is 44.", "44.4%", "bf16                  0.0%"],
    },
    SUMS.name: {
        "a-modes": ["It is 3."],
        "c-modes": ["+0.25000  +0.12500  +0.03125  +0.00195", "+0.00000  +0.00000  -0.09375  -0.12305"],
        "a-pixels": ["It is 0.4.", "toward-zero    -3.84 %"],
        "c-pixels": ["own seed: +1.16 %", "nearest-even: -0.0005 %", "nearest-away: -0.0005 %"],
        "a-double": ["It is 10.", "7 of 1,000,000"],
        "c-double": ["odd: 0 of 1,000,000 wrong", "beside ties: 50% wrong"],
        "a-wide": ["It is 10."],
        "c-wide": ["sqrt     47    23     7     7     7     0     0\n", "fma(9, 3, -2^-9): 26.0, with P = 10 28.0"],
        "a-order": ["It is 5.", "3.6000000000000001 in 17,972 orders"],
        "c-order": ["(a + b) + c == a + (b + c): False", "neumaier     FP64 1   FP32 1   BF16 1"],
        "a-growth": ["It is 2048.0."],
        "c-growth": ["stochastic      32480.0   error  -0.87%", "Kahan           32768.0   error  +0.01%"],
        "a-kahan": ["It is (2048.0, 2050.0).", "    -1.0   2049.0\n"],
        "a-neumaier": ["It is (0.0, 2.0)."],
        "c-neumaier": ["1e200 - 1e100     -1e+100     -1e+100           0           0           1\n"],
        "a-exact": ["It is 40.", "FP64  2098 bits", "exact sum: True"],
        "a-numpy": ["It is 2048.0."],
        "c-numpy": ["pairwise no    pairwise:numpy yes", "is sequential: True", "along 4096, down 2048, cumsum 2048"],
        "a-wider": ["It is inf."],
        "c-wider": ["256                       4096\n", "inf            500         500\n", "4.9949e-05  4.9984e-05"],
        "torch": ["Skipped: PyTorch is not needed"],
    },
    CORES.name: {
        "a-lost": ["It is (1.0, 1.00189208984375)."],
        "a-kept": ["It is 13.", "1 + 31 * 2^-13 = 1.0037841796875 ", "1 + 31 * 2^-14 = 1.0 "],
        "c-by-hand": ["F = 24 against the A100: 300 of 300", "F = 25 against the H100: 300 of 300", "187", "196"],
        "a-normal": ["It is 2.", "1.5 * 1.5 + 2 * 2^-23 = 2.250000238418579", "1 * 2.25  + 2 * 2^-23 = 2.25\n"],
        "a-cancel": ["It is 0.0.", "4 + 4 + 4 + 4: 12", "8 + 8        : 8", "16           : 0"],
        "c-order": ["H100: 200 orders of the same 16 products give 1 results", "A100: 200 orders", "give 3 results",
                    "2^-26 is 1.0000001192092896\nH100: c = 1.0                plus 12 products of 2^-26 is 1.0\n"],
        "a-chips": ["It is (0.0, 8.0, 8.0)."],
        "c-groups": ["v100\nt4, a100, a30, a2, l40s, rtx4090, rtx1000ada\nh100, h200, b200, rtx5090, rtxpro6000\n"],
        "a-fp8": ["It is 13.", "6.6e-02   1.3e-01", "4.9e-04   5.0e-04", "B200                          0.0e+00"],
        "a-tf32": ["It is 1024.0.", "nearest-away  1025", "truncate: off by -0.06"],
        "probe": ["1 + 15 * 2^-22"],
        "a-bits": ["It is 23."],
        "c-reveal": ["4 products are added at once", "on v100; unverified on t4", "the secret: mma", " on v100\nfound"],
        "a-real": ["It is (0.0, -0.5, -0.75).", "mi250x      fp16       0     0.0  same  papers", "recorded results"],
        "c-evidence": ["b200  tcgen05.m128n256k32.kind::f8f6f4.f32.e4m3.e4m3: single-source", "only c = 0 is recorded"],
    },
    SCALERS.name: {
        "a-window": ["It is 8.", "S = 2^9 2^10 2^11 2^12 2^13 2^14 2^15 2^16\n"],
        "a-lost": ["It is 0.7.", "S = 2^0   44.362%"],
        "a-limit": ["It is (22, 16, 16, 18)."],
        "a-string": ["It is 1.0.", "10 C     2  0\n"],
        "c-string": ["growth: 1 to 2", "overflow: probe, 2 to 1"],
        "c-real": ["500 steps, 96 overflows: the same."],
        "a-blind": ["It is 49.", "at most 131072.0 and at least 65536.0"],
        "c-zero": ["torch     S = 1.70141e+38", "apex      S = 1.67772e+07", "keras     S = inf"],
        "a-systems": ["It is (64.0, 128.0, 65536.0)."],
        "c-defaults": ["megatron            2^32                1000        2^0  -               2",
                       "flax                2^16                2001     2^-126  FP32's largest  1"],
        "a-collapse": ["It is 166.", "144 overflows  S = 2^-128   1 / S = inf", "165 overflows  S = 2^-149"],
        "c-collapse": ["2^-127: the weight becomes 0.75\n", "2^-128: the weight becomes -inf\n", "becomes nan"],
        "c-floors": ["flax          2^-126\n", "fairseq        2^-13  raises at step 29", "raises at step 18"],
        "a-clip": ["It is 65536.", "[0.5999999  0.79999983]"],
        "c-protocol": ["RuntimeError: step() has already been called since the last update().", "no error\n"],
        "a-bf16": ["It is (0.0, 0.0, nan).", "[1.0, 1.0, 1.0] and S becomes 32768.0"],
    },
    BLOCKS.name: {
        "a-scale": ["It is 23.", "E4M3 without a scale: 100.0 % become zero", "E5M2 with a scale:    0.06 %"],
        "a-delayed": ["It is 7.0.", "amax 28, scale in use 64, comes back as 7\n"],
        "c-delayed": ["most_recent  of    1   847", "max          of   16    63", "max          of 1024     6"],
        "a-inf": ["It is 1024.", "the scale follows at step 1029", "the scale follows at step 6\n"],
        "a-outlier": ["It is (1023, 31)."],
        "c-formats": ["    4.5 bits a number", "   8.25 bits a number"],
        "a-mx": ["It is 448.0.", "rceil         448 (x 1)  448 (x 2)  480 (x 2)", "even          448 (x 1)  448 (x 1)"],
        "a-nvfp4": ["It is 0.0.", "[448.    4.5   0. ]", "[6. 6. 6.]"],
        "a-sr": ["It is 0.0.", "20% become 0.5"],
        "a-hadamard": ["It is 16.0."],
        "c-hadamard": ["40        85 %    8.3 %                20 %   12.5 %"],
        "c-product": ["without the transform             14.4 %", "with the transform                17.5 %"],
        "a-nf4": ["It is 4.5.", "double quantisation: 4.127 bits"],
        "a-recipes": ["It is 0."],
        "c-recipes": ["te-current               0.0    2.7     0.0    2.7     0.1    5.7"],
        "a-chip": ["It is (200704.0, 201216.0).", "mxf8f6f4.block32.f32.e4m3.e4m3.ue8m0"],
        "c-chip": ["mxfp4  the same bits in 100%", "error of the output 1.4 %"],
    },
}  # fmt: skip
PICTURES = {
    FLOATS.name: ["p-spacing", "p-subnormal", "p-ones", "p-updates", "p-gradients"],
    SUMS.name: ["p-modes", "p-pixels", "p-growth", "p-exact"],
    CORES.name: ["p-lost", "p-normal", "p-chips", "p-groups", "p-fp8"],
    SCALERS.name: ["p-drag", "p-limit", "p-blind", "p-training", "p-systems"],
    BLOCKS.name: ["p-scale", "p-delayed", "p-mx", "p-nf4"],
}
RIGHT: dict[Path, dict[str, Any]] = {
    FLOATS: {
        "g-tenth": 0, "g-spacing": 0.5, "g-subnormal": "Not zero", "g-tie": 4, "g-integers": "2048", "g-overflow": 448,
        "g-ones": [2048, 256, 16], "g-cures": 32, "g-updates": 1, "g-double": -416, "g-gradients": 44,
        "x-1": 0xAA, "x-2": 3 * 2**-16, "x-3": 128, "x-4": 61440,
    },
    SUMS: {
        "g-modes": 3, "g-pixels": "0.4", "g-double": 10, "g-wide": 10, "g-order": 5, "g-growth": 2048,
        "g-kahan": [2048, 2050], "g-neumaier": (0, 2), "g-exact": 40, "g-numpy": 2048, "g-wider": "Inf",
        "x-1": 0.125, "x-2": 8, "x-3": 260,
    },
    CORES: {
        "g-lost": (1, 1 + 31 * 2**-14), "g-kept": 13, "g-normal": 2, "g-cancel": 0, "g-chips": (0, 8, 8), "g-fp8": 13,
        "g-tf32": 1024, "g-bits": 23, "g-real": [0, -0.5, -0.75],
        "x-1": 4, "x-2": 16, "x-3": (0, 1, 4, 5),
    },
    SCALERS: {
        "g-window": 8, "g-lost": 0.7, "g-limit": [22, 16, 16, 18], "g-string": 1, "g-blind": 49,
        "g-systems": (64, 128, 65536), "g-collapse": 166, "g-clip": 2**16, "g-bf16": [0, 0, "NaN"],
        "x-1": 24, "x-2": 6, "x-3": (16000, 16008),
    },
    BLOCKS: {
        "g-scale": 23, "g-delayed": 7, "g-inf": 1024, "g-outlier": (1023, 31), "g-mx": "448", "g-nvfp4": 0, "g-sr": 0,
        "g-hadamard": 16, "g-nf4": 4.5, "g-recipes": 0, "g-chip": (200704, 201216),
        "x-1": 8192, "x-2": 112, "x-3": (6, 8),
    },
}  # fmt: skip
ROUND_EVEN = {
    "Right, in all": "q, r = divmod(n, d); return q + (2 * r > d or (2 * r == d and q % 2 == 1))",
    "No answer yet.": "pass",
    "round_even(1, 2) is 1, and 0 is right. Ties go to the even integer.": "return (2 * n + d) // (2 * d)",
    "round_even(3, 2) is 1, and 2 is right. Ties go to the even integer.": "return (2 * n + d - 1) // (2 * d)",
    "round_even(2, 3) is 0, and 1 is right. Compare": "return n // d + (n // d % 2 if 2 * (n % d) == d else 0)",
    "which is no integer": "return n / d",
    "all in integers": "return round(n / d)",
}
_SUM, _LOOP = "s, lost = terms[0], 0 * terms[0]", "\n    for x in terms[1:]: t = s + x; "
NEUMAIER = {
    "Right, on all 40 lists.": f"{_SUM}{_LOOP}lost = lost + (s - t + x if abs(s) >= abs(x) else x - t + s); s = t\n"
    "    return s + lost",
    "No answer yet.": "pass",
    "Which of the two is larger": f"{_SUM}{_LOOP}lost = lost + (s - t + x); s = t\n    return s + lost",
    "That is the kahan sum.": f"{_SUM}\n    for x in terms[1:]: y = x - lost; t = s + y; lost = t - s - y; s = t\n"
    "    return s",
    "That is the sequential sum.": f"{_SUM}{_LOOP}s = t\n    return s",
    "a number of an FP16 Array is needed": "return 0.5",
}
LISTS = {
    "Right: Kahan 0.0, Neumaier 0.25, exactly 0.25.": [0.125, 1000, 0.125, -1000],
    "Not yet: Kahan 2.0, Neumaier 2.0, exactly 2.0.": [1, 1],
    "Not yet: at most 4": [1, 2000],
    "Not yet: a list of numbers": ["x"],
    "No answer yet.": None,
}
_CHAINS = "pieces = [matmul(A[:, k:k+{0}], B[k:k+{0}], chip='h100') for k in range(0, 1000, {0})]; "
PROMOTED = {
    "Right, in all 64 sums.": _CHAINS.format(128) + "return sum(pieces[1:], pieces[0])",
    "No answer yet.": "pass",
    "sums differ. That is one chain over all of K.": "return matmul(A, B, chip='h100')",
    "Pieces of 128, each from zero?": _CHAINS.format(64) + "return sum(pieces[1:], pieces[0])",
    "an Array of FP32 numbers": "return A.values @ B.values",
}
TOLD_APART = {
    "Right: 1.0 on the A100, 1.000000238418579 on the H100.": (8 * [2**-12], 8 * [2**-13], 1),
    "Not yet: 1.25 on both.": ([1, 0.5], [1, 0.5], 0),
    "Not yet: with more than 8": (9 * [1], 9 * [1], 0),
    "Not yet: two lists of numbers": ([1, 2], [1], 0),
    "and one number, please": (1, 2, 3, 4),
    "a finite sum": ([1e9], [1], 0),
    "No answer yet.": None,
}
_MEGATRON = "s, t, p = scale, counter, patience; back = max(s / 2, 1) if p <= 1 else s; return "
_OVERFLOW, _GROWN = "(back, 0, p - 1) if found_inf else ", "if t < 3 else (2 * s, 0, 2)"
MEGATRON = {
    "Right, on all 53 strings.": f"{_MEGATRON}{_OVERFLOW}(s, t + 1, p) {_GROWN}",
    "No answer yet.": "pass",
    "strings differ, for example ": f"{_MEGATRON}{_OVERFLOW}(s, t + 1, 2) {_GROWN}",
    "three numbers are needed": "return 1.0",
}
OTHER_ENDS = {
    "Right: 4 in Megatron, 2 in DeepSpeed.": "ICICIICCCC",
    "Not yet: 16 in both.": "C",
    "Not yet: a text": "XYZ",
    "No answer yet.": None,
}
_FLOOR = "s = 2.0 ** (np.frexp(np.abs(x).max())[1] - 1 - 8); "
MXFP8 = {
    "Right, in all 6400 numbers.": _FLOOR + "return numsim.round_to(x / s, 'e4m3', overflow='saturate') * s",
    "No answer yet.": "pass",
    "differ. FLOOR of which exponent?": "return numsim.round_to(x, 'e4m3', overflow='saturate')",
    "Those are RCEIL's.": "return quantize(x, 'mxfp8', rule='rceil').values",
    "32 numbers are needed": "return 'x'",
}
LAGS = {
    "Right: 1 steps clip with most_recent, 0 with max.": [4, 4, 1, 4],
    "Not yet: 0 steps clip with most_recent, 0 with max.": [1, 1],
    "Not yet: at most 8 numbers": [1000, 1],
    "Not yet: a list of numbers": "x",
    "No answer yet.": None,
}


def ids(path: Path) -> str:
    return path.stem


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=ids)
def notebook(request: pytest.FixtureRequest) -> tuple[str, Any, Any]:
    """Name, stored notebook, and the same freshly run."""
    pytest.importorskip("nbclient", reason="nbclient is not installed (extra 'test')")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (extra 'test')")
    stored = notebooks.read(request.param)
    return request.param.name, stored, notebooks.execute(stored)


def text_of(cell: Any) -> str:
    """All that a cell prints and shows, as plain text."""
    return "".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in cell.outputs)


def told(cell: Any) -> list[Any]:
    """The outputs of a cell without the pictures; text printed in pieces is joined."""
    parts: list[Any] = []
    for output in cell.outputs:
        if output.output_type == "stream" and parts and parts[-1][0] == output.name:
            parts[-1] = (output.name, parts[-1][1] + output.text)
        elif output.output_type == "stream":
            parts.append((output.name, output.text))
        else:
            data = {mime: value for mime, value in output.data.items() if mime != "image/png"}
            parts.append((output.output_type, data))
    return parts


def pictures(cell: Any) -> list[bytes]:
    return [base64.b64decode(o.data["image/png"]) for o in cell.outputs if "image/png" in o.get("data", {})]


# --- the file ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_file_is_clean(path: Path) -> None:
    """Valid, with ids of its own choice, a generic kernel, and nothing that a machine says about itself."""
    import nbformat

    stored = notebooks.read(path)
    nbformat.validate(stored)
    assert stored.metadata == METADATA
    names = [cell.id for cell in stored.cells]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9-]*", name) for name in names), names
    counts = [cell.execution_count for cell in stored.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    text = path.read_text(encoding="utf-8")
    assert text.isascii()
    for trace in ("/home/", "/root", "/tmp", "site-packages", "C:\\\\", "Traceback", "stderr", "0x7f0", "Warning"):
        assert trace not in re.sub(r'"image/png": "[^"]*"|EvidenceWarning', "", text), trace
    for cell in stored.cells:
        assert not re.search(r"^\s*!|%pip|http", cell.source, re.MULTILINE), cell.id
    for target in re.findall(r"\]\(([^)#:]+)\)", "".join(c.source for c in stored.cells if c.cell_type == "markdown")):
        assert (TUTORIALS / target).exists(), target


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_asks_before_it_answers(path: Path) -> None:
    """A question in bold, a cell for the guess, then the answer; the first cell says what all this costs."""
    cells = notebooks.read(path).cells
    assert all(word in cells[0].source for word in ("minutes", "memory", "No GPU", "pip install"))
    guesses = [i for i, cell in enumerate(cells) if cell.cell_type == "code" and cell.source.startswith("guess = None")]
    headings = [cell for cell in cells if re.match(r"## \d", cell.source)]
    assert len(guesses) == len(headings) >= 5
    for i in guesses:
        assert re.search(r"^\*\*.+\?\*\*$", cells[i - 1].source, re.MULTILINE), cells[i].id
        assert "compare(guess, " in cells[i + 1].source, cells[i].id


@pytest.mark.parametrize("path", NOTEBOOKS, ids=ids)
def test_commands_exist(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a notebook sends its readers to: experiments have their names, everything else is run."""
    prose = "\n".join(cell.source for cell in notebooks.read(path).cells if cell.cell_type == "markdown")
    listed = re.findall(r"^    numsim (.+?)   ", prose, re.MULTILINE)
    commands = {tuple(shlex.split(line)) for line in listed + re.findall(r"`numsim (\w.+?)`", prose)}
    assert len(commands) >= len(listed) >= 6
    for first, *rest in commands:
        if first == "run":
            assert set(rest) <= set(list_experiments()), rest
        else:
            assert main([first, *rest]) == 0, (first, rest, capsys.readouterr().err)


# --- the run ----------------------------------------------------------------------------------------------------------
def test_says_the_key_numbers(notebook: tuple[str, Any, Any]) -> None:
    name, _, fresh = notebook
    cells = {cell.id: cell for cell in fresh.cells}
    for cell, fragments in KEY_NUMBERS[name].items():
        for fragment in fragments:
            assert fragment in text_of(cells[cell]), (cell, fragment, text_of(cells[cell]))


def test_stored_outputs_are_fresh(notebook: tuple[str, Any, Any]) -> None:
    """If not: python -m tests.tutorials.notebooks, and look at what changed."""
    _, stored, fresh = notebook
    assert [c.id for c in stored.cells] == [c.id for c in fresh.cells]
    for then, now in zip(stored.cells, fresh.cells, strict=True):
        assert then.source == now.source
        if then.cell_type == "code":
            assert told(then) == told(now), then.id
            assert len(pictures(then)) == len(pictures(now)), then.id


def test_pictures(notebook: tuple[str, Any, Any]) -> None:
    """Each with an alternative text; drawn by the same matplotlib, they look the same."""
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    name, stored, fresh = notebook
    drawn = [cell.id for cell in fresh.cells if cell.cell_type == "code" and pictures(cell)]
    assert drawn == PICTURES[name]
    for then, now in zip(stored.cells, fresh.cells, strict=True):
        if then.id not in drawn:
            continue
        assert len(then.metadata["alt"]) > 40, then.id
        (old,), (new,) = pictures(then), pictures(now)
        version = re.compile(rb"Matplotlib version[\d.]+")
        if version.findall(old) == version.findall(new):
            a, b = (image.imread(io.BytesIO(png), format="png") for png in (old, new))
            assert a.shape == b.shape, then.id
            assert (abs(a - b) > 0.2).mean() < 5e-4, then.id  # a mark that has moved is seen, the edge of a letter not


# --- guesses and exercises --------------------------------------------------------------------------------------------
class Lesson:
    """A notebook played in this process, without pictures and what is only shown: what it says to given answers.

    ``body`` takes the place of a line "# your code; ...".
    """

    def __init__(self, path: Path, answers: dict[str, Any], body: str = "pass") -> None:
        import matplotlib as mpl

        self.path = path
        self.said: dict[str, str] = {}
        self.hints: dict[str, dict[Any, str]] = {}
        self.space: dict[str, Any] = {"display": lambda *_: None}
        with mpl.rc_context():
            for cell in notebooks.read(path).cells:
                if cell.cell_type == "code" and not cell.id.startswith(("p-", "c-")):
                    self._play(cell, answers, body)

    def again(self, name: str, answers: dict[str, Any] | None = None, body: str = "pass") -> str:
        """What a cell says to other answers, with everything else as it was."""
        (cell,) = (cell for cell in notebooks.read(self.path).cells if cell.id == name)
        self._play(cell, answers or {}, body)
        return self.said[name]

    def _play(self, cell: Any, answers: dict[str, Any], body: str) -> None:
        source = cell.source.replace("%matplotlib inline", "")
        if cell.id in answers:
            source, replaced = re.subn(r"\b(guess|answer|ask) = None", rf"\1 = {answers[cell.id]!r}", source)
            assert replaced == 1, cell.id
        source = re.sub("# your code; .*", body, source)
        lines: list[str] = []
        self.space["print"] = lambda *words: lines.append(" ".join(map(str, words)))
        self.space.pop("mistakes", None)
        exec(compile(ast.parse(source), cell.id, "exec"), self.space)
        self.said[cell.id] = "\n".join(lines)
        self.hints[cell.id] = self.space.get("mistakes", {})


def answer_cell(cell: str) -> str:
    return cell.replace("g-", "a-")


lessons = pytest.mark.parametrize("path", RIGHT, ids=ids)


@lessons
def test_right_answers(path: Path) -> None:
    played = Lesson(path, RIGHT[path])
    for cell in RIGHT[path]:
        expected = ", as you said." if cell.startswith("g-") else "Right, to the last bit."
        assert expected in played.said[answer_cell(cell)], (cell, played.said[answer_cell(cell)])


@lessons
def test_every_likely_mistake_gets_its_hint(path: Path) -> None:
    played = Lesson(path, {})
    hints = {cell: played.hints[answer_cell(cell)] for cell in RIGHT[path]}
    assert all(hints.values())
    for number in range(max(map(len, hints.values()))):
        wrong = {cell: list(known.items())[min(number, len(known) - 1)] for cell, known in hints.items()}
        played = Lesson(path, {cell: guess for cell, (guess, _) in wrong.items()})
        for cell, (guess, why) in wrong.items():
            assert why in played.said[answer_cell(cell)], (cell, guess)
            assert "as you said" not in played.said[answer_cell(cell)], (cell, guess)
            assert "Right" not in played.said[answer_cell(cell)], (cell, guess)


@lessons
@pytest.mark.parametrize("answer", [123456, "no idea", (1, 2), [3], "nan", {"a": 1}], ids=repr)
def test_any_guess_is_taken_kindly(path: Path, answer: Any) -> None:
    played = Lesson(path, dict.fromkeys(RIGHT[path], answer))
    for cell in RIGHT[path]:
        said = played.said[answer_cell(cell)]
        assert f"not {answer}" in said if cell.startswith("g-") else said.startswith("Not yet."), (cell, said)


@pytest.mark.parametrize("said", ROUND_EVEN, ids=list(ROUND_EVEN.values()))
def test_round_even(said: str) -> None:
    assert said in Lesson(FLOATS, {}, ROUND_EVEN[said]).said["x-5"]


@pytest.fixture(scope="module")
def sums() -> Lesson:
    """Played once: its last cells are played again, with answers."""
    return Lesson(SUMS, {})


@pytest.mark.parametrize("said", NEUMAIER)
def test_neumaier_by_hand(sums: Lesson, said: str) -> None:
    assert said in sums.again("x-4", body=NEUMAIER[said])


@pytest.mark.parametrize("said", LISTS)
def test_kahan_led_astray(sums: Lesson, said: str) -> None:
    assert said in sums.again("x-5", {"x-5": LISTS[said]})


def test_pytorch_is_asked(sums: Lesson) -> None:
    """What the page says of it, from the installed one: 16-bit sums, means and norms are taken in FP32."""
    pytest.importorskip("torch", reason="torch is not installed")
    told = sums.again("torch", {"torch": True}).splitlines()
    assert [float(line.split()[-1]) for line in told[:3]] == [4096, 20, 500]
    assert len(told) == 4 and "NumPy" in told[3]


@pytest.mark.parametrize("said", PROMOTED, ids=list(PROMOTED.values()))
def test_promoted_by_hand(said: str) -> None:
    assert said in Lesson(CORES, {}, PROMOTED[said]).said["x-4"]


@pytest.mark.parametrize("said", TOLD_APART)
def test_chips_told_apart(said: str) -> None:
    assert said in Lesson(CORES, {"x-5": TOLD_APART[said]}).said["x-5"]


@pytest.mark.parametrize("said", MEGATRON)
def test_megatron_by_hand(said: str) -> None:
    assert said in Lesson(SCALERS, {}, MEGATRON[said]).said["x-4"]


@pytest.mark.parametrize("said", OTHER_ENDS)
def test_scalers_told_apart(said: str) -> None:
    assert said in Lesson(SCALERS, {"x-5": OTHER_ENDS[said]}).said["x-5"]


@pytest.mark.parametrize("said", MXFP8)
def test_mxfp8_by_hand(said: str) -> None:
    assert said in Lesson(BLOCKS, {}, MXFP8[said]).said["x-4"]


@pytest.mark.parametrize("said", LAGS)
def test_histories_told_apart(said: str) -> None:
    assert said in Lesson(BLOCKS, {"x-5": LAGS[said]}).said["x-5"]


@pytest.mark.parametrize("seed", range(12))
def test_any_seed_gives_a_mystery_that_is_solved(seed: int) -> None:
    """Whatever unit the seed picks, the probes find its F, and ``reveal`` its chip."""
    cells = {cell.id: cell for cell in notebooks.read(CORES).cells}
    played = Lesson(CORES, {})
    played.space |= {"guess": None, "secret": played.space["units"][seed]}
    lines: list[str] = []
    played.space["print"] = lambda *words: lines.append(" ".join(map(str, words)))
    for cell in ("a-bits", "c-reveal"):
        exec(compile(cells[cell].source, cell, "exec"), played.space)
    assert lines[0] == f"It is {played.space['secret'].unit.fraction_bits}."
    assert lines[-1] == "found"


# --- the harness ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "a tutorial needs no network"),
        ("import warnings; warnings.warn('old')", "warns"),
        ("open('left.txt', 'w').close()", "left files behind"),
        ("1 / 0", "ZeroDivisionError"),
    ],
    ids=["network", "warning", "file", "error"],
)
def test_bad_notebooks_are_caught(source: str, complaint: str) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (extra 'test')")
    pytest.importorskip("nbclient", reason="nbclient is not installed (extra 'test')")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (extra 'test')")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    with pytest.raises(Exception, match=complaint):  # nbclient has its own, and it may be missing
        notebooks.execute(notebook)
