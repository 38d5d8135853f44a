"""Arrays of NumPy, ml_dtypes and torch as Arrays and back: the same bits, and where it can be the same memory."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import numsim
from numsim import InputError, from_codes, from_dlpack, from_numpy, from_torch, get_format

NUMPY = ["float64", "float32", "float16"]
ML = ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3", "float8_e3m4", "float8_e4m3fnuz", "float8_e5m2fnuz",
      "float8_e4m3b11fnuz", "float8_e8m0fnu", "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn"]  # fmt: skip
TORCH = [*NUMPY, "bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def dtype(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def some_codes(format):
    """Every code, or many with all special ones."""
    if format.bits <= 16:
        return np.arange(format.codes, dtype=f"u{format.code_bytes}")
    edges = [0, 1, format.max_code, format.infinity_code, format.infinity_code + 1, format.nan_code, format.codes - 1]
    return np.array([*edges, *(c ^ format.sign_mask for c in edges)], f"u{format.code_bytes}")


@pytest.mark.parametrize("name", [*NUMPY, *ML])
def test_there_and_back(name):
    """Each bit as it was, signalling NaNs too, and the values that the other library gives them."""
    codes = some_codes(get_format(name))
    theirs = codes.view(dtype(name))
    ours = from_numpy(theirs)
    assert ours.format == get_format(name) and np.array_equal(ours.codes, codes) and ours.codes.dtype == codes.dtype
    assert np.shares_memory(ours.codes, codes)
    back = ours.to_numpy()
    assert back.dtype == dtype(name) and back.tobytes() == theirs.tobytes() and np.shares_memory(back, codes)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(np.asarray(ours.values), theirs.astype(np.float64), equal_nan=True)


def test_what_is_written_there_shows_here():
    x = np.zeros((3, 4), np.float32)
    a, t = from_numpy(x), from_numpy(x.T)
    x[1, 2] = 5
    assert a[1, 2].values == t[2, 1].values == 5 and t.shape == (4, 3)
    a.to_numpy()[0, 0] = -0.0
    assert np.signbit(x[0, 0])


def test_shapes_and_strides():
    base = np.arange(24, dtype=np.float16).reshape(4, 6)
    for view in (
        base[::2, ::-1],
        base[:, 1:4].T,
        base[:0],
        base[2, 3],
        base[2, 3, ...],
        np.broadcast_to(base[0], (3, 6)),
    ):
        a = from_numpy(view)
        assert a.shape == view.shape and np.array_equal(np.asarray(a.to_numpy()), view)


def test_byte_swapped_and_read_only():
    x = np.array([1.5, -2.0], ">f4")
    a = from_numpy(x)
    assert a.values.tolist() == [1.5, -2.0] and not np.shares_memory(a.codes, x)
    codes = np.array([0x3C00], ">u2")
    assert from_numpy(codes, "fp16").codes.tolist() == [0x3C00]
    fixed = np.ones(3, np.float16)
    fixed.flags.writeable = False
    assert np.shares_memory(from_numpy(fixed).codes, fixed) and not from_numpy(fixed).codes.flags.writeable


def test_codes_of_any_format():
    codes = np.arange(256, dtype=np.uint8)
    a = from_numpy(codes, "binary8p3se")
    assert a.format.name == "binary8p3se" and np.shares_memory(a.codes, codes)
    wide = from_numpy(np.array([0x3C00], np.uint64), "fp16")
    assert wide.codes.dtype == np.uint16 and wide.values.tolist() == [1.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: from_numpy([1.0]), "is no NumPy array"),
        (lambda: from_numpy(np.ma.array([1.0])), "is no NumPy array"),
        (lambda: from_numpy(np.array([1, 2])), "of no format"),
        (lambda: from_numpy(np.array([1j])), "of no format"),
        (lambda: from_numpy(np.array(["a"])), "of no format"),
        (lambda: from_numpy(np.array([1.0], object)), "of no format"),
        (lambda: from_numpy(np.zeros(2, [("a", "f4")])), "of no format"),
        (lambda: from_numpy(np.zeros(2, np.longdouble)), "of no format"),
        (lambda: from_numpy(np.zeros(2, np.uint8)), "of which format"),
        (lambda: from_numpy(np.zeros(2, np.float16), "bf16"), "an array of fp16, not of bf16"),
        (lambda: from_numpy(np.array([16], np.uint8), "e2m1"), "out of range"),
        (lambda: from_torch([1.0]), "is no torch tensor"),
        (lambda: from_dlpack([1.0]), "gives NumPy no array by DLPack"),
        (lambda: from_codes([1], "tf32").to_numpy(), "no dtype of NumPy or ml_dtypes"),
        (lambda: from_codes([1], numsim.Format("fp16", 5, 10, 14)).to_numpy(), "no dtype of NumPy or ml_dtypes"),
        (lambda: from_codes([1], "e3m4").to_torch(), "no dtype of torch"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(InputError, match=words) as error:
        call()
    assert "Example" in str(error.value)


def test_dlpack_of_read_only_codes():
    """DLPack before 1.0, which is what a call without a version asks for, cannot say so: a copy is given."""
    codes = np.array([0x3C00, 0x4000], np.uint16)
    codes.flags.writeable = False
    a = from_codes(codes, "fp16")
    assert "dltensor" in repr(a.__dlpack__()) and np.from_dlpack(a).tolist() == codes.tolist()


def test_dlpack_of_numpy():
    x = np.array([0.5, 2.0], np.float32)
    a = from_dlpack(x)
    assert a.format is numsim.FP32 and np.shares_memory(a.codes, x)
    assert np.from_dlpack(a).tolist() == a.codes.tolist()
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":  # whose DLPack is 1.0: read-only codes need no copy
        assert np.shares_memory(np.from_dlpack(a), x)
    assert from_dlpack(a, "fp32").codes.tolist() == a.codes.tolist()


def test_nothing_is_loaded_for_it():
    code = "import sys, numpy as np, numsim; a = numsim.from_numpy(np.ones(2, np.float16)); a.to_numpy(); "
    code += "print({'torch', 'ml_dtypes'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# --- torch ------------------------------------------------------------------------------------------------------------
@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed: pip install torch")


@pytest.mark.parametrize("name", TORCH)
def test_torch_there_and_back(torch, name):
    codes = some_codes(get_format(name))
    theirs = torch.from_numpy(codes).view(getattr(torch, name))
    ours = from_torch(theirs)
    assert ours.format == get_format(name) and np.array_equal(ours.codes, codes)
    assert np.shares_memory(ours.codes, codes)
    back = ours.to_torch()
    assert back.dtype == theirs.dtype and back.data_ptr() == theirs.data_ptr() and back.shape == theirs.shape


def test_torch_shapes_gradients_and_views(torch):
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4).requires_grad_()
    assert from_torch(x).values.tolist() == x.tolist()
    for view in (x.T, x[:, ::2], x[1], x[1, 1], x[:0]):
        a = from_torch(view)
        assert a.shape == tuple(view.shape) and a.values.tolist() == view.tolist()
        assert a.to_torch().tolist() == view.tolist()
    assert from_torch(x.detach().to(torch.bfloat16).T).values.tolist() == x.T.tolist()
    with torch.no_grad():
        a = from_torch(x)
        x[0, 0] = 7
    assert a[0, 0].values == 7


def test_what_torch_does_not_have_is_copied(torch):
    codes = np.array([0x3C00, 0x4000], np.uint16)
    codes.flags.writeable = False
    for a in (from_codes(codes, "fp16")[::-1], numsim.Array(codes, numsim.FP16)):
        assert a.to_torch().tolist() == a.values.tolist()
        assert not np.shares_memory(a.to_torch().numpy(), codes)


def test_dlpack_with_torch(torch):
    x = torch.tensor([0.5, -3.0])
    a = from_dlpack(x)
    assert a.values.tolist() == [0.5, -3.0] and a.codes.ctypes.data == x.data_ptr()
    codes = from_numpy(np.array([0x3C00], np.uint16), "fp16")
    back = torch.from_dlpack(codes)
    assert back.dtype == torch.uint16 and back.data_ptr() == codes.codes.ctypes.data
    half = torch.ones(2, dtype=torch.bfloat16)
    with pytest.raises(InputError, match=r"view\(torch\.uint16\)"):
        from_dlpack(half)
    assert from_dlpack(half.view(torch.uint16), "bf16").values.tolist() == [1.0, 1.0]


def test_tensors_that_hold_no_format(torch):
    for tensor in (torch.tensor([1, 2]), torch.tensor([1j]), torch.eye(2).to_sparse(), torch.empty(2, device="meta")):
        with pytest.raises(InputError):
            from_torch(tensor)
