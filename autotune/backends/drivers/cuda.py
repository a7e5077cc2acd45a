"""NVIDIA GPUs through the driver's own interface (``cuda-bindings``, extra ``cuda``).

Machine code is made by NVRTC beforehand; here it is loaded, run on arrays of the device, and timed by events,
with the second cache flushed before every run. The context is the device's primary one, which torch and CuPy
use as well. It is made a thread's current one only while it is needed, since that is which GPU other
libraries use there. An error of the device is sticky: it ends the process that meets it, which is a worker's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from autotune.backends.drivers import nvml
from autotune.backends.drivers.protocol import FLUSH, DeviceError, Memory
from autotune.codegen.grid_code import GridCode, Launch, TensorMap
from autotune.codegen.runtime import launcher
from autotune.errors import CompileError
from autotune.platform.machine import driver_library
from schedules.dtypes import DTYPES
from schedules.gpu_architectures import STATIC_SHARED
from schedules.ir.strides import SWIZZLES

AHEAD = 16  # timed runs that are under way together
CODE_FOR = 13000  # the driver interface that machine code of NVRTC 13 needs
SOMEWHERE = 1 << 20  # an address that tensor maps are encoded with
# CUtensorMapDataType by bytes of an element: copies need no more.
ELEMENTS = {1: 0, 2: 1, 4: 2, 8: 4}
L2_PROMOTION = 2  # to 128 bytes
ELSEWHERE = (201, 400)  # the driver's words where no context is current, and where that of another GPU is


def available() -> bool:
    """Whether there are bindings, a driver, and a GPU."""
    return _handle() is not None


@cache
def _handle() -> Any:
    """The first GPU, or None. The driver library is looked for first: the bindings may hang without it."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return None
    try:
        ctypes.CDLL(driver_library("cuda"))
    except OSError:
        return None
    from cuda.bindings import driver

    if int(driver.cuInit(0)[0]) != 0:
        return None
    status, count = driver.cuDeviceGetCount()
    return _ok(driver.cuDeviceGet(0)) if int(status) == 0 and count else None


def _ok(answer: tuple[Any, ...]) -> Any:
    """The value of a driver call. Raises DeviceError."""
    if int(answer[0]) != 0:
        raise DeviceError(_words(int(answer[0])))
    return answer[1] if len(answer) == 2 else answer[1:] or None


def _words(status: int) -> str:
    from cuda.bindings import driver

    failed, text = driver.cuGetErrorString(driver.CUresult(status))
    return f"error {status}" if int(failed) else str(text.decode())


def attribute(name: str) -> int:
    """An attribute of the device by the driver's name for it, such as "WARP_SIZE"."""
    from cuda.bindings import driver

    which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(_ok(driver.cuDeviceGetAttribute(which, _handle())))


def limits(attribute: Callable[[str], int]) -> dict[str, int]:
    """What a device says of itself, by the names of `Target.limits`, without what it has no number for;
    ``attribute``: of the driver, by name, 0 where there is none."""
    clock = attribute("MEMORY_CLOCK_RATE") // 1000  # MHz; two transfers a cycle
    capability = attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")
    found = {
        "block_threads": attribute("MAX_THREADS_PER_BLOCK"),
        "bandwidth_gbs": 2 * clock * attribute("GLOBAL_MEMORY_BUS_WIDTH") // 8000,
        "clock_mhz": attribute("CLOCK_RATE") // 1000,
        "fma": 64 if capability <= (8, 0) else 128,
        "l2_bytes": attribute("L2_CACHE_SIZE"),
        "registers": attribute("MAX_REGISTERS_PER_BLOCK"),
        "shared_bytes": attribute("MAX_SHARED_MEMORY_PER_BLOCK"),
        "sm_blocks": attribute("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        "sm_shared_bytes": attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        "sm_threads": attribute("MAX_THREADS_PER_MULTIPROCESSOR"),
        "sms": attribute("MULTIPROCESSOR_COUNT"),
        "thread_registers": 255,
    }
    return {name: n for name, n in found.items() if n > 0}


def refused_shared(x: Launch, why: str) -> str:
    """What to say where a device does not give a block the memory that a launch asks for."""
    return f"{x.kernel} asks for {x.shared} bytes that threads share, and the device refused: {why}"


def _address(library: ctypes.CDLL, name: str) -> int:
    """Where a function of the driver is; 0 where it has none of this name."""
    found = getattr(library, name, None)
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0


def _encoded(library: ctypes.CDLL, m: TensorMap) -> bytes:
    """A tensor map as the driver writes it, of an array at some address. The driver is called directly, with
    the memory at a multiple of 64 that it needs. Raises CompileError."""
    item, rank = DTYPES[m.dtype].itemsize, len(m.shape)
    held = (ctypes.c_ubyte * 192)()
    own = -(-ctypes.addressof(held) // 64) * 64
    shape, box = reversed(m.shape), reversed(m.box)
    strides = [n * item for n in reversed(m.strides[:-1])]
    status = library.cuTensorMapEncodeTiled(
        ctypes.c_void_p(own), ELEMENTS[item], rank, ctypes.c_void_p(SOMEWHERE),
        (ctypes.c_uint64 * rank)(*shape), (ctypes.c_uint64 * rank)(*strides),
        (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*[1] * rank),
        0, (0, *SWIZZLES).index(m.swizzle), L2_PROMOTION, 0,
    )  # fmt: skip
    if status:
        raise CompileError(f"the driver refused the tensor map {m.name}: {_words(status)}")
    return ctypes.string_at(own, 128)


class CudaProgram:
    """See `LoadedKernels`."""

    def __init__(self, device: CudaDevice, code: GridCode) -> None:
        self._d, self._device = device.driver, device
        launches = []
        with device.current():
            try:
                self._module = _ok(self._d.cuModuleLoadData(code.binary))
            except DeviceError as err:
                raise CompileError(f"the driver refused the code: {err}{device.too_old()}") from None
            for x, used in code.numbered():
                launches.append((self._function(x), x, used))
        library = ctypes.CDLL(driver_library("cuda"))
        functions = ("cuLaunchKernel", "cuLaunchKernelEx", "cuTensorMapReplaceAddress")
        driver = launcher.DriverFunctions(*(_address(library, name) for name in functions))
        place = {a.name: i for i, a in enumerate((*code.params, *code.scratch))}
        maps = [(place[m.array], _encoded(library, m)) for m in code.maps]
        self.launch = launcher.bind(driver, launches, len(place), maps)

    def _function(self, x: Launch) -> int:
        """A kernel's handle. It may ask for as much shared memory as it does."""
        found = _ok(self._d.cuModuleGetFunction(self._module, x.kernel.encode()))
        if x.shared > STATIC_SHARED:
            most = self._d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            status = self._d.cuFuncSetAttribute(found, most, x.shared)
            if int(status[0]):
                raise CompileError(refused_shared(x, _words(int(status[0]))))
        return int(found)

    def run(self, memory: Sequence[Memory]) -> None:
        with self._device.current():
            self._launched(memory)
            _ok(self._d.cuStreamSynchronize(0))

    def begin(self, memory: Sequence[Memory]) -> None:
        with self._device.current():
            self._launched(memory)

    def seconds(self, memory: Sequence[Memory], n: int) -> float:
        with self._device.current():
            return self._timed(memory, n)

    def _timed(self, memory: Sequence[Memory], n: int) -> float:
        total, left = 0.0, n
        flush, size = self._device.flush
        while left:
            pairs = self._device.events[: min(left, AHEAD)]
            for start, end in pairs:
                _ok(self._d.cuMemsetD8Async(flush, 0, size, 0))  # and it hides what launching costs
                _ok(self._d.cuEventRecord(start, 0))
                self._launched(memory)
                _ok(self._d.cuEventRecord(end, 0))
            _ok(self._d.cuEventSynchronize(pairs[-1][1]))
            total += sum(_ok(self._d.cuEventElapsedTime(*pair)) for pair in pairs) * 1e-3
            left -= len(pairs)
        return total

    def _launched(self, memory: Sequence[Memory]) -> None:
        status = self.launch(*memory, 0)
        if status:
            raise DeviceError(_words(status))

    def close(self) -> None:
        with self._device.current():
            _ok(self._d.cuModuleUnload(self._module))


class CudaGraph:
    """See `Captured`: a graph of CUDA, made of what one stream was given."""

    def __init__(self, device: CudaDevice, launch: Callable[[int], None]) -> None:
        self._d, self._device = device.driver, device
        with device.current():
            graph = self._recorded(launch)
            try:
                self._exec = _ok(self._d.cuGraphInstantiate(graph, 0))
            finally:
                self._d.cuGraphDestroy(graph)

    def _recorded(self, launch: Callable[[int], None]) -> Any:
        """The graph of what is launched on a stream of its own. Other threads may do what they like
        meanwhile, also on the default stream, which does not wait for this one."""
        d = self._d
        stream = _ok(d.cuStreamCreate(d.CUstream_flags.CU_STREAM_NON_BLOCKING))
        try:
            _ok(d.cuStreamBeginCapture(stream, d.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
            try:
                launch(int(stream))
            except BaseException:
                status, graph = d.cuStreamEndCapture(stream)  # what it says is a consequence
                if int(status) == 0:
                    d.cuGraphDestroy(graph)
                raise
            return _ok(d.cuStreamEndCapture(stream))
        finally:
            d.cuStreamDestroy(stream)

    def launch(self, stream: int) -> None:
        with self._device.current():
            _ok(self._d.cuGraphLaunch(self._exec, stream))

    def close(self) -> None:
        with self._device.beside_captures():  # nobody knows when what goes is given back
            _ok(self._d.cuGraphExecDestroy(self._exec))


class CudaDevice:
    """The first GPU: see `Device`, `Addressed` and `Capturing`."""

    kind = "cuda"
    alignment = 256
    arrays_on = (2, 0)

    def __init__(self) -> None:
        """Raises CompileError where there is no GPU."""
        if not available():
            raise CompileError("there is no NVIDIA GPU here; use target='cuda-emulator'")
        from cuda.bindings import driver

        self.driver = driver
        self._flush: tuple[int, int] | None = None
        self._events: list[tuple[Any, Any]] = []

    @cached_property
    def _context(self) -> Any:
        """Made when it is first needed: what the device is can be told without, and where a device is for one
        process alone, that is to be the one that runs something."""
        return _ok(self.driver.cuDevicePrimaryCtxRetain(_handle()))

    @contextmanager
    def current(self) -> Iterator[None]:
        """The device is the current one of the calling thread meanwhile; then the one before is again."""
        _ok(self.driver.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            self.driver.cuCtxPopCurrent()  # what it says after a fault has been said

    @contextmanager
    def beside_captures(self) -> Iterator[None]:
        """As `current`, and memory may change: while a stream is captured into a graph none may, in any
        thread, unless that one asks not to mind."""
        mode = self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self.current():
            before = _ok(self.driver.cuThreadExchangeStreamCaptureMode(mode))
            try:
                yield
            finally:
                self.driver.cuThreadExchangeStreamCaptureMode(before)

    def name(self) -> str:
        return str(_ok(self.driver.cuDeviceGetName(256, _handle())).decode().rstrip("\0 "))

    def arch(self) -> str:
        return f"sm_{attribute('COMPUTE_CAPABILITY_MAJOR')}{attribute('COMPUTE_CAPABILITY_MINOR')}"

    def attributes(self) -> Mapping[str, int]:
        return limits(attribute)

    def too_old(self) -> str:
        """What to say of a driver that is older than the compiler; empty otherwise."""
        version = int(_ok(self.driver.cuDriverGetVersion()))
        if version >= CODE_FOR:
            return ""
        shown = f"{version // 1000}.{version % 1000 // 10}"
        return f"; it is for CUDA {shown}, the code is CUDA 13's: install a driver of version 580 or later"

    def state(self) -> dict[str, Any]:
        return nvml.state(_ok(self.driver.cuDeviceGetPCIBusId(32, _handle())).decode().rstrip("\0 "))

    def allocate(self, nbytes: int) -> Memory:
        with self.beside_captures():
            return int(_ok(self.driver.cuMemAlloc(max(1, nbytes))))

    def free(self, memory: Memory) -> None:
        with self.beside_captures():
            _ok(self.driver.cuMemFree(memory))

    def upload(self, memory: Memory, array: np.ndarray) -> None:
        with self.current():
            _ok(self.driver.cuMemcpyHtoD(memory, array.ctypes.data, array.nbytes))

    def download(self, array: np.ndarray, memory: Memory) -> None:
        with self.current():
            _ok(self.driver.cuMemcpyDtoH(array.ctypes.data, memory, array.nbytes))

    def fill(self, memory: Memory, word: int, width: int, nbytes: int) -> None:
        d = self.driver
        fill = {1: d.cuMemsetD8, 2: d.cuMemsetD16, 4: d.cuMemsetD32}[width]
        if nbytes:
            with self.current():
                _ok(fill(memory, word, nbytes // width))

    def part(self, memory: Memory, offset: int, nbytes: int) -> Memory:
        return memory + offset

    def copy(
        self, to: Memory, source: Memory, offset: int, nbytes: int, stream: int = 0, at: int = 0
    ) -> None:
        with self.current():
            _ok(self.driver.cuMemcpyDtoDAsync(to + at, source + offset, nbytes, stream))

    def captured(self, launch: Callable[[int], None]) -> CudaGraph:
        return CudaGraph(self, launch)

    def load(self, code: GridCode) -> CudaProgram:
        return CudaProgram(self, code)

    def launcher(self, program: CudaProgram) -> Callable[..., int]:
        return program.launch

    def mend(self, status: int, launch: Callable[[], int]) -> None:
        if status in ELSEWHERE:
            with self.current():
                status = launch()
        if status:
            raise DeviceError(_words(status))

    def owns(self, address: int) -> bool:
        which = self.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        with self.current():
            status, ordinal = self.driver.cuPointerGetAttribute(which, address)
        return int(status) == 0 and int(ordinal) == self.arrays_on[1]

    def wait(self, stream: int, other: int) -> None:
        with self.current():
            event = _ok(self.driver.cuEventCreate(2))  # without a clock
            _ok(self.driver.cuEventRecord(event, other))
            _ok(self.driver.cuStreamWaitEvent(stream, event, 0))
            _ok(self.driver.cuEventDestroy(event))  # once it has happened

    @property
    def flush(self) -> tuple[int, int]:
        """Memory to write between timed runs, and its bytes."""
        if self._flush is None:
            size = FLUSH * attribute("L2_CACHE_SIZE")
            self._flush = self.allocate(size), size
        return self._flush

    @property
    def events(self) -> list[tuple[Any, Any]]:
        """Beginnings and ends of timed runs."""
        if not self._events:
            create = self.driver.cuEventCreate
            self._events = [(_ok(create(0)), _ok(create(0))) for _ in range(AHEAD)]
        return self._events


@cache
def device() -> CudaDevice:
    """The first GPU, in this process: contexts do not survive a fork. Raises CompileError."""
    return CudaDevice()
