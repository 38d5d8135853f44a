"""NF4 beside E2M1 and INT4: sixteen numbers a weight, and where they should lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from numsim.blocks import BlockFormat, Codebook, double_quantize, get_block_format
from numsim.blocks.array import decode_elements
from numsim.blocks.double_quant import double_bits
from numsim.data import load_gradients
from numsim.experiments.block_units import error, in_blocks, normals, percents, quantized, relative
from numsim.experiments.experiment import Experiment, Result, Session, Table, check_whole, listed, percent
from numsim.experiments.units import uniform
from numsim.formats import E2M1, FP32
from numsim.random import check_seed

Floats = npt.NDArray[np.float32]
LAYER = "linear1"
_STEP = 2000  # of the trained weights
_SIZES = tuple(2**k for k in range(4, 13))  # of blocks
_NORMAL, _UNIFORM, _UNTRAINED, _TRAINED = "normal", "uniform", "untrained", "trained"
BITS = 4.5  # a weight, at which formats are compared
_EXAMPLE = 'numsim.experiments.run("nf4", block=64)'
_NF4 = get_block_format("nf4")
# the same scale for all three: FP32, from absmax
CODES = {
    "NF4": _NF4,
    "E2M1": BlockFormat("e2m1", E2M1, FP32, (64,), "absmax", "E2M1"),
    "INT4": replace(get_block_format("int4"), block=(64,)),
}
HARDWARE = {f.title: f for f in map(get_block_format, ("mxfp4", "nvfp4"))}
DOUBLE = "NF4, double"
_WEIGHTS = 7e9  # of the model whose bytes are told


def run(session: Session, *, block: int = 64, values: int = 65_536, seed: int = 1) -> Result:
    """Errors of three 4-bit codes under the same scales, on four kinds of weights; then block sizes, and bits.

    Parameters: ``block``, how many weights share a scale; ``values``, nearly normal and uniform numbers drawn, whose
    ``seed`` is given.
    """
    block = check_whole("block", block, 8, 1024, _EXAMPLE)
    values = check_whole("values", values, 4096, 1 << 22, _EXAMPLE)
    seed = check_seed(seed)

    weights = _weights(values, seed)
    codes = {name: replace(f, block=(block,)) for name, f in CODES.items()}
    errors = {
        kind: {name: e for name, f in codes.items() if (e := error(session, in_blocks(w, f), f)) is not None}
        for kind, w in weights.items()
    }
    swept = {kind: _swept(session, weights[kind]) for kind in (_NORMAL, _TRAINED)}
    used = {kind: _used(session, weights[kind]) for kind in weights}
    answered = [name for name in CODES if name in errors[_NORMAL]]
    sizes = [size for size in _SIZES if any(size in by for by in swept[_NORMAL].values())]
    tables = (
        Table(
            f"RMS error relative to the weights: the same FP32 scale for each {block}",
            ("weights", *answered),
            tuple((_described(kind), *(percents(errors[kind].get(name)) for name in answered)) for kind in errors),
        ),
        Table(
            "Normal weights, by block size: bits a weight and error; double: scales in 8 bits",
            ("block", "bits", *answered, "bits, double", DOUBLE),
            tuple(
                (size, _few(_bits("NF4", size)), *(percents(swept[_NORMAL][name].get(size)) for name in answered),
                 _few(_bits(DOUBLE, size)), percents(swept[_NORMAL].get(DOUBLE, {}).get(size)))
                for size in sizes
            ),
        ),
        Table(
            "As they are used: bits a weight, and error by kind of weights",
            ("format", "block", "bits", *weights),
            tuple(
                (name, size, _few(bits), *(percents(used[kind].get((name, size))) for kind in weights))
                for name, size, bits in _USED
                if (name, size) in used[_NORMAL]
            ),
        ),
    )  # fmt: skip
    return Result(
        experiment="nf4",
        parameters={"block": block, "values": values, "seed": seed},
        answer=_answer(errors[_UNTRAINED]),
        tables=tuple(t for t in tables if t.rows and (len(t.columns) > 1)),
        findings=tuple(_findings(block, errors, swept, used)),
        series={
            "block": block,
            "errors": errors,
            "swept": {kind: {n: [[_bits(n, b), b, e] for b, e in by.items()] for n, by in found.items()}
                      for kind, found in swept.items()},
            "used": {kind: [[n, b, bits, found[n, b]] for n, b, bits in _USED if (n, b) in found]
                     for kind, found in used.items()},
            "levels": {name: _levels(name) for name in answered},
            "edges": _EDGES.tolist(),
            "density": {kind: _density(weights[kind], block) for kind in (_NORMAL, _UNTRAINED)},
        },
    )  # fmt: skip


# --- weights ----------------------------------------------------------------------------------------------------------
def _weights(values: int, seed: int) -> dict[str, Floats]:
    recording = load_gradients()
    (untrained,) = recording.select("weight", 0, LAYER)
    return {
        _NORMAL: normals(seed, values),
        _UNIFORM: np.asarray(2 * uniform(seed, (values,), 24 * values) - 1, np.float32),
        _UNTRAINED: untrained.sample,
        _TRAINED: recording.matrices["weight"][_STEP].reshape(-1),
    }


def _described(kind: str) -> str:
    real = {_UNTRAINED: f"untrained ({LAYER}, step 0)", _TRAINED: f"trained ({LAYER}, step {_STEP})"}
    return real.get(kind, kind)


_EDGES = np.linspace(-1, 1, 41)


def _density(weights: Floats, block: int) -> list[float]:
    """How the weights lie between minus and plus the absmax of their block: shares of 40 even parts."""
    rows = in_blocks(weights, replace(_NF4, block=(block,)))
    scaled = rows / np.abs(rows).max(axis=1, keepdims=True)
    inside = scaled[np.abs(scaled) < 1]
    return (np.histogram(inside, _EDGES)[0] / inside.size).tolist()  # type: ignore[no-any-return]


# --- formats ----------------------------------------------------------------------------------------------------------
def _bits(name: str, size: int) -> float:
    """Bits a weight: its code, and its part of the scale."""
    f = replace((CODES | HARDWARE)["NF4" if name == DOUBLE else name], block=(size,))
    return double_bits(f) if name == DOUBLE else f.bits_per_value


def _gigabytes(bits: float) -> str:
    """What the weights of a large model take."""
    return f"{bits / 8 * _WEIGHTS / 1e9:.3g}"


_USED = (
    ("NF4", 64, _bits("NF4", 64)), (DOUBLE, 64, _bits(DOUBLE, 64)), (DOUBLE, 16, _bits(DOUBLE, 16)),
    ("E2M1", 64, _bits("E2M1", 64)), ("INT4", 32, _bits("INT4", 32)),
    *((name, f.block[0], _bits(name, f.block[0])) for name, f in HARDWARE.items() if f.block),
)  # fmt: skip


def _levels(name: str) -> list[float]:
    """The numbers of a code, under an absmax of 1."""
    f = CODES[name]
    codes = f.element.order if isinstance(f.element, Codebook) else np.arange(f.element.codes, dtype=np.uint8)
    return sorted(set((decode_elements(codes, f) / f.element_max).tolist()))


def _swept(session: Session, weights: Floats) -> dict[str, dict[int, float]]:
    """Error by block size, for the three codes and for NF4 under scales in 8 bits."""
    found: dict[str, dict[int, float]] = {}
    for size in _SIZES:
        for name, f in CODES.items():
            rows = in_blocks(weights, f := replace(f, block=(size,)))
            if (array := quantized(session, rows, f)) is None:
                continue
            found.setdefault(name, {})[size] = relative(array.values, rows)
            if name == "NF4":
                found.setdefault(DOUBLE, {})[size] = relative(double_quantize(array).values, rows)
    return found


def _used(session: Session, weights: Floats) -> dict[tuple[str, int], float]:
    """Error of each format as it is used."""
    found = {}
    for name, size, _ in _USED:
        f = replace((CODES | HARDWARE)["NF4" if name == DOUBLE else name], block=(size,))
        rows = in_blocks(weights, f)
        if (array := quantized(session, rows, f)) is not None:
            values = double_quantize(array).values if name == DOUBLE else array.values
            found[name, size] = relative(values, rows)
    return found


# --- words ------------------------------------------------------------------------------------------------------------
def _few(bits: float) -> str:
    return f"{bits:.4g}"


def _answer(errors: Mapping[str, float]) -> str:
    if not errors:
        return "not answered"
    least = min(errors.values())
    text = listed([name for name, e in errors.items() if e == least])
    missing = [name for name in CODES if name not in errors]
    return f"{text} ({listed(missing)} not answered)" if missing else text


def ranked(errors: Mapping[str, float]) -> str:
    """Codes by their errors, as pictures and findings say it.

    >>> ranked({"NF4": 0.0912, "INT4": 0.07})
    'INT4 7 %, NF4 9.12 %'
    """
    return ", ".join(f"{name} {percents(e)}" for name, e in sorted(errors.items(), key=lambda item: item[1]))


def _findings(
    block: int,
    errors: Mapping[str, Mapping[str, float]],
    swept: Mapping[str, Mapping[str, Mapping[int, float]]],
    used: Mapping[str, Mapping[tuple[str, int], float]],
) -> Iterable[str]:
    for kind, by in errors.items():
        if by:
            yield f"One FP32 scale for each {block}, {_described(kind)} weights: {ranked(by)}."
    for kind, found in swept.items():
        if DOUBLE in found:
            plain, double = (list(found[name].items()) for name in ("NF4", DOUBLE))
            dearer = max(b / a - 1 for (_, a), (_, b) in zip(plain, double, strict=True))
            (small, least), (large, most) = plain[0], plain[-1]
            beaten = [
                f"{name} at {listed([str(size) for size, e in by.items() if e < found['NF4'][size]])}"
                for name, by in found.items()
                if name not in ("NF4", DOUBLE) and any(e < found["NF4"][size] for size, e in by.items())
            ]
            better = (
                f"better than NF4 are {listed(beaten)}" if beaten else "at no size is another of these codes better"
            )
            yield (
                f"NF4 on {kind} weights is off by {percents(least)} in blocks of {small} and by {percents(most)} in "
                f"blocks of {large}; {better}. Scales in 8 bits raise the error by at most {percent(dearer)} of itself."
            )
    sizes = {b: (_bits("NF4", b), _bits(DOUBLE, b)) for b in (64, 16)}
    bits = [f"{_few(plain)} to {_few(double)} in blocks of {b}" for b, (plain, double) in sizes.items()]
    bytes_ = [f"{_gigabytes(plain)} to {_gigabytes(double)} GB" for plain, double in sizes.values()]
    yield (
        f"Double quantisation takes NF4 from {listed(bits)} bits a weight, an FP32 offset for all not counted: "
        f"{_WEIGHTS / 1e9:g} billion weights from {listed(bytes_)} (BF16: {_gigabytes(16)} GB)."
    )
    equal = {
        kind: {f"{name} (blocks of {b})": found[name, b] for name, b, bits in _USED
               if (name, b) in found and abs(bits - BITS) < 0.05}
        for kind, found in used.items()
        if kind in (_NORMAL, _TRAINED)
    }  # fmt: skip
    if any(len(found) > 1 for found in equal.values()):
        told = [f"{kind} weights: {ranked(found)}" for kind, found in equal.items()]
        yield f"At {BITS:g} bits a weight, {'; '.join(told)}."


def _draw(result: Result, style: str) -> Any:
    from numsim.show import scale_rule_plots

    return scale_rule_plots.nf4(result, style)


EXPERIMENT = Experiment(
    name="nf4",
    question=(
        "The weights of a layer as PyTorch initialises it, not trained yet, are stored in 4 bits: NF4, E2M1 or INT4, "
        "with an FP32 absmax for each 64 weights. Which comes back with the least error?"
    ),
    choices=("NF4", "INT4", "E2M1", "all the same"),
    wrong_guess="NF4",
    why_wrong=(
        "NF4 is made for weights that are normally distributed: its numbers lie where such weights are frequent, close "
        "together near zero. PyTorch draws the first weights of a layer from a uniform distribution, for which even "
        "steps are best, and INT4 has even steps. After training the weights are no longer uniform, and NF4 wins."
    ),
    explanation=(
        "Sixteen numbers have the least error where they lie as the weights do: NF4's at quantiles of the normal "
        "distribution, E2M1's in octaves, INT4's at even distances. "
        "The larger a block, the further its absmax lies from most weights, so that all codes lose, and INT4 most; "
        "small blocks cost bits for scales, most of which double quantisation saves, at next to no error. "
        "NF4 is a look-up table, which saves memory: its numbers are looked up and multiplied in 16 bits, while tensor "
        "cores multiply E2M1 itself, in MXFP4 and NVFP4."
    ),
    sources=(
        "T. Dettmers et al., QLoRA, arXiv:2305.14314 (2023): NF4, double quantisation",
        "bitsandbytes 95f9af3, csrc/kernels.cu: its numbers, limits and scales",
        "OCP Microscaling Formats (MX) Specification 1.0 (2023): MXFP4; NVIDIA Transformer Engine d0067d0: NVFP4",
        "PyTorch, torch.nn.Linear: first weights uniform between -1/sqrt(k) and 1/sqrt(k), k inputs",
        "data: numsim/data/README.md (E. Alpaydin, C. Kaynak, UCI digits, doi.org/10.24432/C50P49, CC BY 4.0)",
    ),
    defaults={"block": 64, "values": 65_536, "seed": 1},
    run=run,
    draw=_draw,
    against=("numpy", "ml_dtypes", "torch-cpu"),
    full={"values": 1 << 20},
)
