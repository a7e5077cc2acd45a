"""The process from which builders and workers fork. It has everything imported and no thread running.

It speaks with its parent over one socket: a setup, then "fork" and "reap" requests, one at a time. A fork
takes about a millisecond, so that a process which a candidate killed is replaced at once.

The zygote dies with its parent, and its children die with it: by parent-death signals where there are such,
elsewhere by the end of the socket. Each child leads a process group, which is killed as a whole.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from autotune import backends
from autotune.backends.peaks.cpu_peaks import Reference
from autotune.codegen.llvm.compile import pool
from autotune.measure import builder, wire, worker
from autotune.measure.arena import Arena, KernelParam
from autotune.measure.check import Checker
from autotune.measure.native import Native
from autotune.measure.open_checks import SizeCheck, largest_of, sizes_to_rank
from autotune.measure.results import Options
from autotune.platform import processes
from schedules.dtypes import bound_dtype
from schedules.model import Target
from schedules.te.compute_dag import ComputeDAG
from schedules.te.open_sizes import at

# Largest file that a child may write (bytes): error output, or a compiler's object.
FILE_BYTES = 64 << 20
# Niceness of builders: the kernel that is timed goes first.
NICE = 10


def main(fd: int, parent: int) -> None:
    """Serve the parent at the other end of socket ``fd`` until it goes away."""
    control = server(fd, parent)
    children: set[int] = set()
    try:
        header, _, fds = wire.receive(control, max_fds=1)
        state = PreparedTask(header, fds[0])
        wire.send(control, state.answer())
        gc.freeze()  # children share these objects: no collection should touch them
        while True:
            header, _, fds = wire.receive(control, max_fds=3)
            if header["do"] == "fork":
                pid = processes.forked(control, partial(_child, state, header["role"]), fds)
                children.add(pid)
                wire.send(control, {"pid": pid})
            else:
                status = processes.KILLED  # a child of an earlier zygote died with it
                if header["pid"] in children:  # else the number may be another process's by now
                    children.discard(header["pid"])
                    status = processes.reaped(header["pid"], header["kill"])
                wire.send(control, {"status": status})
    except wire.Closed:
        pass
    except Exception as err:
        wire.send(control, {"error": f"{type(err).__name__}: {err}"})
    finally:
        for pid in children:
            processes.reaped(pid, kill=True)


class _SizeArrays:
    """The arrays of a DAG without open sizes. ``each``: of a draw in the file."""

    def __init__(self, dag: ComputeDAG, names: Sequence[str]) -> None:
        self.names = tuple(names)
        both = zip(names, dag.params, strict=True)
        self.params = [KernelParam(n, t.shape, t.dtype, t.strides) for n, t in both]
        self.count = len(dag.inputs)
        plain = [replace(p, strides=None) for p in self.params]  # the file has them row-major
        self.each = [*plain, *(replace(p, dtype=bound_dtype(p.dtype)) for p in plain[self.count :])]
        self.constants = [i for i, t in enumerate(dag.inputs) if t.name in dag.constants]

    def arena(self, draws: Sequence[Sequence[np.ndarray]], one_place: bool) -> Arena:
        first, *more = ([*d[: self.count]] for d in draws)
        return Arena(self.params, first, self.constants, one_place, more)

    def checker(self, drawn: Sequence[np.ndarray]) -> Checker:
        end = len(self.params)
        return Checker(self.names[self.count :], drawn[self.count : end], drawn[end:])


class PreparedTask:
    """What the children start with: workload, target, options, arena and compiled functions."""

    def __init__(self, setup: dict[str, Any], data: int) -> None:
        """``data``: file with the arrays of each draw (`inputs.Draw.arrays`), end to end."""
        self.target = Target.from_json(setup["target"])
        self.dag = ComputeDAG.from_json(setup["dag"])
        self.options = Options(**setup["options"])
        self.build = builder.find(setup["build"])
        if self.target.threads > 1:
            pool()  # compiled here once; its threads start in each worker
        # What is wrong with an array is told in the user's name for it.
        names = setup["names"]
        whole = _SizeArrays(self.dag.largest, names)
        others = [_SizeArrays(at(self.dag, sizes), names) for sizes in setup["sizes"]]
        file = _arrays(data, [*whole.each * setup["draws"], *(p for x in others for p in x.each)])
        draws = [[next(file) for _ in whole.each] for _ in range(setup["draws"])]
        ranking = sizes_to_rank(self.dag)
        self.arena = whole.arena(draws, backends.of(self.target).measuring.one_place)
        self.sizes = tuple(
            SizeCheck(
                tuple(sizes.values()),
                ", ".join(f"{name}={n}" for name, n in sizes.items()),
                x.arena([drawn := [next(file) for _ in x.each]], False),
                (x.checker(drawn),),
                sizes in ranking,
            )
            for sizes, x in zip(setup["sizes"], others, strict=True)
        )
        cpu = backends.of(self.target).clocked_by(self.target)
        self.bench = worker.MeasuringBench(
            self.target,
            self.arena,
            tuple(map(whole.checker, draws)),
            Native(cpu),
            Reference(cpu, *(setup["nominal"] or ())),
            self.options,
            sizes=self.sizes,
            told=largest_of(self.dag),
        )

    def answer(self) -> dict[str, Any]:
        every = [s for a in (self.arena, *(x.arena for x in self.sizes)) for s in a.spans]
        spans = [[s.name, s.kind, s.dtype, s.low, s.first, s.last, s.high] for s in every]
        reference = self.bench.reference
        return {"spans": spans, "nominal": [reference.nominal_s, reference.runs]}


def server(fd: int, parent: int) -> socket.socket:
    """The socket by which a parent asks this process to fork. Its end, and not Ctrl-C, ends this process."""
    processes.die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return socket.socket(fileno=fd)


def _child(state: PreparedTask, role: str, fds: Sequence[int]) -> None:
    """The life of a forked process. ``fds``: its socket, its error output, its fault record."""
    processes.die_with(os.getppid())
    processes.lead_group()
    if backends.of(state.target).measuring.bounded:
        processes.limit_own(state.options.memory_bytes, FILE_BYTES)
    sock = socket.socket(fileno=fds[0])
    if role == "worker":
        state.bench.native.watch(fds[2])
        for arena in (state.arena, *(x.arena for x in state.sizes)):
            arena.fill_outputs()
        worker.serve(sock, state.bench)
    else:
        processes.step_back(NICE)
        builder.serve(sock, state.build, state.dag, state.target)


def _arrays(fd: int, params: Sequence[KernelParam]) -> Iterator[np.ndarray]:
    """Read-only views of the arrays that lie end to end in a file."""
    size = sum(-(-p.nbytes // 64) * 64 for p in params)
    data = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
    os.close(fd)
    place = 0
    for p in params:
        count = p.nbytes // np.dtype(p.dtype).itemsize
        yield np.frombuffer(data, p.dtype, count, place).reshape(p.shape)
        place += -(-p.nbytes // 64) * 64
