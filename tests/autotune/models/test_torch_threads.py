"""Threads that trace with torch, and threads that run what it compiled."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from children import python_path
from torch_cases import torch

from autotune.models.torch_threads import alone


def test_only_the_thread_that_exports_takes_itself_for_exporting() -> None:
    if not hasattr(torch.compiler, "_is_exporting_flag"):
        pytest.skip("this torch has no such flag")
    before, seen = torch.compiler.is_exporting, {}
    with alone(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.compiler, "_is_exporting_flag", True)  # as torch.export sets it
        other = threading.Thread(target=lambda: seen.update(other=torch.compiler.is_exporting()))
        other.start()
        other.join()
        seen["here"] = torch.compiler.is_exporting()
    assert seen == {"here": True, "other": False}
    assert torch.compiler.is_exporting is before


def test_nobody_else_compiles_meanwhile() -> None:
    from torch._dynamo.convert_frame import compile_lock

    got: list[bool] = []
    with alone(), alone():  # also within itself
        other = threading.Thread(target=lambda: got.append(compile_lock.acquire(blocking=False)))
        other.start()
        other.join()
    assert got == [False]


FIRST_CALLS = """
import sys, threading, warnings
warnings.simplefilter("ignore")
import torch
from autotune.models import compiling, torch_backend
from autotune.run.kernels import default_kernel
from torch import nn

def kernels(tasks, missing, wanted, where, remedy, picking):
    return {m.task: default_kernel(tasks[m.task].workload, wanted) for m in missing}

compiling.untuned_kernels = kernels

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(4, 8), nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(torch.relu(self.inner(x)))

net, x, n = Net().eval(), torch.randn(6, 4), 8
f = torch.compile(net, backend=torch_backend.backend, options={"threads": 1, "strict": True})
with torch.no_grad():
    want = net(x)
barrier, failed = threading.Barrier(n), []

def call():
    try:
        barrier.wait()
        with torch.no_grad():
            torch.testing.assert_close(f(x), want, rtol=1e-4, atol=1e-4)
    except BaseException as err:
        failed.append(repr(err)[:200])

threads = [threading.Thread(target=call) for _ in range(n)]
[t.start() for t in threads]
[t.join() for t in threads]
print(failed)
sys.exit(bool(failed))
"""


@pytest.mark.soak
@pytest.mark.parametrize("attempt", range(3))
def test_many_threads_make_the_first_call_at_once(attempt: int, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": python_path(__file__),
        "AUTOTUNE_DB": str(tmp_path / "log.db"),
        "AUTOTUNE_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
