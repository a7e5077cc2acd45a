"""Copies to shared memory in the background, as the emulator has them: right in every order in which they may
land, and what is wrong with one is found in all."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cuda_text import emulated, unanimous
from grid_cases import need_cxx
from product_text import BLOCK, BODY, EQUAL, GRID, MISTAKES, product_case

from autotune.codegen.simt import cxx, emulator

# 32 threads copy 4 floats each, and read those of another.
REVERSED = """
  AT_SHARED(float, s, 128);
  const int t = threadIdx.x;
  AT_COPY(16, s[4 * t], x[4 * t], t != 3);
  AT_SIGNAL();
  AT_AWAIT(0);
  __syncthreads();
  for (int i = 0; i < 4; ++i) out[4 * t + i] = s[127 - 4 * t - i];
"""
# {a mistake: (what is written, what then stands there, what is said in every order)}
WRONG = {
    "no wait": (
        "AT_AWAIT(0);",
        "",
        r"race on s\[\d+\]: thread \d+ of block \d+ reads what thread \d+ is copying: await",
    ),
    "a wait for all but one": ("AT_AWAIT(0);", "AT_AWAIT(1);", "is copying: await the copy first"),
    "no signal": ("AT_SIGNAL();", "", "is copying: await the copy first"),
    "no barrier": (
        "__syncthreads();",
        "",
        r"race on s\[\d+\]: .* uses what another has read, with no barrier",
    ),
    "a barrier of some": (
        "AT_AWAIT(0);\n  __syncthreads();",
        "AT_AWAIT(0);\n  if (t < 5) __syncthreads(); else return;",
        r"a barrier in block \d+ that not all threads reach \(p0_kernel0\): threads 0 to 4 wait at line "
        r"\d+ for all; threads 5 to 31 have ended",
    ),
    "barriers at two places": (
        "AT_AWAIT(0);\n  __syncthreads();",
        "AT_AWAIT(0);\n  if (t < 5) __syncthreads(); else\n  __syncthreads();",
        r"threads 0 to 4 wait at line \d+ for all; threads 5 to 31 wait at line \d+ for all",
    ),
    "not waited for": (
        "for (int i = 0; i < 4; ++i) out[4 * t + i] = s[127 - 4 * t - i];",
        "AT_COPY(4, s[t], x[t], true);",
        r"thread \d+ of block \d+ ends before its copy to s\[\d+\] is done: await it",
    ),
    "a write under it": (
        "AT_SIGNAL();",
        "s[4 * t] = 0;\n  AT_SIGNAL();",
        r"writes what thread \d+ is copying",
    ),
    "a copy over it": (
        "AT_SIGNAL();",
        "AT_COPY(4, s[4 * t + 3], x[t], true);",
        r"writes what thread \d+ is copying",
    ),
    "over what others have read": (
        "AT_COPY(16, s[4 * t]",
        "out[t] = s[(4 * t + 4) % 128];\n  AT_COPY(16, s[4 * t]",
        "uses what another has (read|written)",
    ),
    "a place that is no multiple": (
        "AT_COPY(16, s[4 * t]",
        "AT_COPY(16, s[t == 31 ? 0 : 4 * t + 2]",
        r"a copy of 16 bytes to s\[\d+\] is not aligned",
    ),
    "a source that is no multiple": (
        "x[4 * t]",
        "x[t == 31 ? 0 : 4 * t + 1]",
        r"16 bytes at a misaligned address",
    ),
    "a source outside": (
        "x[4 * t]",
        "x[4 * t + 4]",
        "thread 31 of block 1?[0-9]* reaches for 16 bytes outside of all arrays",
    ),
    "a place outside": ("s[4 * t]", "s[4 * t + 4]", r"thread 31 of block \d+ uses s\[131\] of 128"),
    "a width that there is not": (
        "AT_COPY(16,",
        "AT_COPY(12,",
        "a copy of 12 bytes to s: they are 4, 8 or 16",
    ),
}


def reversed_case() -> tuple[dict[str, np.ndarray], np.ndarray]:
    x = np.arange(128, dtype="float32")
    right = x.copy()
    right[12:16] = 0  # what is not there is zeros, and is not read
    return {"x": x, "out": np.empty(128, "float32")}, right[::-1]


def test_copies_land_in_every_order() -> None:
    need_cxx()
    arrays, right = reversed_case()
    assert not unanimous(emulated(REVERSED, arrays), right)


@pytest.mark.fast("no wait")
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_copy_is_found_in_every_order(what: str) -> None:
    need_cxx()
    written, instead, text = WRONG[what]
    assert REVERSED.count(written) == 1
    for order, ran in emulated(REVERSED.replace(written, instead), reversed_case()[0]).items():
        assert ran.fault and re.search(text, ran.fault), f"{order}: {ran.fault}"


def test_a_thread_reads_its_own_copy_behind_its_wait() -> None:
    """Others need not wait for it, nor meet it; and a group may be empty."""
    need_cxx()
    own = """
  AT_SHARED(float, s, 128);
  const int t = threadIdx.x;
  if (t < 9) {
    AT_COPY(8, s[4 * t], x[4 * t], true);
    AT_SIGNAL();
    AT_SIGNAL();
    AT_AWAIT(1);
  }
  for (int i = 0; i < 4; ++i) out[4 * t + i] = t < 9 && i < 2 ? (float)s[4 * t + i] : 1.0f;
"""
    x = np.arange(128, dtype="float32")
    right = np.ones((32, 4), "float32")
    right[:9, :2] = x.reshape(32, 4)[:9, :2]
    assert not unanimous(emulated(own, {"x": x, "out": np.empty(128, "float32")}), right.ravel())


def test_what_is_copied_is_read_at_once_or_at_the_wait() -> None:
    """Nothing tells which: of what changes in between, each order has another value."""
    need_cxx()
    body = """
  AT_SHARED(int, s, 32);
  const int t = threadIdx.x;
  out[t] = 1;
  AT_COPY(4, s[t], out[t], true);
  out[t] = 2;
  AT_SIGNAL();
  AT_AWAIT(0);
  out[t] = s[t];
"""
    ran = emulated(body, {"out": np.empty(32, "int32")})
    assert {o: set(x.out.tolist()) for o, x in ran.items()} == {"early": {1}, "late": {2}, "random": {1, 2}}


def test_memory_begins_as_nothing() -> None:
    """Registers, and what threads share: it is not that of the block before."""
    need_cxx()
    body = """
  AT_SHARED(float, s, 32);
  const int t = threadIdx.x;
  float own[4];
  asm volatile("" : "+m"(own));
  if (blockIdx.x == 0) s[t] = 1;
  out[64 * blockIdx.x + t] = s[t];
  out[64 * blockIdx.x + 32 + t] = own[t % 4];
"""
    for order, ran in emulated(body, {"out": np.empty(128, "float32")}, grid=(2, 1, 1)).items():
        assert (ran.out[:32] == 1).all() and np.isnan(ran.out[32:]).all(), order


@pytest.mark.slow
def test_fibers_without_code_of_their_own_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody wrote how stacks are changed, the system does it."""
    need_cxx()
    monkeypatch.setattr(emulator, "FLAGS", (*emulator.FLAGS, "-DAT_UCONTEXT"))
    emulator.runtime.cache_clear()
    arrays, right = product_case()
    assert not unanimous(emulated(BODY, arrays, BLOCK, GRID), right)
    emulator.runtime.cache_clear()


def test_a_product_in_stages() -> None:
    need_cxx()
    arrays, right = product_case()
    for body in (BODY, *(BODY.replace(*change) for change in EQUAL.values())):
        assert not unanimous(emulated(body, arrays, BLOCK, GRID), right)


@pytest.mark.fast("no barrier")
@pytest.mark.parametrize("what", MISTAKES)
def test_every_mistake_in_a_product_is_caught_in_every_order(what: str) -> None:
    need_cxx()
    written, instead = MISTAKES[what]
    assert written in BODY
    arrays, right = product_case()
    said = unanimous(emulated(BODY.replace(written, instead), arrays, BLOCK, GRID), right)
    assert len(said) == len(emulator.ORDERS), said


def test_what_runs_fibers_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a process, and beside the compiled kernels of this user, by its text and the compiler."""
    built: list[tuple[str, ...]] = []
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cxx, "build", lambda source, *flags: built.append(flags) or b"an object")
    uncached = emulator.runtime.__wrapped__
    assert [uncached(("g++",)), uncached(("g++",))] == [b"an object"] * 2
    assert built == [(*emulator.FLAGS, "-c")]
    uncached(("clang++",))
    monkeypatch.setattr(emulator, "FLAGS", (*emulator.FLAGS, "-O2"))
    uncached(("g++",))
    assert len(built) == 3
