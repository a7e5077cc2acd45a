"""Compiles LLVM IR text to object bytes, and loads object bytes as callable code into this process.

llvmlite is imported on first use, so that reading logs does not import it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from autotune.codegen.runtime import c_entry, exchange, support
from autotune.codegen.runtime import entry as abi
from autotune.codegen.runtime.open_signature import OPEN
from autotune.codegen.runtime.program import STEP
from autotune.errors import CompileError
from autotune.platform import amx, clocks
from autotune.targets.features import detected
from schedules.dtypes import DTYPES
from schedules.model import Target
from schedules.te.open_sizes import OpenSize

if TYPE_CHECKING:
    import llvmlite.binding as llvm

# Extensions of every x86-64 CPU. LLVM cannot generate code without some of them.
_X86_64_BASELINE = frozenset(("64bit", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2", "x87"))
# CPython's flag of a builtin function with the fast calling convention.
_METH_FASTCALL = 0x80
# Held while LLVM's options, which belong to the process, are changed.
_SWITCH = threading.Lock()
# Parts of code generation that are left out: always; in modules with masked tails. Source: `_lean`.
_LEFT_OUT = ("disable-lsr", "disable-post-ra")
_LEFT_OUT_OF_TAILS = ("disable-machine-sink",)
# A vector of which bytes are kept: what made it may be done on bytes.
_NARROWED = re.compile(r"= trunc <\d+ x i32> \S+ to <\d+ x i8>")
# A call that marks a masked tail: it asks whether all lanes are active, to store a whole vector.
_TAILS = "@llvm.vector.reduce.and."
# A symbol of objects that use tiles (`schedules.instructions.tile_products`).
TILES = b"at_tiles\0"
Made = TypeVar("Made")


def _once(make: Callable[[], Made]) -> Callable[[], Made]:
    """`functools.cache` for a function without arguments, which runs once even if two threads call it
    together."""
    made: list[Made] = []
    lock = threading.RLock()

    @wraps(make)
    def ask() -> Made:
        if not made:
            with lock:
                if not made:
                    made.append(make())
        return made[0]

    return ask


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
    return llvm.get_host_cpu_name(), detected(), llvm.get_process_triple()


def host_target() -> Target:
    """This machine as a target, for code of this process."""
    arch, features, triple = host_arch()
    return Target("cpu", arch, triple, features)


@cache
def _machine(arch: str, features: tuple[str, ...], triple: str, level: int = 2) -> llvm.TargetMachine:
    llvm = _llvm()
    own = llvm.get_process_triple()
    foreign = bool(triple) and triple.partition("-")[0] != own.partition("-")[0]
    if foreign:  # for a board of a fleet
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    try:
        found = llvm.Target.from_triple(triple or own)
    except RuntimeError as err:
        raise CompileError(f"no code generator for triple {triple!r}: {err}") from None
    # A hypervisor may hide extensions that the CPU's name implies. If a list is given, all others are
    # switched off.
    known = set(llvm.get_host_cpu_features()) if features and not foreign else set()
    off = sorted(known - set(features) - _X86_64_BASELINE)
    flags = ",".join([*(f"-{f}" for f in off), *(f"+{f}" for f in features)])
    return found.create_target_machine(
        cpu=arch, features=flags, opt=level, reloc="pic", codemodel="small", jit=False
    )


def compile_module(text: str, target: Target, *, optimize: bool = True, level: int = 2) -> bytes:
    """The ELF object of a module's text. ``optimize``: whether to run the IR passes. ``level``: of the code
    generator's optimisation, 0 to 3. Raises `CompileError`."""
    with _module(text, target, optimize, level) as (machine, module), _lean(text):
        return machine.emit_object(module)


def assembly(text: str, target: Target, *, optimize: bool = True) -> str:
    """Like `compile_module`, as assembly text."""
    with _module(text, target, optimize) as (machine, module), _lean(text):
        return machine.emit_assembly(module)


@contextmanager
def _module(
    text: str, target: Target, optimize: bool, level: int = 2
) -> Iterator[tuple[llvm.TargetMachine, llvm.ModuleRef]]:
    if target.grid:
        raise CompileError(f"the LLVM back end compiles for CPUs, not for kind {target.kind!r}")
    llvm = _llvm()
    machine = _machine(target.arch, target.features, target.triple, level)
    # A context of its own, because the global one keeps the types of every module. Both are closed here, the
    # module first, because the garbage collector might free the context before it.
    with ExitStack() as stack:
        context = stack.enter_context(llvm.create_context())
        try:
            module = stack.enter_context(llvm.parse_assembly(text, context=context))
            module.triple = machine.triple
            module.data_layout = str(machine.target_data)
            module.verify()
        except RuntimeError as err:
            raise CompileError(f"LLVM refused the generated code: {_shorten(str(err))}") from None
        if optimize:
            _run_passes(module, machine, combine="fcmp" in text or _NARROWED.search(text) is not None)
        yield machine, module


@contextmanager
def _lean(text: str) -> Iterator[None]:
    """Switch off parts of code generation that take time and gain nothing for this code.

    Left out: loop strength reduction, as `Addresses.address` does its work, and scheduling after register
    allocation, as the processor does that. Scheduling before it stays. In modules with masked tails code does
    not sink to its uses: a vector's chain of multiply-adds would move under the guard of its store, each step
    waiting for the one before. Figures: docs/measurements/code-generation.md. LLVM's options belong to the
    process, where others may compile too (numba), so they are restored."""
    llvm = _llvm()
    left_out = _LEFT_OUT + _LEFT_OUT_OF_TAILS * (_TAILS in text)
    with _SWITCH:  # no other thread restores them meanwhile
        try:
            for name in left_out:
                llvm.set_option("autotune", f"-{name}=true")
            yield
        finally:
            for name in left_out:
                llvm.set_option("autotune", f"-{name}=false")


def _run_passes(module: llvm.ModuleRef, machine: llvm.TargetMachine, combine: bool) -> None:
    """Run scalar clean-up passes only. The schedule decides vectorisation and unrolling, as LLVM's own
    decisions would change with tile sizes in ways that a search cannot learn. Value numbering is left out:
    the text has no common subexpressions left, and NewGVN aborts the process on some inputs (an assertion,
    LLVM 22). ``combine``: combine instructions, which takes a tenth of code generation's time and helps only
    where floats are compared, and where bytes are kept of integers."""
    llvm = _llvm()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes = llvm.create_new_function_pass_manager()
    passes.add_sroa_pass()
    if combine:
        passes.add_simplify_cfg_pass()
        passes.add_instruction_combine_pass()
    for f in module.functions:
        if not f.is_declaration:
            passes.run(f, builder)


def _shorten(message: str, limit: int = 600) -> str:
    message = " ".join(message.split())
    return message if len(message) <= limit else message[:limit] + " ..."


class LoadedObject:
    """Compiled code in this process. It stays mapped as long as this object lives."""

    __slots__ = (
        "__weakref__",
        "_desc",
        "_home",
        "_keep",
        "_sizes",
        "_support",
        "_together",
        "address",
        "scratch_bytes",
        "signature",
        "threads",
    )

    def __init__(self, header: int, keep: Any) -> None:
        """``header``: address of ``at_header``. ``keep``: the object that keeps the code mapped."""
        head = _Header.from_address(header)
        if head.abi != abi.ABI:
            raise CompileError(f"object of ABI {head.abi}, but {abi.ABI} is current: compile it again")
        self.address: int = head.kernel
        self.threads: int = head.threads
        self.scratch_bytes: int = head.scratch_bytes
        self.signature: str = head.signature.decode()
        self._keep = keep
        self._home, self._sizes = 0, tuple[int, ...]()
        self._together: dict[int, tuple[int, int]] = {}
        self._describe()

    def _describe(self) -> None:
        self._support = support = _support()
        words = self._words({})
        self._desc = desc = (ctypes.c_int64 * len(words))(*words)
        # Not at exit: the process frees the memory, and daemon threads may still run.
        weakref.finalize(self, support.release, desc).atexit = False

    def _words(self, table: dict[str, int]) -> list[int]:
        of = self.address, self.threads, self.scratch_bytes, self.signature
        return abi.descriptor(*of, table, self._home, self._sizes, self._together)

    def lie_together(self, places: Sequence[tuple[int, int, int]]) -> None:
        """Have the fast path take outputs that lie in the memory of inputs: (number of the output, of the
        input, bytes between where they begin). Of several inputs of an output, it takes none. To be called
        before `python_function`."""
        outputs = [w for w, _, _ in places]
        self._together = {w: (i, nbytes) for w, i, nbytes in places if outputs.count(w) == 1}

    def sized(self, signature: str, sizes: Sequence[int]) -> LoadedObject:
        """The same code for one size of each that a call tells: it takes the arrays of ``signature``, and is
        called like code that has no open sizes. Both share their scratch memory. ``sizes``: in the order of
        the kernel's own."""
        other = object.__new__(LoadedObject)
        other.address, other.threads, other.scratch_bytes = self.address, self.threads, self.scratch_bytes
        other.signature, other._keep, other._sizes = signature, self, tuple(sizes)
        other._together = {}
        other._home = ctypes.addressof(self._desc)
        other._describe()
        return other

    @property
    def told_sizes(self) -> tuple[int, ...]:
        """What `run` gives behind the pointers by itself."""
        return self._sizes

    @property
    def shared(self) -> LoadedObject:
        """The code that this is `sized` of; itself for other code."""
        return self._keep if isinstance(self._keep, LoadedObject) else self

    def _args(self, pointers: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
        return (ctypes.c_void_p * (len(pointers) + len(self._sizes)))(*pointers, *self._sizes)

    def run(self, pointers: Sequence[int]) -> None:
        """Run the kernel once without any check. ``pointers``: of data, in parameter order; then, for code
        with open sizes that is not `sized`, the sizes. The GIL is released. Raises MemoryError if there is no
        scratch memory."""
        if self._support.run(self._desc, self._args(pointers)):
            raise self.no_memory()

    def bench(
        self, pointers: Sequence[int], n: int, *, threads: int | None = None, cpu_clock: bool = False
    ) -> int:
        """Nanoseconds of ``n`` runs together, on the monotonic clock, or in CPU time of the calling thread if
        ``cpu_clock``. ``threads``: at most those that the kernel was compiled for. Raises MemoryError,
        ValueError."""
        threads = self.threads if threads is None else threads
        if not 1 <= threads <= self.threads:
            raise ValueError(f"threads={threads}, but this kernel was compiled for at most {self.threads}")
        args = self._args(pointers)
        clock = clocks.THREAD_CPU if cpu_clock else clocks.MONOTONIC
        total = self._support.bench(self._desc, args, threads, n, clock)
        if total < 0:
            raise self.no_memory()
        return total

    def no_memory(self) -> MemoryError:
        """The error for scratch memory that cannot be had."""
        return MemoryError(f"no memory for {self.scratch_bytes} bytes of scratch")

    def python_function(self, others: bool = False) -> Callable[..., int] | None:
        """The fast path as a builtin function of the arrays (`entry.at_call`: 0, 1 or 2), or None
        where this interpreter's objects are not laid out as it expects. ``others``: also of the types that
        `exchange.accept` was told."""
        if not _heads_are_readable() or OPEN in self.signature:  # no call of it tells the sizes
            return None
        import numpy as np

        params, _ = abi.parse_signature(self.signature)
        table = {"ndarray": id(np.ndarray)} | {d: id(DTYPES[d].numpy) for d, _ in params} | _number_types()
        for k, word in enumerate(self._words(table)):
            if k not in (abi.BLOCK, abi.LOCK):
                self._desc[k] = word
        # The builtin holds the tuple, and so this object. While the function lives, so does the code.
        return self._support.bind((ctypes.addressof(self._desc), exchange.table() if others else 0, self))

    def c_function(self, sizes: Sequence[OpenSize] = ()) -> tuple[int, Any]:
        """(the address of ``int f(pointers ..., sizes ...)``, which runs this code, and what keeps both
        mapped). ``sizes``: for code that is not `sized`, those that it takes."""
        params, _ = abi.parse_signature(self.signature)
        text = "@descriptor = external global i64\ndeclare i32 @at_run(ptr, ptr)\n"
        text += c_entry.c_function("at_function", len(params), sizes, self._sizes)
        obj = compile_module(text, host_target(), optimize=False)
        imports = {"descriptor": ctypes.addressof(self._desc), "at_run": self._support.at["at_run"]}
        at, tracker = link(obj, ("at_function",), imports)
        return at["at_function"], (self, tracker)


class _Header(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("scratch_bytes", ctypes.c_int64),
        ("kernel", ctypes.c_void_p),
        ("signature", ctypes.c_char_p),
    )


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Builtin:
    """Code in this process that calls functions of Python (``python_api``), and of which function ``method``
    becomes builtin functions called ``name``. ``at``: {export: address}."""

    def __init__(
        self, text: str, exports: Sequence[str], method: str, name: str, python_api: Sequence[str]
    ) -> None:
        obj = compile_module(text, host_target(), optimize=False)
        imports = {n: ctypes.cast(ctypes.pythonapi[n], ctypes.c_void_p).value or 0 for n in python_api}
        self.at, self._keep = link(obj, exports, imports)
        self._method = _MethodDef(name.encode(), self.at[method], _METH_FASTCALL, None)
        self._make = ctypes.pythonapi["PyCFunction_NewEx"]
        pointer = ctypes.c_void_p
        self._make.argtypes, self._make.restype = [pointer, ctypes.py_object, pointer], ctypes.py_object

    def bind(self, owner: tuple[object, ...]) -> Callable[..., int]:
        """A builtin function whose ``self`` is ``owner``, which it keeps."""
        return self._make(ctypes.addressof(self._method), owner, None)


class _Support(Builtin):
    """The support module (`support.support`) of this process. Its builtin functions are of an owner (address
    of a descriptor, of the table of types or 0, the keeper of both)."""

    def __init__(self) -> None:
        super().__init__(support.support(), abi.SUPPORT, "at_call", "kernel", abi.PYTHON_API)
        at, ptr, i32, i64 = self.at, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self.run = ctypes.CFUNCTYPE(i32, ptr, ptr)(at["at_run"])
        self.bench = ctypes.CFUNCTYPE(i64, ptr, ptr, i32, i64, i32)(at["at_bench"])
        self.release = ctypes.CFUNCTYPE(None, ptr)(at["at_release"])
        self.program = ctypes.CFUNCTYPE(None, ptr, i64, ptr)(at["at_program"])
        self.program_repeat = ctypes.CFUNCTYPE(i64, ptr, i64, i64, i64, i64, ptr, i64)(
            at["at_program_repeat"]
        )
        self.program_times = ctypes.CFUNCTYPE(None, ptr, i64, ptr, i32, ptr)(at["at_program_times"])


@_once
def _support() -> _Support:
    return _Support()


def run_program(steps: ctypes.Array[ctypes.c_int64], first: int, n: int, scratch: int) -> None:
    """Run ``n`` steps from step ``first`` on (`autotune.codegen.runtime.program`), without any check. The GIL
    is released. ``scratch``: the address of memory for all of them."""
    _support().program(_step(steps, first), n, scratch)


def repeat_program(
    steps: ctypes.Array[ctypes.c_int64], first: int, n: int, begin: int, total: int, scratch: int, ns: int
) -> int:
    """Run steps number ``begin`` to ``total`` of a sequence of ``n`` steps that goes on with step ``first``,
    for about ``ns`` nanoseconds. The number of the next one. The GIL is released."""
    return int(_support().program_repeat(_step(steps, 0), first, n, begin, total, scratch, ns))


def time_program(
    steps: ctypes.Array[ctypes.c_int64],
    first: int,
    n: int,
    scratch: int,
    ns: ctypes.Array[ctypes.c_int64],
    *,
    cpu_clock: bool = False,
) -> None:
    """As `run_program`, and add to ``ns``, one for each of all steps, the nanoseconds of each. ``cpu_clock``:
    CPU time of the calling thread."""
    clock = clocks.THREAD_CPU if cpu_clock else clocks.MONOTONIC
    at = ctypes.addressof(ns) + first * ctypes.sizeof(ctypes.c_int64)
    _support().program_times(_step(steps, first), n, scratch, clock, at)


def _step(steps: ctypes.Array[ctypes.c_int64], first: int) -> int:
    return ctypes.addressof(steps) + first * STEP * ctypes.sizeof(ctypes.c_int64)


def prepare() -> None:
    """Compile and load the code that all kernels share, without starting threads. A process that forks
    workers calls it first."""
    _support()


@cache
def address_reader() -> Callable[[Any], int]:
    """What tells where the first element of an array lies: in a tenth of the time of ``x.ctypes.data``, where
    heads of arrays may be read."""
    if not _heads_are_readable():
        return lambda x: int(x.ctypes.data)
    at, place = ctypes.c_int64.from_address, abi.DATA_AT
    return lambda x: at(id(x) + place).value


@cache
def _number_types() -> dict[str, int]:
    """{name in the table of `entry.descriptor`: address} of the types of numbers whose values lie where
    machine code reads them."""
    import numpy as np

    whole = ctypes.c_double.from_address(id(1.5) + abi.VALUE_AT).value == 1.5
    found = {"a float": id(float), "an int": id(int), "a bool": id(bool)} if whole else {}
    for name, row in DTYPES.items():
        if row.module == "numpy" or row.module in sys.modules:
            x = row.numpy.type(1)
            if ctypes.string_at(id(x) + abi.VALUE_AT, row.itemsize) == np.asarray(x).tobytes():
                found[f"{name}()"] = id(type(x))
    return found


@cache
def _heads_are_readable() -> bool:
    """Whether machine code may read the heads of arrays in this process. It may not in another interpreter,
    in a free-threaded or debug build, or with a numpy of another layout."""
    import numpy as np

    if (
        sys.implementation.name != "cpython"
        or "t" in getattr(sys, "abiflags", "")  # free-threaded; sysconfig also knows, but takes 10 ms
        or object.__basicsize__ != abi.DATA_AT
        or np.ndarray.__basicsize__ < abi.ARRAY_HEAD_BYTES
    ):
        return False
    for dtype in (name for name, row in DTYPES.items() if row.module == "numpy"):
        a = np.zeros((3, 5), dtype)
        for known in (a, a.T, a[1]):
            known.flags.writeable = known.ndim == 2
            head = id(known)
            flags = ctypes.c_int32.from_address(head + abi.FLAGS_AT).value
            ndim = ctypes.c_int32.from_address(head + abi.NDIM_AT).value
            ok = (
                ctypes.c_void_p.from_address(head + abi.OB_TYPE_AT).value == id(np.ndarray)
                and ctypes.c_void_p.from_address(head + abi.DATA_AT).value == known.ctypes.data
                and ctypes.c_void_p.from_address(head + abi.DESCR_AT).value == id(np.dtype(dtype))
                and bool(flags & abi.C_CONTIGUOUS) == known.flags.c_contiguous
                and bool(flags & abi.WRITEABLE) == known.flags.writeable
                and ndim == known.ndim
            )
            if not ok:
                return False
            dims = ctypes.c_void_p.from_address(head + abi.DIMENSIONS_AT).value or 0
            if tuple((ctypes.c_int64 * ndim).from_address(dims)) != known.shape:
                return False
    return True


@_once
def _jit() -> tuple[llvm.LLJIT, itertools.count[int], threading.Lock]:
    """(the process's linker, a source of library names, a lock for both)."""
    # JITLink places all sections of an object together, as the small code model needs.
    jit = _llvm().create_lljit_compiler(use_jit_link=True)
    _immortal(jit)
    return jit, itertools.count(), threading.Lock()


def _immortal(x: object) -> None:
    """Keep ``x`` until after the end of the interpreter, because the pool's workers still run code that would
    be unmapped."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(x))


def link(obj: bytes, exports: Sequence[str], imports: dict[str, int]) -> tuple[dict[str, int], Any]:
    """({export: address}, object that keeps the code mapped) of an object. Raises CompileError."""
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


@_once
def pool() -> dict[str, int]:
    """Addresses of the symbols of the thread pool (`threads.py`). A process has one pool. It is loaded with
    the first kernel that needs it, and started again in a child after a fork."""
    from autotune.codegen.runtime import threads

    host = host_target()
    obj = compile_module(threads.text(host.triple), host)
    addresses, tracker = link(obj, threads.SYMBOLS, {})
    _immortal(tracker)
    os.register_at_fork(after_in_child=ctypes.CFUNCTYPE(None)(addresses["at_pool_reset"]))
    return addresses


def load_object(obj: bytes) -> LoadedObject:
    """Map an object into this process: one of `compile_module` whose module ended with `entry.entry`. Only
    load bytes from this process or its own `ObjectCache`, because they will run. Raises `CompileError`, also
    where this process may not use tiles that the object uses."""
    if TILES in obj and (reason := amx.trouble()) is not None:
        raise CompileError(f"the object uses AMX, and this process cannot: {reason}")
    imports = {"at_parallel": pool()["at_parallel"]} if b"at_parallel\0" in obj else {}
    addresses, tracker = link(obj, ("at_header",), imports)
    return LoadedObject(addresses["at_header"], tracker)
