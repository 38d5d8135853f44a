"""Every public callable with every parameter replaced by nonsense: a value comes back, or one of numsim's errors.

Nothing is random: which nonsense meets which parameter follows from their places, so that a failure has a name that
repeats it. What is accepted is left as it was, and means the same in whatever array it comes.
"""

import inspect
import signal
import warnings

import numpy as np
import pytest

import numsim
from numsim import NumsimError, blocks, tensorcore
from numsim.cli import COMMANDS, main
from tests.entries import entries
from tests.nonsense import nonsense

if not hasattr(signal, "SIGALRM"):
    pytest.skip("a call that takes too long is stopped by a signal of POSIX", allow_module_level=True)
SHARE = 6  # of the nonsense every so manieth value, at another place for each parameter
SECONDS = 30  # for one call
# NumPy's manners, and its own errors for indices, axes and shapes.
MOVES = {
    f"Array.{x}" for x in ("all", "any", "argsort", "repeat", "reshape", "squeeze", "swapaxes", "take", "transpose")
}
NUMPYS = (IndexError, ValueError, TypeError, OverflowError, RuntimeError, Warning)
TOO_MUCH = {("Array.repeat", "repeats", "2^31"), ("random.bits_from", "count", "2^31")}  # works, with enough memory
USED = {"stream", "events", "generator"}  # a call moves them on
ENTRIES = list(entries())
NAMES = list(nonsense())


class TooLong(BaseException):
    """Not an Exception, which a function may catch."""


def stop(*_):
    raise TooLong


@pytest.fixture(scope="module", autouse=True)
def alarm():
    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module", autouse=True)
def elsewhere(tmp_path_factory):
    """Some calls write a file of the name that they are given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("fuzz"))
        yield


def attempt(entry, changed):
    """None where a call gives a value or one of numsim's errors; else what it raised."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", tensorcore.EvidenceWarning)
            result = entry.run(changed)
            if inspect.isgenerator(result):
                next(result, None)
                result.close()
    except NumsimError as error:
        return None if 0 < len(str(error)) < 1200 else AssertionError(f"a message of {len(str(error))} characters")
    except (Exception, TooLong) as error:
        allowed = NUMPYS if entry.name in MOVES else AssertionError if "assert" in entry.name else ()
        return None if isinstance(error, allowed) else error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return None


def frozen(x):
    """What may not change in an argument."""
    if isinstance(x, (numsim.Array, blocks.BlockArray)):
        return frozen(x.codes)
    if isinstance(x, np.ndarray):
        return (x.dtype.str, x.shape, x.strides, x.tobytes() if not x.dtype.hasobject else list(map(id, x.ravel())))
    return (type(x), list(map(id, x))) if type(x) in (list, dict, set) else id(x)


def cases(entry, share):
    """Each parameter with every ``share``-th nonsense."""
    for place, parameter in enumerate(entry.make()[1]):
        for i, name in enumerate(NAMES):
            if (i + 3 * place + len(entry.name)) % share == 0 and (entry.name, parameter, name) not in TOO_MUCH:
                yield parameter, name


def failures(entry, share):
    found, made = [], {}
    for parameter, name in cases(entry, share):
        made = made if name in made and name not in USED else nonsense()
        x = made.pop(name)
        before = frozen(x)
        if (error := attempt(entry, {parameter: x})) is not None:
            found.append(f"{parameter} = {name}: {type(error).__name__}: {str(error)[:100]}")
        elif name not in USED and parameter != "out" and frozen(x) != before:
            found.append(f"{parameter} = {name}: the argument was changed")
    return "\n".join(found)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_nonsense_is_refused_or_means_something(entry):
    given = entry.make()[1]
    open_ended = {p.name for p in entry.signature.parameters.values() if p.kind is p.VAR_KEYWORD}
    assert set(entry.signature.parameters) - set(given) <= open_ended
    assert attempt(entry, {}) is None, "no call that works: see tests/entries.py"
    assert not (found := failures(entry, SHARE)), found


def test_there_are_many():
    assert len(ENTRIES) > 250 and sum(1 for entry in ENTRIES for _ in cases(entry, SHARE)) > 15_000


@pytest.mark.exhaustive
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_all_nonsense(entry):
    assert not (found := failures(entry, 1)), found


# --- the same numbers in other arrays ---------------------------------------------------------------------------------
def unaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(x.tobytes(), np.uint8)
    return raw[1:].view(x.dtype).reshape(x.shape)


class Mine(np.ndarray):
    pass


def fixed(x):
    x = x.copy()
    x.flags.writeable = False
    return x


WAYS = {
    "list": np.ndarray.tolist,
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "read-only": fixed,
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "every other": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "by columns": np.asfortranarray,
    "unaligned": unaligned,
    "transposed": lambda x: x.T.copy().T,
    "subclass": lambda x: x.view(Mine),
}
FLOATS = np.random.default_rng(5).standard_normal((4, 32)) * 2.0 ** np.arange(-16, 16)
CODES = np.random.default_rng(6).integers(0, 1 << 16, (4, 32)).astype(np.uint16)
X = numsim.array(FLOATS, "fp16")


def assigned(x):
    y = X.copy()
    y[...] = x
    return y


ON_FLOATS = {
    "encode": lambda x: numsim.encode(x, "e4m3"),
    "round_to": lambda x: numsim.round_to(x, "bf16"),
    "stochastic": lambda x: numsim.encode(x, "e5m2", rounding="stochastic", seed=3),
    "array": lambda x: numsim.array(x, "fp32"),
    "codebook": lambda x: numsim.encode(x, "int8"),
    "add": lambda x: numsim.add(X, x),
    "less": lambda x: numsim.less(X, x),
    "where": lambda x: np.where(X > 0, X, x),
    "quantize": lambda x: blocks.quantize(x, "mxfp4"),
    "nvfp4": lambda x: blocks.quantize(x, "nvfp4"),
    "hadamard": blocks.hadamard,
    "assigned": assigned,
    "weights": lambda x: numsim.optimizers.SGD(0.1).initial(x).weights,
    "gradients": lambda x: numsim.optimizers.gradient_norm([x]),
    "found_inf": lambda x: numsim.scaling.replay_scales(numsim.scaling.GradScaler(), x),
}
ON_CODES = {
    "decode": lambda c: numsim.decode(c, "fp16"),
    "classify": lambda c: numsim.classify(c, "bf16"),
    "from_codes": lambda c: numsim.from_codes(c, "fp16"),
    "random_bits": lambda c: numsim.encode(FLOATS, "e4m3", rounding="stochastic", random_bits=c, sr_bits=16),
    "matmul": lambda c: tensorcore.matmul(c, CODES.T, chip="v100", instruction="mma.m8n8k4.f32.f16.f16.f32"),
}


def bits(result):
    if isinstance(result, blocks.BlockArray):
        return bits(result.codes), bits(result.scales), result.tensor_scale
    x = np.asarray(result.codes if hasattr(result, "codes") else result)
    return x.dtype.str, x.shape, x.tobytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*ON_FLOATS, *ON_CODES])
def test_an_array_means_the_same_however_it_lies(name, way):
    function, x = (ON_FLOATS[name], FLOATS) if name in ON_FLOATS else (ON_CODES[name], CODES)
    other = WAYS[way](x)
    before = frozen(other)
    assert bits(function(other)) == bits(function(x)) and frozen(other) == before


# --- the command line -------------------------------------------------------------------------------------------------
WORDS = (
    "",
    "-",
    "--",
    "\u202e",
    "\ud800",
    "e4m3\x00",
    "9" * 5000,
    "nan",
    "-1",
    "1e999999",
    "../../etc/passwd",
    "{}",
    "--json=1",
)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("run", "doctor")] + ["nonsense", ""])
def test_hostile_command_lines(command, capsys):
    for words in [[w] for w in WORDS] + [["--format", w] for w in WORDS] + [["0.1", "--seed", w] for w in WORDS]:
        code = main([command, *words])
        out, error = capsys.readouterr()
        assert code in (0, 1, 2, 4) and "Traceback" not in out + error, (command, words)


def test_hostile_words_for_run(capsys):
    for words in [[w] for w in WORDS[3:]] + [
        ["swamping", flag, "\u202e"] for flag in ("--machine", "--size", "--style", "--seed")
    ]:
        assert main(["run", *words]) == 2 and "Traceback" not in "".join(capsys.readouterr()), words
