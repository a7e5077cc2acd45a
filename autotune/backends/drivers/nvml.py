"""Clocks, temperature and throttling of an NVIDIA GPU, from its management library (extra ``cuda``)."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

# Why clocks are lower than asked for; what the names of the library's bits leave after their common
# beginning.
_HARMLESS = {
    "GpuIdle",
    "ApplicationsClocksSetting",
    "None",
    "SyncBoost",
    "UserDefinedClocks",
    "DisplayClockSetting",
}
_PREFIXES = ("nvmlClocksEventReason", "nvmlClocksThrottleReason")


def state(pci: str) -> dict[str, Any]:
    """See `Device.state`, of the GPU at a PCI address; empty without the library or a driver."""
    library = _library()
    if library is None:
        return {}
    found: dict[str, Any] = {}
    try:
        gpu = library.nvmlDeviceGetHandleByPciBusId(pci.encode())
    except library.NVMLError:
        return {}
    for name, read in (
        ("sm_mhz", lambda: library.nvmlDeviceGetClockInfo(gpu, library.NVML_CLOCK_SM)),
        ("memory_mhz", lambda: library.nvmlDeviceGetClockInfo(gpu, library.NVML_CLOCK_MEM)),
        ("temperature_c", lambda: library.nvmlDeviceGetTemperature(gpu, library.NVML_TEMPERATURE_GPU)),
        ("throttled", lambda: throttled(library, _reasons(library, gpu))),
    ):
        try:
            found[name] = read()
        except library.NVMLError:  # this GPU does not tell
            pass
    return found


def driver() -> str:
    """The version of the driver; empty where it is unknown."""
    library = _library()
    if library is None:
        return ""
    version = library.nvmlSystemGetDriverVersion()
    return version.decode() if isinstance(version, bytes) else str(version)


def throttled(library: Any, mask: int) -> list[str]:
    """What a mask of reasons says, without those that are no trouble, sorted."""
    words = set()
    for name in dir(library):
        prefix = next((p for p in _PREFIXES if name.startswith(p)), None)
        word = name.removeprefix(prefix) if prefix else ""
        bit = getattr(library, name) if word else 0
        if word not in _HARMLESS and isinstance(bit, int) and bit and not bit & (bit - 1) and mask & bit:
            words.add(word)
    return sorted(words)


def _reasons(library: Any, gpu: Any) -> int:
    ask = getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None)
    return int((ask or library.nvmlDeviceGetCurrentClocksThrottleReasons)(gpu))


@cache
def _library() -> Any:
    if find_spec("pynvml") is None:
        return None
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
