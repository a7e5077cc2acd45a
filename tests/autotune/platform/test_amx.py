"""The permission for tiles: asked for once, inherited, and refused in words."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from dataclasses import replace

import pytest

import autotune as at
from autotune import backends, targets
from autotune.cli import checks
from autotune.codegen.llvm.compile import TILES, host_arch, load_object
from autotune.errors import CompileError
from autotune.platform import amx, machine
from autotune.targets import features

TRY = amx._TRY
REASON = "the operating system refuses AMX to this process: Operation not permitted"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose processor names AMX, and whose operating system refuses it."""
    monkeypatch.setattr(amx, "trouble", lambda: REASON)
    import llvmlite.binding as llvm

    here = dict(llvm.get_host_cpu_features())
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: here | {"amx-tile": True, "amx-int8": True})
    flags = (machine.host_flags() or frozenset()) | {"amx_tile", "amx_int8"}
    monkeypatch.setattr(features, "host_flags", lambda: flags)
    monkeypatch.setattr(machine, "host_flags", lambda: flags)


def need_x86_linux() -> None:
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        pytest.skip("AMX is of x86, and its permission of Linux")


def need() -> None:
    need_x86_linux()
    if "amx_tile" not in (machine.host_flags() or ()) or amx.trouble() is not None:
        pytest.skip(f"this host has no AMX: {amx.trouble()}")


def test_a_host_without_permission_has_no_amx(refused: None) -> None:
    need_x86_linux()
    here = targets.detect(1)
    assert not any(f.startswith("amx-") for f in here.features)
    host_arch.cache_clear()
    try:
        assert not any(f.startswith("amx-") for f in host_arch()[1])
    finally:
        host_arch.cache_clear()
    asked = replace(here, features=(*here.features, "amx-int8", "amx-tile"))
    assert backends.lacking(asked) == ("amx-int8", "amx-tile")
    assert not backends.runnable(asked) and backends.runnable(here)
    with pytest.raises(at.TargetError, match="this CPU cannot run code for"):
        backends.check_here(asked)


def test_what_lacks_no_tiles_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> str:
        raise AssertionError("asked")

    monkeypatch.setattr(amx, "trouble", never)
    assert backends.lacking(backends.parse("x86-64-v3", 1)) is not None


def test_an_object_that_uses_tiles_is_not_loaded_without_permission(refused: None) -> None:
    with pytest.raises(CompileError, match="the object uses AMX, and this process cannot: the operating"):
        load_object(b"\x7fELF..." + TILES)


def test_doctor_says_why(refused: None) -> None:
    found = checks.cpu()
    if found.status == "warn" and "fused" in found.remedy:
        pytest.skip("this CPU has no fused multiply-add")
    assert found.status == "warn" and found.detail.endswith(f"; without AMX: {REASON}")
    assert found.remedy == "kernels use its vector registers instead"


class Libc:
    """arch_prctl of a kernel that supports the state components of ``mask``, and answers a request so."""

    def __init__(self, mask: int, error: int) -> None:
        self.mask, self.error, self.asked = mask, error, 0

    def syscall(self, number: int, code: int, arg: object) -> int:
        assert number == 158
        if code == 0x1021:
            arg._obj.value = self.mask  # type: ignore[attr-defined]
            return 0
        assert code == 0x1023 and arg.value == 18  # type: ignore[attr-defined]
        self.asked += 1
        ctypes.set_errno(self.error)
        return -1 if self.error else 0


@pytest.mark.parametrize(
    ("mask", "error", "reason"),
    [
        (0x7, 0, "the operating system does not support AMX: Linux does from version 5.16 on"),
        (0x60007, errno.ENOSPC, "an alternate signal stack that is too small for AMX"),
        (0x60007, errno.EPERM, "refuses AMX to this process: Operation not permitted"),
        (0x60007, 0, None),
    ],
)
def test_refusals_have_reasons(
    mask: int, error: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_x86_linux()
    libc = Libc(mask, error)
    monkeypatch.setattr(ctypes, "CDLL", lambda *args, **how: libc)
    said = amx.refusal()
    assert said is None if reason is None else reason in str(said)
    assert libc.asked == (mask >> 18 & 1)


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert "no permission for AMX is known" in str(amx.refusal())


def tried(code: bytes, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """`amx.trouble` with other code where the tile is cleared."""
    need_x86_linux()
    monkeypatch.setattr(amx, "refusal", lambda: None)
    begin = TRY.index(bytes.fromhex("c4c2784901"))
    monkeypatch.setattr(amx, "_TRY", TRY[:begin] + code.ljust(15, b"\x90") + TRY[begin + 15 :])
    return amx.trouble.__wrapped__()


def test_a_child_tries_and_says_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(b"", monkeypatch) is None
    fault = bytes.fromhex("0f0b")  # ud2
    said = tried(fault, monkeypatch)
    assert said == "the processor names AMX, but a process that used it ended by SIGILL"

    def gone(*_: int) -> None:
        raise ChildProcessError(errno.ECHILD, "gone")

    monkeypatch.setattr(os, "waitpid", gone)
    assert amx.trouble.__wrapped__() is None  # another one waited for it: nothing is known


def test_a_host_that_has_amx_says_so() -> None:
    need()
    assert amx.refusal() is None and amx._tried() == 0
    assert "amx-tile" in targets.detect(1).features
    assert checks.cpu().detail.endswith(", AMX")
