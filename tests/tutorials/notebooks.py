"""Run the tutorials' notebooks in a clean kernel without network.

``python -m tests.tutorials.notebooks`` runs them all and stores their outputs.
Stored outputs hold no timings, no paths and nothing that a machine says about itself: standard error (numsim compiling
its kernels) is left out, and the kernel is a plain "python3".
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numsim

TUTORIALS = Path(__file__).resolve().parents[2] / "tutorials"
NOTEBOOKS = sorted(TUTORIALS.glob("*.ipynb"))
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_NO_NETWORK = """
import socket as _socket

def _refuse(*_, **__):
    raise OSError("a tutorial needs no network")

_socket.getaddrinfo = _socket.create_connection = _refuse
_socket.socket.connect = _socket.socket.connect_ex = _refuse
del _socket, _refuse
"""


def read(path: Path) -> Any:
    import nbformat

    return nbformat.read(path, as_version=4)


def execute(notebook: Any) -> Any:
    """A copy of the notebook with fresh outputs; raises ``nbclient.exceptions.CellExecutionError`` where a cell fails.

    The kernel is this Python with this numsim, in an empty folder, with no start-up files of the user's.
    """
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")  # those of the Jupyter packages; the kernel is another process
        if sys.platform == "win32":  # pyzmq needs a selector
            asyncio.set_event_loop_policy(asyncio.WindowsSelectorEventLoopPolicy())
        return _execute(notebook, folder)


def _execute(notebook: Any, folder: str) -> Any:
    import nbformat
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class ThisPython(KernelSpecManager):  # a "python3" that the user has installed may be another one
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    fresh = nbformat.from_dict(notebook)
    work = Path(folder, "work")
    work.mkdir()
    paths = [str(Path(numsim.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}  # the notebook shows its pictures itself
    env |= {"PYTHONPATH": os.pathsep.join(paths), "IPYTHONDIR": str(Path(folder, "ipython"))}
    client = NotebookClient(
        fresh,
        km=AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=ThisPython(),
            connection_file=str(Path(folder, "kernel.json")),
            transport="tcp" if os.name == "nt" else "ipc",
        ),
        timeout=120,
        startup_timeout=60,
        resources={"metadata": {"path": str(work)}},
        record_timing=False,
    )
    with client.setup_kernel(env=env, cleanup_kc=True):
        fresh.cells.append(nbformat.v4.new_code_cell(_NO_NETWORK))  # nbclient runs only what is in the notebook
        client.execute_cell(fresh.cells[-1], len(fresh.cells) - 1, store_history=False)
        fresh.cells.pop()
        for index, cell in enumerate(fresh.cells):
            client.execute_cell(cell, index)
    if left := [p.name for p in work.iterdir()]:
        raise AssertionError(f"the notebook left files behind: {left}")
    return tidy(fresh)


def tidy(notebook: Any) -> Any:
    """Only what every machine agrees on (in place)."""
    import nbformat

    notebook.metadata = nbformat.from_dict(METADATA)
    count = 0
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({k: v for k, v in cell.metadata.items() if k == "alt"})
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            told = "".join(o.text for o in cell.outputs if o.get("name") == "stderr").splitlines()
            if strange := [line for line in told if not line.startswith("numsim: compiling kernels")]:
                raise AssertionError(f"cell {cell.id} warns: {strange}")
            cell.outputs = _joined(o for o in cell.outputs if o.get("name") != "stderr")
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = count
                if "metadata" in output:
                    output.metadata = nbformat.from_dict({})
    return notebook


def _joined(outputs: Iterable[Any]) -> list[Any]:
    """Text that was printed in pieces, which ones depends on the moment, in one piece."""
    found: list[Any] = []
    for output in outputs:
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def main() -> None:
    """Store fresh outputs in every notebook."""
    import nbformat

    for path in NOTEBOOKS:
        fresh = execute(read(path))
        nbformat.validate(fresh)
        nbformat.write(fresh, path)
        sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
