"""Scripts of MindSpore that stay as they are, over unisono: patched by an option or by a call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.mindspore_jobs import run_by_unisono
from tests.helpers.paths import with_tests

mindspore = pytest.importorskip("mindspore")

PATCH = ["--patch", "mindspore"]
PATCHED = f"unisono: patched mindspore {mindspore.__version__}: "
FIRST_LINE = f"{PATCHED}its communication uses unisono (engine shm)"

#: Nothing of unisono in it. Every way in which programs name communication.
UNCHANGED = """
import os
os.environ["GLOG_v"] = "3"  # read by MindSpore when it is imported
import numpy as np
import mindspore as ms
import mindspore.communication.management as management
from mindspore import Tensor, mint, ops
from mindspore.communication import GlobalComm, create_group, get_group_size, get_rank, init
from mindspore.communication.comm_func import all_reduce
from mindspore.mint.distributed.distributed import scatter_tensor
from mindspore.ops import operations as P
from mindspore.ops._primitive_cache import _get_cache_prim

assert not GlobalComm.INITED and not ms.communication._comm_helper._is_initialized()
init()
rank, size = get_rank(), get_group_size()
assert size == 2 and rank == int(os.environ["RANK"])
assert GlobalComm.INITED and ms.communication._comm_helper._is_initialized()
assert management.get_rank() == mint.distributed.get_rank() == ops.get_rank() == rank
x = Tensor(np.arange(4, dtype=np.float32) + rank)
total = [1.0, 3.0, 5.0, 7.0]
assert all_reduce(x)[0].asnumpy().tolist() == total
assert ms.ops.communication.all_reduce is not all_reduce
cached = _get_cache_prim(ops.AllReduce)("sum")
for primitive in (ops.AllReduce(), P.AllReduce(), P.comm_ops.AllReduce("sum"), cached):
    assert primitive(x).asnumpy().tolist() == total
in_place = x.copy()
mint.distributed.all_reduce(in_place)
assert in_place.asnumpy().tolist() == total
part = Tensor(np.zeros(2, np.float32))
scatter_tensor(part, in_place)
assert part.asnumpy().tolist() == total[2 * rank : 2 * rank + 2]
create_group("both", [0, 1])
assert ops.AllGather("both")(x).shape == (8,)
print("right on", rank)
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def test_an_unchanged_script(tmp_path: Path) -> None:
    done = run_by_unisono(PATCH, write(tmp_path, UNCHANGED))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] right on 0", "[1] right on 1"]
    assert done.stderr.splitlines()[0] == FIRST_LINE
    assert done.stderr.count("patched") == 1


def test_the_process_is_that_of_a_plain_python(tmp_path: Path) -> None:
    """Same arguments, paths, main module and traceback; MindSpore is not imported for it."""
    script = write(
        tmp_path,
        """
import sys, __main__
assert "mindspore" not in sys.modules
print(sys.argv, sys.path[0], __name__, __file__, __main__.__spec__, __main__.__package__)
def inner():
    raise ValueError("on purpose")
inner()
""",
    )
    plain, patched = (
        run_by_unisono(options, script, "one", "--two", ranks=1) for options in ([], PATCH)
    )
    assert plain.returncode == patched.returncode == 1
    assert plain.stdout == patched.stdout
    *lines, last = patched.stderr.splitlines()
    assert lines == [FIRST_LINE, *plain.stderr.splitlines()[:-1]]
    # With a patch, unisono is there and tells the launcher what was raised.
    assert last == "unisono: rank 0 of 1 failed: ValueError at script.py:6: on purpose"


def test_modules_and_a_sitecustomize_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("seen = True")
    write(tmp_path, "import sitecustomize, sys\nprint(sitecustomize.seen, sys.argv[1:])")
    paths = os.pathsep.join([str(tmp_path / "site"), with_tests()])
    done = subprocess.run(
        [sys.executable, "-m", "unisono", "run", "-n", "1", *PATCH, "-m", "script", "a"],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0] True ['a']\n"


def test_a_call_replaces_what_was_imported_before(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(
        "from mindspore.communication import get_group_size as size\n"
        "from mindspore.ops import AllReduce\n"
    )
    script = write(
        tmp_path,
        """
import numpy as np
import mindspore, helper
from mindspore.communication import init, get_rank
from mindspore.ops import AllReduce
import unisono
unisono.patch("mindspore")
unisono.patch("mindspore")
init()
assert helper.size() == 2 and helper.AllReduce is AllReduce
assert AllReduce()(mindspore.Tensor(np.ones(2, np.float32))).asnumpy().tolist() == [2, 2]
from mindspore.mint.distributed import get_world_size
assert get_world_size() == 2
""",
    )
    done = run_by_unisono([], script)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "patched" in line]
    assert len(told) == 1, told
    assert told[0].startswith(f"[0] {PATCHED}")
    assert told[0].endswith(" names now use unisono (engine shm)")
    assert int(told[0].split()[5]) > 300


QUIET = """
import os
os.environ["GLOG_v"] = "2"  # MindSpore writes its warnings
import numpy as np
import mindspore as ms
from mindspore import Tensor, ops
from mindspore.communication import get_rank, init
from mindspore.communication.comm_func import all_reduce

init()
x = Tensor(np.ones(4, np.float32))
sum_of = ops.AllReduce()

def loss(x):
    return sum_of(x).sum() + all_reduce(x)[0].sum()

for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
    ms.set_context(mode=mode)
    assert ms.grad(loss)(x).asnumpy().tolist() == [4.0] * 4
    if get_rank() == 0:
        ops.Send(0, 1)(x)
    else:
        ops.Receive(0, 0, [4], ms.float32)(x)
"""


def test_nothing_but_the_first_line_is_written(tmp_path: Path) -> None:
    """MindSpore warns of what is deprecated, and we use none of it."""
    done = run_by_unisono(PATCH, write(tmp_path, QUIET))
    assert done.returncode == 0, done.stderr
    # Graphs run on one thread for the sake of order, which MindSpore finds too few, or too many.
    about_threads = ("thread pool", "runtime_num_threads")
    written = [
        line for line in done.stderr.splitlines() if not any(word in line for word in about_threads)
    ]
    assert written == [FIRST_LINE]


@pytest.mark.thorough
def test_msrun(tmp_path: Path, port: str) -> None:
    """Another launcher, an unchanged script; the scheduler, which is no rank, ends with 0."""
    script = write(tmp_path, UNCHANGED.replace('os.environ["RANK"]', 'os.environ["RANK_ID"]'))
    programs = Path(sys.executable).parent
    done = subprocess.run(
        [
            *(sys.executable, "-m", "unisono", "patch", "mindspore", programs / "msrun"),
            *("--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True"),
            *(f"--log_dir={tmp_path}", script),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": with_tests(),
        },
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    logs = {log.name: log.read_text(errors="replace") for log in tmp_path.glob("*.log")}
    assert done.returncode == 0, (done.stdout, done.stderr, logs)
    assert done.stderr.startswith(PATCHED)
    assert "right on 0" in logs["worker_0.log"]
    assert "right on 1" in logs["worker_1.log"]
