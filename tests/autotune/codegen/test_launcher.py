"""What launches kernels: a function with the signature of cuLaunchKernel gets what a program says, in
order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from autotune.codegen.grid_code import Launch
from autotune.codegen.runtime import launcher
from autotune.errors import CompileError

POINTERS = ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p))
DRIVER = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, POINTERS, ctypes.c_void_p
)
COUNTS = {11: 3, 12: 1, 13: 0}  # parameters of kernels, by handle
Call = tuple[int, tuple[int, ...], int, int | None, list[int | None]]


class Driver:
    """Records launches, and answers each with the next status."""

    def __init__(self, *statuses: int) -> None:
        self.calls: list[Call] = []
        self.statuses = list(statuses)
        self.function = DRIVER(self.launch)

    @property
    def address(self) -> int:
        return ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def launch(self, kernel: int, gx, gy, gz, bx, by, bz, shared: int, stream: int, params, extra) -> int:  # type: ignore[no-untyped-def]
        given = [params[i].contents.value for i in range(COUNTS[kernel])]
        assert extra is None
        self.calls.append((kernel, (gx, gy, gz, bx, by, bz), shared, stream, given))
        return self.statuses.pop(0) if self.statuses else 0


def bound(d: Driver) -> Callable[..., int]:
    launches = [
        (11, Launch("a", (1 << 30, 2, 3), (4, 5, 6), (), shared=232448), [2, 0, 1]),
        (12, Launch("b", (7, 1, 1), (32, 1, 1), ()), [3]),
        (13, Launch("c", (1, 1, 1), (1, 1, 1), ()), []),
    ]
    return launcher.bind(launcher.DriverFunctions(d.address), launches, 4)


def test_launches_follow_one_another_with_their_arrays() -> None:
    d = Driver()
    launch = bound(d)
    first, second = 0x7F00_0000_1000, (1 << 64) - 256  # all of an address arrives
    assert launch(first, second, 30, 40, 0x5555_5555_5550) == 0
    assert d.calls == [
        (11, (1 << 30, 2, 3, 4, 5, 6), 232448, 0x5555_5555_5550, [30, first, second]),
        (12, (7, 1, 1, 32, 1, 1), 0, 0x5555_5555_5550, [40]),
        (13, (1, 1, 1, 1, 1, 1), 0, 0x5555_5555_5550, []),
    ]
    assert launch(1, 2, 3, 4, 0) == 0 and d.calls[-1][3] is None


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_nothing_follows_a_failed_launch(failing: int) -> None:
    d = Driver(*[0] * failing, 719)
    assert bound(d)(1, 2, 3, 4, 0) == 719
    assert len(d.calls) == failing + 1


def test_another_number_of_arguments_launches_nothing() -> None:
    d = Driver()
    assert bound(d)(1, 2, 3, 4) == bound(d)(1, 2, 3, 4, 5, 6) == bound(d)() == -1
    assert d.calls == []


class Attribute(ctypes.Structure):
    """CUlaunchAttribute, with the dimensions of a cluster."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("xyz", ctypes.c_uint * 3)]
    _fields_ += [("rest", ctypes.c_char * 52)]


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("extents", ctypes.c_uint * 6), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p)]
    _fields_ += [("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


def test_clusters_are_launched_with_their_configuration() -> None:
    d, seen = Driver(), []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), ctypes.c_void_p, POINTERS, ctypes.c_void_p)

    def launch_ex(config, kernel, params, extra) -> int:  # type: ignore[no-untyped-def]
        c, a = config.contents, config.contents.attributes[0]
        assert c.count == 1 and a.id == 4 and extra is None
        given = params[0].contents.value
        seen.append((kernel, tuple(c.extents), c.shared, c.stream, tuple(a.xyz), given, len(d.calls)))
        return 719 if given == 7 else 0

    ex = kind(launch_ex)
    together = Launch("a", (8, 3, 1), (32, 4, 1), (), 1024, (4, 1, 1))
    alone = Launch("b", (7, 1, 1), (32, 1, 1), ())
    address = ctypes.cast(ex, ctypes.c_void_p).value or 0
    driver = launcher.DriverFunctions(d.address, address)
    launch = launcher.bind(driver, [(12, alone, [0]), (14, together, [1]), (12, alone, [0])], 2)
    assert launch(5, 6, 0x550) == 0
    assert seen == [(14, (8, 3, 1, 32, 4, 1), 1024, 0x550, (4, 1, 1), 6, 1)]
    assert [c[0] for c in d.calls] == [12, 12]
    assert launch(5, 7, 0) == 719 and len(d.calls) == 3
    with pytest.raises(CompileError, match="b runs blocks in clusters, which this driver does not launch"):
        clustered = Launch("b", (2, 1, 1), (32, 1, 1), (), 0, (2, 1, 1))
        launcher.bind(launcher.DriverFunctions(d.address), [(14, clustered, [])], 0)


def test_tensor_maps_are_copied_with_the_addresses_of_the_call() -> None:
    d, replaced = Driver(), []
    maps = [(1, bytes(range(128))), (0, bytes(range(128, 256)))]

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
    def replace(own: int, address: int) -> int:
        assert own % 64 == 0
        held = (ctypes.c_ubyte * 128).from_address(own)
        replaced.append((bytes(held), address))
        ctypes.c_uint64.from_address(own).value = address  # the kernel's parameter is this copy
        return 719 if address == 7 else 0

    driver = launcher.DriverFunctions(d.address, 0, ctypes.cast(replace, ctypes.c_void_p).value or 0)
    launches = [
        (11, Launch("a", (1, 1, 1), (1, 1, 1), ()), [3, 0, 2]),
        (12, Launch("b", (1,) * 3, (1,) * 3, ()), [2]),
    ]
    launch = launcher.bind(driver, launches, 2, maps)
    for first, second in ((0x1000, 0x2000), (0x3000, 0x4000)):  # each from what was encoded
        d.calls.clear(), replaced.clear()
        assert launch(first, second, 0x550) == 0
        assert replaced == [(maps[0][1], second), (maps[1][1], first)]
        assert [c[4] for c in d.calls] == [[first, first, second], [second]]
        assert all(c[3] == 0x550 for c in d.calls)
    d.calls.clear()
    assert launch(5, 7, 0) == 719 and not d.calls, "nothing is launched behind a map that is refused"
    with pytest.raises(CompileError, match="a takes tensor maps, which this driver does not have"):
        launcher.bind(launcher.DriverFunctions(d.address), launches, 2, maps)
