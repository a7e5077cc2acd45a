"""Exported models as programs for AArch64, which qemu runs: they compute what Python does here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import graph_cases as cases
import needs
import numpy as np
import pytest
import qemu
import state_models as states
from exported import each
from exported_cases import parallel
from model_cases import model_of

from autotune.backends.building import model_library, shared_library

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*the log has no schedule:UserWarning")]
DRIVER = shared_library.linker(qemu.TARGET.triple)
if DRIVER is None or qemu.QEMU is None:
    needs.missing("arm-libc")
# Inputs are what stdin has. Its outputs are on stdout.
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "net.h"
#define ROOM(x) calloc(net_##x##_elements, sizeof *x)
int main(int argc, char **argv) {
    net_instance *instance = NULL;
    int status = net_make(&instance, argc > 1 ? argv[1] : NULL);
    if (status || !net_runnable()) return fprintf(stderr, "%%s", net_error_text(status)), 3;
    %(arrays)s
    %(reads)s
    for (int call = 0; call < 3; call++) {
        status = net_run(%(given)s);
        if (status) return fprintf(stderr, "%%s", net_error_text(status)), 4;
        %(writes)s
    }
    net_free(instance);
    return fputs(net_target(), stderr) < 0;
}
"""


class Program:
    """A static program of what was exported, as no C library of that family need be here."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.parts = folder, list[str]()
        monkeypatch.setattr(model_library, "link", self.link)

    def link(
        self, objects: Any, _symbols: Any, _name: str, triple: str, sources: Any = (), given: Any = ()
    ) -> bytes:
        assert triple.startswith("aarch64")
        for kind, parts in (("o", objects), ("c", [x.encode() for x in sources])):
            for i, data in enumerate(parts):
                self.parts.append(f"part{i}.{kind}")
                (self.folder / self.parts[-1]).write_bytes(data)
        for name, place in dict(given).items():
            shutil.copy(place, self.folder / name)
        return b""

    def build(self, call: Any, *sizes: int) -> None:
        arrays = [(a["c_name"], a["c_type"], a["role"] == "output") for a in call["arguments"]]
        io = "if ({0}({1}, sizeof *{1}, net_{1}_elements, {2}) != net_{1}_elements) return 5;"
        text = PROGRAM % {
            "arrays": " ".join(f"{kind} *{x} = ROOM({x});" for x, kind, _ in arrays),
            "reads": " ".join(io.format("fread", x, "stdin") for x, _, out in arrays if not out),
            "writes": " ".join(io.format("fwrite", x, "stdout") for x, _, out in arrays if out),
            "given": ", ".join(["instance", *(x for x, _, _ in arrays), *map(str, sizes)]),
        }
        (self.folder / "main.c").write_text(text)
        assert DRIVER is not None
        family = [w.replace("-linux-gnu", "-linux-musl") if "ziglang" in DRIVER else w for w in DRIVER]
        command = [*family, "-static", "-O1", "main.c", *self.parts, "-lm", "-lpthread", "-o", "program"]
        subprocess.run(command, cwd=self.folder, check=True)

    def run(self, cpu: str, given: Any, *words: str) -> tuple[bytes, str]:
        command = [str(qemu.QEMU), "-cpu", cpu, "./program", *words]
        data = b"".join(np.ascontiguousarray(x).tobytes() for x in given)
        done = subprocess.run(command, cwd=self.folder, input=data, capture_output=True, check=False)
        assert done.returncode == 0, (done.returncode, done.stderr)
        return done.stdout, done.stderr.decode()


def agrees(program: Program, expected: list[Any], cpu: str, given: Any, *words: str) -> None:
    """``expected``: of three calls."""
    found, chosen = program.run(cpu, given, *words)
    assert chosen == CHOSEN[cpu]
    at = 0
    for a in expected:
        got = np.frombuffer(found, a.dtype, a.size, at).reshape(a.shape)
        np.testing.assert_allclose(got, a, rtol=2e-5, atol=1e-5)
        at += a.nbytes
    assert at == len(found)


CHOSEN = {"max": "neoverse-v1", "neoverse-n1": "neoverse-n1"}  # by processors of qemu
NETS = {
    "residual_net": (lambda: states.untuned(model_of(cases.residual_net())), "inside"),
    "transformer": (lambda: states.untuned(model_of(cases.transformer(1, seq=5))), "beside"),
    "counter": (lambda: states.untuned(model_of(states.counter())), "inside"),
    "two threads": (lambda: parallel(model_of(cases.transformer(1, seq=5))), "inside"),
}


@pytest.mark.parametrize("name", NETS)
def test_models_compute_the_same_there(name, tmp_path, monkeypatch) -> None:
    make, weights = NETS[name]
    net = make()
    program = Program(tmp_path, monkeypatch)
    how: dict[str, Any] = {"targets": ["neoverse-n1", "neoverse-v1"], "db": tmp_path / "t.db"}
    files = net.export(tmp_path, "net", weights=weights, **how)
    program.build(json.loads(files.contract.read_text()))
    rng = np.random.default_rng(0)
    given = [rng.integers(-2, 3, t.shape).astype(t.dtype) for t in net.inputs]
    expected = [a.copy() for _ in range(3) for a in each(net(*given))]
    for cpu in CHOSEN:
        agrees(program, expected, cpu, given, *([] if weights == "inside" else ["net.weights"]))
