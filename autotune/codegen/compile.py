"""LLVM IR text to object bytes, and object bytes to callable code in this process.

llvmlite is imported on first use: what only reads logs never pays for it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from autotune.codegen import entry as abi
from autotune.errors import CompileError
from schedules.model import Target

if TYPE_CHECKING:
    import llvmlite.binding as llvm

# Every x86-64 CPU has these; LLVM cannot generate code without some of them.
_X86_64_BASELINE = frozenset(("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2", "x87"))
_METH_FASTCALL = 0x80


@cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    return llvm


@cache
def host_arch() -> tuple[str, tuple[str, ...], str]:
    """(LLVM CPU name, sorted instruction-set extensions, target triple) of this machine."""
    llvm = _llvm()
    features = tuple(sorted(name for name, on in llvm.get_host_cpu_features().items() if on))
    return llvm.get_host_cpu_name(), features, llvm.get_process_triple()


@cache
def _machine(arch: str, features: tuple[str, ...], triple: str) -> llvm.TargetMachine:
    llvm = _llvm()
    try:
        found = llvm.Target.from_triple(triple or llvm.get_process_triple())
    except RuntimeError as err:
        raise CompileError(f"no code generator for triple {triple!r}: {err}") from None
    # A hypervisor may hide extensions that the CPU's name implies: with a list given, all others go.
    known = set(llvm.get_host_cpu_features()) if features else set()
    off = sorted(known - set(features) - _X86_64_BASELINE)
    flags = ",".join([*(f"-{f}" for f in off), *(f"+{f}" for f in features)])
    return found.create_target_machine(
        cpu=arch, features=flags, opt=2, reloc="pic", codemodel="small", jit=False
    )


def compile_module(text: str, target: Target, *, optimize: bool = True) -> bytes:
    """ELF object of a module's text. ``optimize=False`` skips the IR passes, never the code
    generator's optimisation. Raises `CompileError`."""
    machine, module = _prepare(text, target, optimize)
    return machine.emit_object(module)


def assembly(text: str, target: Target, *, optimize: bool = True) -> str:
    """The same as `compile_module`, as assembly text."""
    machine, module = _prepare(text, target, optimize)
    return machine.emit_assembly(module)


def optimized_ir(text: str, target: Target) -> str:
    """The module's text after the IR passes."""
    return str(_prepare(text, target, True)[1])


def _prepare(text: str, target: Target, optimize: bool) -> tuple[llvm.TargetMachine, llvm.ModuleRef]:
    if target.kind != "cpu":
        raise CompileError(f"the LLVM back end compiles for kind 'cpu', not {target.kind!r}")
    llvm = _llvm()
    machine = _machine(target.arch, target.features, target.triple)
    try:
        # A context of its own: the global one would keep the types of every module ever compiled.
        module = llvm.parse_assembly(text, context=llvm.create_context())
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as err:
        raise CompileError(f"LLVM refused the generated code: {_shorten(str(err))}") from None
    if optimize:
        _run_passes(module, machine)
    return machine, module


def _run_passes(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> None:
    """Scalar clean-up only. The schedule decides vectorisation and unrolling; LLVM's own decisions
    there depend on tile sizes in ways that nobody can predict."""
    llvm = _llvm()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_interleaving = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    passes = builder.getFunctionPassManager()
    for f in module.functions:
        if not f.is_declaration:
            passes.run(f, builder)


def _shorten(message: str, limit: int = 600) -> str:
    message = " ".join(message.split())
    return message if len(message) <= limit else message[:limit] + " ..."


class LoadedObject:
    """Compiled code in this process. It stays mapped for as long as this object lives."""

    __slots__ = ("__weakref__", "_bench", "_bench_cpu", "_get", "_keep", "_method", "_put", "_run", "addresses",
                 "scratch_bytes", "signature", "threads")  # fmt: skip

    def __init__(self, addresses: dict[str, int], keep: Any) -> None:
        """``addresses`` of `entry.SYMBOLS`; ``keep``: what holds the code mapped."""
        version = ctypes.c_int32.from_address(addresses["at_abi"]).value
        if version != abi.ABI:
            raise CompileError(f"object of ABI version {version}, this autotune reads {abi.ABI}: compile it again")
        self.addresses = addresses
        self._keep = keep
        self.threads: int = ctypes.c_int32.from_address(addresses["at_threads"]).value
        self.scratch_bytes: int = ctypes.c_int64.from_address(addresses["at_scratch_bytes"]).value
        self.signature: str = ctypes.string_at(addresses["at_signature"]).decode()
        bench = ctypes.CFUNCTYPE(
            ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        )
        self._bench = bench(addresses["at_bench"])
        self._bench_cpu = bench(addresses["at_bench_cpu"])
        self._get = ctypes.CFUNCTYPE(ctypes.c_void_p)(addresses["at_scratch_get"])
        self._put = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(addresses["at_scratch_put"])
        self._run = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(addresses["at_run"])
        self._method = _MethodDef(b"kernel", addresses["at_call"], _METH_FASTCALL, None)
        release = ctypes.CFUNCTYPE(None)(addresses["at_release"])
        weakref.finalize(self, _release, release, keep).atexit = False

    def run(self, pointers: Sequence[int]) -> None:
        """Run the kernel once on data pointers, in parameter order, without any check; the GIL is
        released. Raises MemoryError when there is no scratch memory."""
        if self._run((ctypes.c_void_p * len(pointers))(*pointers)):
            raise MemoryError(f"no memory for {self.scratch_bytes} bytes of scratch")

    def bench(
        self, pointers: Sequence[int], n: int, *, threads: int | None = None, cpu_clock: bool = False
    ) -> int:
        """Nanoseconds that ``n`` runs take together, on the monotonic clock or on the calling
        thread's CPU time. ``threads`` is at most what the kernel was compiled for."""
        threads = self.threads if threads is None else threads
        if not 1 <= threads <= self.threads:
            raise ValueError(f"threads={threads}, but this kernel was compiled for at most {self.threads}")
        scratch = self._get()
        if self.scratch_bytes and not scratch:
            raise MemoryError(f"no memory for {self.scratch_bytes} bytes of scratch")
        try:
            f = self._bench_cpu if cpu_clock else self._bench
            return f((ctypes.c_void_p * len(pointers))(*pointers), scratch, threads, n)
        finally:
            self._put(scratch)

    def python_function(self) -> Callable[..., int] | None:
        """The fast path as a builtin function of the arrays (`entry.entry`: 0, 1 or 2), or None
        where this interpreter's objects are not laid out as it expects."""
        table = _python_table()
        if table is None:
            return None
        here = (ctypes.c_void_p * len(table)).from_address(self.addresses["at_py_table"])
        here[:] = table
        make = ctypes.pythonapi["PyCFunction_NewEx"]
        make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p], ctypes.py_object
        # ``self`` of the builtin is this object: whoever holds the function holds the code.
        return make(ctypes.addressof(self._method), self, None)  # type: ignore[no-any-return]


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def _release(release: Callable[[], None], keep: Any) -> None:
    """Frees the scratch block of code that is still mapped because ``keep`` is."""
    release()


@cache
def _python_table() -> tuple[int, ...] | None:
    """Addresses for `at_py_table` (`entry.TABLE`), or None where array heads may not be read:
    another interpreter, a free-threaded or debug build, or a numpy with another layout."""
    import numpy as np

    if (
        sys.implementation.name != "cpython"
        or sysconfig.get_config_var("Py_GIL_DISABLED")
        or object.__basicsize__ != abi.DATA
        or np.ndarray.__basicsize__ < abi.ARRAY_HEAD_BYTES
    ):
        return None
    for dtype in abi.ITEMSIZE:
        a = np.zeros((3, 5), dtype)
        for known in (a, a.T, a[1]):
            known.flags.writeable = known.ndim == 2
            head = id(known)
            flags = ctypes.c_int32.from_address(head + abi.FLAGS).value
            ndim = ctypes.c_int32.from_address(head + abi.NDIM).value
            ok = (
                ctypes.c_void_p.from_address(head + abi.OB_TYPE).value == id(np.ndarray)
                and ctypes.c_void_p.from_address(head + abi.DATA).value == known.ctypes.data
                and ctypes.c_void_p.from_address(head + abi.DESCR).value == id(np.dtype(dtype))
                and bool(flags & abi.C_CONTIGUOUS) == known.flags.c_contiguous
                and bool(flags & abi.WRITEABLE) == known.flags.writeable
                and ndim == known.ndim
            )
            if not ok:
                return None
            dims = ctypes.c_void_p.from_address(head + abi.DIMENSIONS).value or 0
            if tuple((ctypes.c_int64 * ndim).from_address(dims)) != known.shape:
                return None
    return (id(np.ndarray), *(id(np.dtype(d)) for d in abi.ITEMSIZE))


@cache
def _jit() -> tuple[llvm.LLJIT, itertools.count[int], threading.Lock]:
    """The process's linker, a source of library names, and a lock for both."""
    llvm = _llvm()
    return llvm.create_lljit_compiler(use_jit_link=True), itertools.count(), threading.Lock()


def _link(obj: bytes, exports: Sequence[str], imports: dict[str, int]) -> tuple[dict[str, int], Any]:
    jit, names, lock = _jit()
    builder = _llvm().JITLibraryBuilder().add_object_img(obj).add_current_process()
    for name, address in imports.items():
        builder.import_symbol(name, address)
    for name in exports:
        builder.export_symbol(name)
    with lock:
        try:
            tracker = builder.link(jit, f"autotune.{next(names)}")
        except RuntimeError as err:
            raise CompileError(f"the object could not be loaded: {_shorten(str(err))}") from None
    return {name: tracker[name] for name in exports}, tracker


@cache
def pool() -> dict[str, int]:
    """Addresses of the symbols of the worker pool (`threads.py`): one pool in a process, started when the first
    kernel that needs it is loaded, and started afresh in a child after a fork."""
    from autotune.codegen import threads

    arch, features, triple = host_arch()
    obj = compile_module(threads.text(triple), Target("cpu", arch, triple, features))
    addresses, tracker = _link(obj, ("at_parallel", "at_pool_reset", "at_pool_workers"), {})
    reset = ctypes.CFUNCTYPE(None)(addresses["at_pool_reset"])

    def after_fork(keep: Any = tracker) -> None:
        reset()

    os.register_at_fork(after_in_child=after_fork)
    return addresses


def load_object(obj: bytes) -> LoadedObject:
    """Map an object of `compile_module` into this process: only bytes from this process or from
    its own `ObjectCache` belong here, since they run. Raises `CompileError`."""
    if platform.python_implementation() != "CPython":
        raise CompileError("compiled kernels need CPython; this is " + platform.python_implementation())
    imports = {
        name: ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p).value or 0
        for name in ("PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_FromLong")
    }
    if b"at_parallel\0" in obj:
        imports["at_parallel"] = pool()["at_parallel"]
    return LoadedObject(*_link(obj, abi.SYMBOLS, imports))
