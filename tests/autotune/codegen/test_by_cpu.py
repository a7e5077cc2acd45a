"""Code that is chosen by what the processor tells: the choice, refusals, and what is asked for a target."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import qemu

import autotune as at
from autotune.codegen.llvm.compile import compile_module, host_target, link
from autotune.codegen.runtime import by_cpu as code
from autotune.codegen.runtime.by_cpu import NO_CODE, SharedEntry, by_cpu, suffixed
from autotune.targets import features
from autotune.targets.askable import ARM, MODELS, X86, askable, baseline, best_first
from autotune.targets.names import from_name
from schedules.model import Target

ENTRIES = (
    SharedEntry("f", ("i64",)),
    SharedEntry("g", (), "ptr", "null"),
    SharedEntry("h", ("ptr",), "void", ""),
)
on_x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the code is for x86-64")


def module(targets: Sequence[Target], names: Sequence[str]) -> str:
    """Code whose set number k returns 100 k and its argument, its own address, and nothing."""
    text = by_cpu(ENTRIES, targets, names, "which")
    for i in range(len(targets)):
        f, g, h = (suffixed(e.name, i) for e in ENTRIES)
        made = {
            f"declare i32 @{f}(i64)": f"define i32 @{f}(i64 %x) {{\n  %y = trunc i64 %x to i32\n"
            f"  %z = add i32 %y, {100 * i}\n  ret i32 %z\n}}",
            f"declare ptr @{g}()": f"define ptr @{g}() {{\n  ret ptr @{g}\n}}",
            f"declare void @{h}(ptr)": f"define void @{h}(ptr %p) {{\n  store i64 {i}, ptr %p\n"
            "  ret void\n}",
        }
        for old, new in made.items():
            assert old in text
            text = text.replace(old, new)
    return text


class Chosen:
    """What is chosen here."""

    def __init__(self, *named: tuple[str, Target]) -> None:
        names, targets = zip(*named, strict=True)
        obj = compile_module(module(targets, names), baseline(targets))
        found, self._keep = link(obj, ("f", "g", "h", "which"), {})
        self.f = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64)(found["f"])
        self.g = ctypes.CFUNCTYPE(ctypes.c_void_p)(found["g"])
        self.h = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(found["h"])
        self.which = ctypes.CFUNCTYPE(ctypes.c_char_p)(found["which"])


def choice(*named: tuple[str, Target]) -> str | None:
    found = Chosen(*named)  # which keeps the code
    name = found.which()
    return None if name is None else name.decode()


def x86(*more: str, arch: str = "x86-64") -> Target:
    return Target("cpu", arch, host_target().triple, tuple(sorted(("sse2", *more))))


@on_x86
def test_every_function_is_that_of_the_most_capable_set_that_runs() -> None:
    here = askable(host_target())
    least = x86()
    # fma4 and avx512fp16 are of no one processor
    never = replace(here, features=(*here.features, "amx-fp16", "avx512fp16", "fma4"))
    found = Chosen(("least", least), ("here", here), ("never", never))
    assert found.f(7) == 107 and found.which() == b"here"
    place = ctypes.c_int64(-1)
    found.h(ctypes.addressof(place))
    assert place.value == 1 and found.g()


@on_x86
def test_nothing_is_run_where_no_set_can_be() -> None:
    found = Chosen(("a", x86("fma4", "avx512fp16")), ("b", x86("xop", "avx512fp16")))
    place = ctypes.c_int64(-1)
    found.h(ctypes.addressof(place))
    assert (found.f(7), found.g(), found.which(), place.value) == (NO_CODE, None, None, -1)


@on_x86
def test_wide_vectors_take_a_system_that_saves_them(monkeypatch) -> None:
    nothing = 'asm sideeffect "xorl %eax, %eax", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"'
    monkeypatch.setattr(code, "_XGETBV", nothing)  # of a system that saves none
    assert choice(("least", x86("popcnt")), ("wide", x86("avx"))) == "least"


@on_x86
def test_what_stands_above_the_highest_leaf_tells_nothing(monkeypatch) -> None:
    """There a processor may tell of another leaf. This one has leaf 1 alone, and says yes to all."""
    ones = "movl $$-1, %ebx; movl %ebx, %ecx; movl %ebx, %edx; movl $$1, %eax"
    marks = '"={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"'
    monkeypatch.setattr(code, "_CPUID", f'asm sideeffect "{ones}", {marks}')
    assert choice(("first", x86("popcnt")), ("seventh", x86("adx"))) == "first"
    assert choice(("first", x86("popcnt")), ("extended", x86("lzcnt", "sse3"))) == "first"
    assert choice(("first", x86("popcnt")), ("more", x86("sse3", "aes"))) == "more"


@on_x86
def test_threads_that_ask_together_find_the_same() -> None:
    for _ in range(5):
        found = Chosen(("least", x86()), ("here", askable(host_target())))
        with ThreadPoolExecutor(4) as pool:
            assert {*pool.map(found.f, [1] * 64)} == {101}


@on_x86
@pytest.mark.parametrize("turned", [False, True])
def test_of_equals_the_set_of_this_processor_is_taken(turned: bool) -> None:
    here = host_target().arch
    if here not in MODELS:
        pytest.skip(f"models of {here} are not known")
    other = "znver2" if here != "znver2" else "haswell"
    named = [("other", x86("popcnt", arch=other)), ("here", x86(arch=here))]
    assert choice(*named[:: -1 if turned else 1]) == "here"


@on_x86
def test_models_are_those_that_llvm_knows() -> None:
    """Of this host: each set has its own name, and all have the same extensions."""
    here = host_target().arch
    if here not in MODELS:
        pytest.skip(f"models of {here} are not known")
    same = [n for n in MODELS if MODELS[n] == MODELS[here]]
    assert choice(*((n, x86(arch=n)) for n in MODELS)) in same


@on_x86
@pytest.mark.slow
def test_each_extension_is_where_this_processor_tells_it() -> None:
    """What the system tells of this host is what CPUID does, one by one."""
    here = host_target().features
    odd = [f for f in X86 if (choice((f, x86(f))) is not None) != (f in here or f in ("sse", "cmov"))]
    assert odd == []


def test_all_that_is_known_can_be_asked_for() -> None:
    assert {*features.X86_NAMES, *features.X86_SAME} == {*X86}
    assert {*features.ARM_NAMES} == {*ARM}


def test_order() -> None:
    named = ["x86-64-v2", "znver3", "x86-64-v4", "sapphirerapids", "znver5", "x86-64-v3"]
    order = best_first([askable(from_name(n)) for n in named])
    assert [named[i] for i in order] == [
        "sapphirerapids", "znver5", "x86-64-v4", "znver3", "x86-64-v3", "x86-64-v2"
    ]  # fmt: skip


def test_a_processor_of_an_unknown_name_is_any_of_its_family() -> None:
    odd = Target("cpu", "no such", "x86_64-unknown-linux-gnu", ("avx", "made-up"))
    assert askable(odd) == replace(odd, arch="x86-64", features=("avx",))
    assert askable(from_name("neoverse-v1")).arch == "generic"


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ([], "targets is empty: name at least one"),
        ([from_name("x86-64-v3"), from_name("neoverse-n1")], "x86-64-v3 and neoverse-n1 are of two families"),
        (
            [from_name("h100")],
            "target cuda sm_90a? is of .*: code that is chosen when it is loaded is for x86_64",
        ),
    ],
)
def test_what_cannot_be_in_one_object_is_refused(targets, says) -> None:
    with pytest.raises(at.ArgumentError, match=says):
        by_cpu(ENTRIES, targets, ["a"] * len(targets), "which")


@pytest.mark.parametrize(
    ("cpu", "chosen"), [("cortex-a57", 0), ("neoverse-n1", 1), ("cortex-a76", 1), ("max", 2)]
)
def test_processors_of_arm(cpu: str, chosen: int, tmp_path: Path) -> None:
    qemu.need_qemu()
    triple = qemu.TARGET.triple
    targets = [Target("cpu", "generic", triple, ("fp-armv8", "neon"))]
    targets += [askable(from_name(n)) for n in ("neoverse-n1", "neoverse-v1")]
    out = np.full(1, -1, np.int64)
    text = module(targets, ["armv8", "neoverse-n1", "neoverse-v1"])
    text += """
define void @kernel(ptr %args, ptr %scratch, i32 %n) {
  %p = load ptr, ptr %args
  call void @h(ptr %p)
  ret void
}
"""
    (got,) = qemu.run(text, [out], 0, tmp_path, baseline(targets), cpu)
    assert got[0] == chosen


def test_a_processor_of_arm_without_the_extensions_is_refused(tmp_path: Path) -> None:
    qemu.need_qemu()
    targets = [askable(from_name("neoverse-v1"))]
    text = module(targets, ["neoverse-v1"])
    text += """
define void @kernel(ptr %args, ptr %scratch, i32 %n) {
  %p = load ptr, ptr %args
  %status = call i32 @f(i64 1)
  %wide = sext i32 %status to i64
  store i64 %wide, ptr %p
  ret void
}
"""
    (got,) = qemu.run(text, [np.full(1, -1, np.int64)], 0, tmp_path, baseline(targets), "cortex-a76")
    assert got[0] == NO_CODE
