"""Pictures: the same bytes again, texts inside and apart, settings left alone."""

from __future__ import annotations

import struct
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from numsim.errors import InputError
from numsim.experiments import get_experiment
from tests.experiments.runs import NAMES, lecture

matplotlib = pytest.importorskip("matplotlib")
style = pytest.importorskip("numsim.show.style")

STEMS = {
    "swamping": ["swamping", "swamping-cures"],
    "underflow": ["underflow", "underflow-loss-scale"],
    "master-weights": ["master-weights", "gradients-and-updates", "lost-updates", "digits-in-16-bits"],
    "casts": ["casts-number-line", "casts-map"],
    "accumulator": ["accumulator", "accumulator-drift"],
    "kept-bits": ["kept-bits"],
    "chips": ["chips"],
    "blocks": ["blocks", "blocks-not-monotonic"],
    "tf32": ["tf32", "tf32-split"],
    "invariance": ["invariance"],
    "mx-scale": ["mx-scale", "mx-scale-errors"],
    "nf4": ["nf4", "nf4-bits"],
    "accumulation": ["accumulation", "accumulation-forgotten-division"],
    "adam": ["adam-second-moment", "adam-weight-decay"],
    "clipping": ["clipping"],
    "loss-scaling": ["loss-scaling", "loss-scaling-trace", "loss-scaling-systems"],
    "scale-window": ["scale-window"],
    "blind-scaler": ["blind-scaler", "blind-scaler-zeros"],
    "collapse": ["collapse"],
    "delayed-scaling": ["delayed-scaling", "delayed-scaling-lengths"],
    "recipes": ["recipes"],
}


def drawn(name: str, look: str = "page", machine: str = "emulated") -> list:
    return list(get_experiment(name).draw(lecture(name, machine)[1], look))


@pytest.mark.parametrize("name", NAMES)
def test_deterministic_files(name: str, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for stem, figure, alt in drawn(name):
            style.save(figure, tmp_path / folder / stem, alt=alt, metadata={"seed": "1"})
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == sorted(f"{stem}.{kind}" for stem in STEMS[name] for kind in ("png", "svg"))
    for file in files:
        data = (tmp_path / "a" / file).read_bytes()
        assert data == (tmp_path / "b" / file).read_bytes(), file
        assert b"seed: 1" in data
        if file.endswith(".png"):
            width, height = struct.unpack(">II", data[16:24])
            assert width == 1440 and 500 < height < 1500
        else:
            root = ElementTree.fromstring(data.decode())
            texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
            assert len(texts) > 5 and b"<dc:date" not in data and len(data) < 300_000


@pytest.mark.parametrize("look", ["page", "slide"])
@pytest.mark.parametrize("name", NAMES)
def test_titles_and_texts(name: str, look: str) -> None:
    pictures = drawn(name, look)
    assert [stem for stem, _, _ in pictures] == STEMS[name]
    for stem, figure, alt in pictures:
        title = " ".join(figure.get_suptitle().split()).replace("\u00a0", " ")
        assert alt.replace("\u00a0", " ").startswith(title) and len(alt) > len(title) + 20 and alt.endswith(".")
        check_texts(figure, stem)


def check_texts(figure: object, stem: str) -> None:
    """Every text lies on the figure, and no two overlap."""
    from matplotlib.text import Text

    with style.settings(figure.look):
        figure.canvas.draw()
        boxes, unseen = [], set()
        for axis in (a for axes in figure.axes for a in (axes.xaxis, axes.yaxis)):
            low, high = sorted(axis.get_view_interval())
            # ticks out of view exist, but are not drawn
            unseen |= {
                t.label1 for t in axis.get_major_ticks() if not low <= t.get_loc() <= high or not axis.get_visible()
            }
        for text in figure.findobj(lambda a: isinstance(a, Text) and a.get_visible() and a.get_text().strip()):
            if text in unseen or (text.axes is not None and not text.axes.get_visible()):
                continue
            box = text.get_window_extent()
            if box.width and box.height:
                boxes.append((text.get_text(), box))
    full = figure.bbox
    for words, box in boxes:
        assert box.x0 >= -1 and box.x1 <= full.x1 + 1 and box.y0 >= -1 and box.y1 <= full.y1 + 1, (stem, words)
    for i, (a, one) in enumerate(boxes):
        for b, other in boxes[i + 1 :]:
            wide = min(one.x1, other.x1) - max(one.x0, other.x0)
            high = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert wide < 2 or high < 3, (stem, a, b)


@pytest.mark.parametrize("name", ["master-weights", "casts"])
def test_settings_are_left_alone(name: str, tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    for stem, figure, _ in drawn(name, "slide"):
        style.save(figure, tmp_path / stem)
    assert dict(matplotlib.rcParams) == before


def test_user_settings_change_nothing(tmp_path: Path) -> None:
    ((stem, figure, _), *_rest) = drawn("casts")
    (plain, _) = style.save(figure, tmp_path / stem)
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "axes.facecolor": "black", "savefig.dpi": 33}):
        ((stem, figure, _), *_rest) = drawn("casts")
        (again, _) = style.save(figure, tmp_path / "again")
    assert plain.read_bytes() == again.read_bytes()


def test_no_pyplot() -> None:
    program = (
        "import sys\n"
        "from numsim.experiments import get_experiment\n"
        "from numsim.experiments.experiment import Session\n"
        "from numsim.machines import get_machine\n"
        "e = get_experiment('casts')\n"
        "result = e.run(Session(get_machine('emulated')), formats=['e2m1', 'e4m3'])\n"
        "assert 'matplotlib' not in sys.modules\n"
        "e.draw(result, 'page')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize("machine", ["numpy", "ml_dtypes"])
@pytest.mark.parametrize("name", NAMES)
def test_partial_results_are_drawn(name: str, machine: str) -> None:
    for stem, figure, alt in drawn(name, machine=machine):
        assert alt.endswith(".")
        check_texts(figure, stem)


def test_bad_style() -> None:
    with pytest.raises(InputError, match=r"style='poster'.*Example"):
        drawn("casts", "poster")


def test_white_background_and_distinct_looks() -> None:
    looks = [style.look(t) for t in ("FP32", "FP16", "BF16", "E4M3", "E5M2")]
    for part in zip(*looks, strict=True):
        assert len(set(map(str, part))) >= 4
    ((_, figure, _), *_rest) = drawn("casts")
    assert figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)
