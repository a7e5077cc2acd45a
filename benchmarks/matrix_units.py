"""What a product of float16 costs on matrix units, counted in machine code: no GPU is needed.

    python benchmarks/matrix_units.py [--against FILE ...] [--out FILE]

For the A100 and the H100 the search on the estimate alone picks a candidate of 4096³. NVRTC builds it,
NVIDIA's disassembler (on the path, or extra ``cuda``) lists its main loop. Told are, for each instruction of
a matrix unit: all instructions, and bytes that it and its neighbours move in shared memory; then registers,
warps that a processor holds, and turns of the banks for 8 rows of 16 bytes that are loaded at once.
``--against``: files of CUDA C that are joined to one kernel by hand, of blocks of 128 × 256 × 64 by 8 warps
in 3 stages; its figures stand beside.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from autotune import backends
from autotune.codegen.simt import cuda, nvrtc, sass
from autotune.search.evolutionary import EvolutionarySearch, model_features
from cost_model.analytic import AnalyticModel
from kernels_db.temporary import temporary_folder
from schedules import expr as E
from schedules import ops
from schedules.ir import Alloc, Buffer, nbytes, walk
from schedules.ir.strides import swizzled
from schedules.model import Target
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.space.estimate.gpu.limits import _resident
from schedules.space.estimate.gpu.rates import WARP, GpuRates

SIZE = 4096
TARGETS = ("a100", "h100")
UNITS = ("HMMA", "IMMA")
# Bytes of shared memory that a warp moves by one: four matrices of 8 rows of 16 bytes; 16 bytes a lane.
MOVED = {"LDSM": 512, "LDGSTS": 512}
# Threads and bytes of shared memory of a block of the kernel by hand: 3 stages of 128 × 256 × 64.
HAND_THREADS, HAND_SHARED = 256, 3.0 * (128 + 256) * 64 * 2
Figures = dict[str, Any]
_LABEL = re.compile(r"^(\.L_x_\d+):")
_CODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);")
_JUMP = re.compile(r"BRA(?:\.\w+)?\s+`\((\.L_x_\d+)\)")
_NAME = re.compile(r"^(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")


def picked(target: Target) -> tuple[DerivedSpace, int, np.ndarray]:
    """The space, and the sketch and row that the search on the estimate alone takes first."""
    space = derive(ops.workload("matmul", {"m": SIZE, "n": SIZE, "k": SIZE}, "float16").dag, target)
    (first, *_) = EvolutionarySearch(space, AnalyticModel(model_features(space)), 0).ask(1)
    return space, first.sketch, np.asarray(first.row)


def main_loop(listing: str) -> Counter[str]:
    """Instructions of the loop with most products of matrix units."""
    code: list[str] = []
    labels: dict[str, int] = {}
    found: list[Counter[str]] = []
    for line in listing.splitlines():
        if label := _LABEL.match(line.strip()):
            labels[label[1]] = len(code)
        elif one := _CODE.match(line):
            code.append(one[1])
            jump = _JUMP.search(one[1])
            if jump and jump[1] in labels:
                names = (_NAME.match(x) for x in code[labels[jump[1]] :])
                found.append(Counter(n[1] for n in names if n))
    return max(found, key=lambda x: sum(x[u] for u in UNITS), default=Counter())


def of_code(source: str, arch: str, threads: int, shared: float, rates: GpuRates) -> Figures:
    """Figures of a kernel's machine code."""
    built = nvrtc.compile_cubin(source, arch)
    tool = sass.tool()
    if tool is None:
        raise SystemExit("no disassembler: install extra `cuda`, or put nvdisasm on the path")
    with temporary_folder() as folder:
        (folder / "code.cubin").write_bytes(built.data)
        command = [str(tool), "-c", str(folder / "code.cubin")]
        loop = main_loop(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    units = sum(loop[u] for u in UNITS)
    (facts,) = built.facts.values()
    resident = float(_resident(float(threads), shared, float(facts["registers"]), rates))
    return {
        "instructions per product": round(sum(loop.values()) / units, 2),
        "shared bytes per product": round(sum(loop[x] * n for x, n in MOVED.items()) / units, 1),
        "registers": facts["registers"], "spill_bytes": facts["spill_bytes"],
        "warps of a processor": int(resident * threads / WARP),
        "loop": dict(loop.most_common(12)),
    }  # fmt: skip


def bank_turns(buffer: Buffer) -> int:
    """Most turns of the banks that 8 rows of 16 bytes take, which a load of fragments reads at once."""
    rows, columns = (int(E.evaluate(x, {})) for x in buffer.shape[-2:])
    item = nbytes(buffer) // math.prod(int(E.evaluate(x, {})) for x in buffer.shape)
    worst = 1
    for first in range(0, rows, 8):
        for chunk in range(0, columns * item, 16):
            places = [swizzled((first + r) * columns * item + chunk, buffer) for r in range(8)]
            worst = max(worst, *Counter(p // 16 % 8 for p in places).values())
    return worst


def by_hand(files: list[Path], arch: str, rates: GpuRates) -> Figures:
    """Figures of a kernel by hand, in the tile that it has without macros."""
    return of_code("".join(f.read_text() for f in files), arch, HAND_THREADS, HAND_SHARED, rates)


def figures(target: Target, against: list[Path]) -> Figures:
    """What is told of one target."""
    space, sketch, row = picked(target)
    tile = {h.split(".")[1]: int(x) for h, x in zip(space.holes(sketch), row, strict=True)}
    program = lower_simt(Schedule.replay(space.dag, space.trace(sketch, row), target).nest)
    (kernel,) = program.kernels
    rates, arch, threads = GpuRates.of(target), target.arch, int(np.prod(kernel.block))
    held = [x.buffer for x in walk(kernel.body) if isinstance(x, Alloc) and x.buffer.scope == "shared"]
    own = of_code(cuda.source(program), arch, threads, float(sum(map(nbytes, held))), rates)
    out = {"sketch": space.sketches[sketch], "tile": tile, "picked": own}
    own["turns of banks"] = max(map(bank_turns, held))
    if against:
        out["by hand"] = by_hand(against, arch, rates)
    return out


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--against", nargs="*", type=Path, default=[], help="a kernel by hand, in parts")
    p.add_argument("--out", type=Path, help="a file for the figures")
    p.add_argument("--targets", nargs="*", default=list(TARGETS))
    o = p.parse_args()
    found = {name: figures(backends.parse(name), o.against) for name in o.targets}
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="")
    if o.out:
        o.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
