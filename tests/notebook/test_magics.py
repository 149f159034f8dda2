"""`%%ranks` and `%ranks` in real notebooks: nbclient runs the cells in a real kernel."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.processes import DEADLINE, is_running, wait_until
from tests.helpers.thorough import essential

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
nbformat = pytest.importorskip("nbformat")

# jupyter_client and nbclient leave event loops and sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

IMPORTS = "import os, time, numpy as np, unisono.torch.distributed as dist\nmine = dist.get_rank()"


class Notebook:
    """A notebook with a running kernel, whose cells are run one by one."""

    def __init__(self) -> None:
        self._notebook = nbformat.v4.new_notebook()
        self._client = nbclient.NotebookClient(
            self._notebook, timeout=2 * DEADLINE, kernel_name="python3", allow_errors=True
        )
        self._kernel = self._client.setup_kernel()
        self._kernel.__enter__()
        self.run("%load_ext unisono")

    @property
    def pid(self) -> int:
        """The process of the kernel."""
        return int(self._client.km.provisioner.pid)

    def run(self, source: str, during: Any = None) -> Outputs:
        """Run a cell; `during` gets its outputs so far, in another thread, until it is true."""
        cell = nbformat.v4.new_code_cell(source)
        self._notebook.cells.append(cell)
        ended = threading.Event()
        watch = threading.Thread(target=_repeat, args=(during, cell, ended))
        watch.start()
        try:
            self._client.execute_cell(cell, len(self._notebook.cells) - 1)
        finally:
            ended.set()
            watch.join()
        return Outputs(cell)

    def interrupt(self) -> None:
        """Do what the button "interrupt the kernel" does."""
        asyncio.run(self._client.km._async_interrupt_kernel())

    def close(self) -> None:
        self._kernel.__exit__(None, None, None)


def _repeat(during: Any, cell: Any, ended: threading.Event) -> None:
    while during is not None and not ended.wait(0.05):
        if during(Outputs(cell)):
            return


class Outputs:
    """What a cell has shown: text of both streams, its result, and its error as it looks."""

    def __init__(self, cell: Any) -> None:
        every = list(cell.outputs)
        text = {"stdout": "", "stderr": ""}
        for one in every:
            if one.output_type == "stream":
                text[one.name] += one.text
        self.out, self.err = text["stdout"], text["stderr"]
        results = [one.data["text/plain"] for one in every if one.output_type == "execute_result"]
        self.result = results[0] if results else None
        errors = ["\n".join(one.traceback) for one in every if one.output_type == "error"]
        self.error = errors[0] if errors else None


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    made = Notebook()
    yield made
    made.close()


@pytest.mark.parametrize("kind", essential(1, ["threads", "shm"]))
def test_a_notebook(notebook: Notebook, kind: str) -> None:
    """One story, because a kernel takes long to start."""
    notebook.run("%ranks stop")
    assert "there are no ranks yet; say how many: %%ranks 4" in notebook.run("%%ranks\n1").err

    # Output is labelled, and results are a list.
    first = notebook.run(f"%%ranks 3 --engine {kind}\n{IMPORTS}\nprint('I am', mine)\nmine")
    assert first.error is None
    assert sorted(first.out.splitlines()) == ["[0] I am 0", "[1] I am 1", "[2] I am 2"]
    assert first.result == "[0, 1, 2]"

    # Variables stay; those of the notebook are pushed; functions of the notebook come along.
    notebook.run("factor = 10\ndef scaled(value): return factor * value")
    pushed = notebook.run("%%ranks --push factor,scaled --out found\nscaled(mine) + factor")
    assert (pushed.error, pushed.result) == (None, None)
    assert notebook.run("found").result == "[10, 20, 30]"
    assert notebook.run("ranks = %ranks\nranks(scaled, 2)").result == "[20, 20, 20]"
    assert notebook.run("%%ranks\nmine;").result is None
    assert "the notebook has no variable 'nix'" in notebook.run("%%ranks --push nix\n1").err

    # An error is shown with its rank and its line, and without frames of ours.
    failed = notebook.run("%%ranks\nif mine == 1:\n    1 / 0\ndist.barrier()").error
    assert failed is not None
    assert failed.startswith('Traceback (most recent call last):\n  File "ranks cell ')
    assert "    1 / 0" in failed
    assert "on rank 1 of 3\nraised as well: rank 0 (PeerLost), rank 2 (PeerLost)" in failed
    assert "notebook/" not in failed
    assert notebook.run("%%ranks\none = np.ones(1)\ndist.all_reduce(one)\none[0] == 3").result == (
        "[np.True_, np.True_, np.True_]"
    )

    # Wrong options say what is right, and leave the ranks alone.
    assert "write %%ranks [N] [--engine E]" in notebook.run("%ranks --bad").err
    assert "no engine 'nix'" in notebook.run("%%ranks 3 --engine nix\n1").err
    assert "the number of ranks is 'four'; give 1 or more" in notebook.run("%%ranks four\n1").err
    assert notebook.run("%%ranks\nmine").result == "[0, 1, 2]"

    # Another number means other ranks, and it is said.
    other = notebook.run("%%ranks 2\n'mine' in globals()")
    assert other.err == (
        f"unisono: <3 ranks, engine '{kind}'> end; <2 ranks, engine '{kind}'> start without "
        "variables\n"
    )
    assert other.result == "[False, False]"


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_the_kernel_is_interrupted(notebook: Notebook, kind: str) -> None:
    notebook.run("%ranks stop")
    notebook.run(f"%%ranks 2 --engine {kind}\n{IMPORTS}")

    def press(shown: Outputs) -> bool:
        if shown.out.count("ready\n") == 2:  # so output is live as well
            notebook.interrupt()
            return True
        return False

    waiting = "print('ready')\nif mine: dist.barrier()\nwhile True: time.sleep(0.01)"
    error = notebook.run(f"%%ranks\n{waiting}", during=press).error
    assert error is not None
    assert "KeyboardInterrupt" in error
    assert "the next call has a new world" in error
    assert "notebook/" not in error
    after = notebook.run("%%ranks\none = np.ones(1)\ndist.all_reduce(one)\nint(one[0]) + mine")
    assert after.result == "[2, 3]"


@pytest.mark.thorough
def test_ranks_end_with_a_kernel_that_is_killed() -> None:
    notebook = Notebook()
    pids = notebook.run("%%ranks 2 --engine shm\nimport os\nos.getpid()").result
    assert pids is not None
    ranks = [int(word) for word in pids.strip("[]").split(",")]
    assert all(map(is_running, ranks))
    os.kill(notebook.pid, signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: not any(map(is_running, ranks)))
    assert time.monotonic() - began < 2.0
    notebook.close()


@pytest.mark.thorough
def test_a_rank_that_died_is_replaced(notebook: Notebook) -> None:
    notebook.run("%ranks stop")
    notebook.run("%%ranks 2 --engine shm\nimport os")
    died = notebook.run("%%ranks\nimport signal\nos.kill(os.getpid(), signal.SIGKILL)").error
    assert died is not None
    assert "ended without a result: killed by SIGKILL" in died
    again = notebook.run("%%ranks\n'os' in globals()")
    assert "cannot be used any more; <2 ranks, engine 'shm'> start without variables" in again.err
    assert again.result == "[False, False]"
    assert "<2 ranks, engine 'shm'>" in str(notebook.run("%ranks").result)
    notebook.run("%unload_ext unisono")
    assert "%ranks` not found" in notebook.run("%ranks").err
    notebook.run("%load_ext unisono")
