"""One of several sets of code, chosen by what the processor tells when a function is first called.

The IR text defines each function that callers see. It jumps to that of the chosen set. The choice is a
pointer to a table of one set: its name, then its functions. Threads that ask together find the same, so that
no lock is needed, and nothing is allocated. Later calls cost a load and a jump.

A set is chosen that the processor and its system can run: of the most capable ones (`askable.Needs.group`)
that of this processor's name, else that with the most extensions. Where none can be run, each function gives
what its `SharedEntry` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.codegen.runtime.entry import word
from autotune.platform import amx
from autotune.targets.askable import (
    ARM_WORDS,
    GRANTED,
    OSXSAVE,
    X86,
    X86_WORDS,
    XCR0,
    Needs,
    best_first,
    is_x86,
    needs,
    one_family,
)
from schedules.model import Target

# Status of a function where this processor runs none of the sets.
NO_CODE = 5
_CPUID = 'asm sideeffect "cpuid", "={ax},={bx},={cx},={dx},{ax},{cx},~{dirflag},~{fpsr},~{flags}"'
_XGETBV = 'asm sideeffect "xgetbv", "={ax},={dx},{cx},~{dirflag},~{fpsr},~{flags}"'


@dataclass(frozen=True)
class SharedEntry:
    """A function that each set of code has. ``takes``: LLVM's types of its arguments. ``gives``: of its
    result, which is ``refused`` where no set suits; ``void`` with ``refused=""`` for none."""

    name: str
    takes: tuple[str, ...]
    gives: str = "i32"
    refused: str = str(NO_CODE)


def suffixed(name: str, i: int) -> str:
    """The symbol of a function in set ``i``."""
    return f"of{i}_{name}"


def by_cpu(
    entries: Sequence[SharedEntry], targets: Sequence[Target], names: Sequence[str], chosen: str
) -> str:
    """IR text of a module that defines ``entries`` by the functions `suffixed`, and ``const char
    *chosen(void)``: the name of the set that this processor runs, null for none. ``targets``: of the sets, as
    `askable.askable` gives them. ``names``: what callers call them.

    Raises `ArgumentError` for targets of several families."""
    one_family(targets)
    table = f"[{len(entries) + 1} x ptr]"
    text = ["@chosen = internal global ptr null, align 8"]
    for i, name in enumerate(names):
        data = name.encode() + b"\0"
        letters = "".join(f"\\{b:02X}" for b in data)
        functions = ", ".join(f"ptr @{suffixed(e.name, i)}" for e in entries)
        text += [
            f'@name{i} = private constant [{len(data)} x i8] c"{letters}"',
            *(f"declare {e.gives} @{suffixed(e.name, i)}({', '.join(e.takes)})" for e in entries),
            f"@table{i} = internal constant {table} [ptr @name{i}, {functions}]",
        ]
    refusing = ", ".join(f"ptr @refuse{k}" for k in range(len(entries)))
    text.append(f"@none = internal constant {table} [ptr null, {refusing}]")
    for k, e in enumerate(entries):
        given = ", ".join(f"{t} %p{i}" for i, t in enumerate(e.takes))
        made, result = ("", "void") if e.gives == "void" else ("%r = ", f"{e.gives} %r")
        text += [
            f"define internal {e.gives} @refuse{k}({', '.join(e.takes)}) nounwind {{",
            f"  ret {e.gives} {e.refused}".rstrip() + "\n}",
            f"define {e.gives} @{e.name}({given}) nounwind {{\n{_TABLE}{word('f', '%table', k + 1, 'ptr')}",
            f"  {made}musttail call {e.gives} %f({given})\n  ret {result}\n}}",
        ]
    text.append(f"define ptr @{chosen}() nounwind {{\n{_TABLE}{word('name', '%table', 0, 'ptr')}")
    return "\n".join([*text, "  ret ptr %name\n}", _resolve(targets)]) + "\n"


# Lines that begin a function: ``%table`` is the chosen one.
_TABLE = """entry:
  %known = load atomic ptr, ptr @chosen acquire, align 8
  %new = icmp eq ptr %known, null
  br i1 %new, label %ask, label %go
ask:
  %found = call ptr @resolve()
  br label %go
go:
  %table = phi ptr [ %known, %entry ], [ %found, %ask ]
"""


def _resolve(targets: Sequence[Target]) -> str:
    """IR text of ``@resolve``, which finds the table of the best set and keeps it. The score of a set is -1
    where it cannot be run. The first of equals is taken."""
    asked = [needs(t) for t in targets]
    groups = sorted({x.group for x in asked})
    lines, best, score = [], "@none", "-1"
    for i in best_first(targets):
        lines += _runs(i, asked[i])
        named = "false"
        for j, (first, last) in enumerate(asked[i].models):
            lines += [
                f"  %above{i}.{j} = sub i32 %processor, {first}",
                f"  %is{i}.{j} = icmp ule i32 %above{i}.{j}, {last - first}",
                f"  %named{i}.{j} = or i1 {named}, %is{i}.{j}",
            ]
            named = f"%named{i}.{j}"
        lines += [
            f"  %high{i} = select i1 {named}, i32 {2 * groups.index(asked[i].group) + 1}, "
            f"i32 {2 * groups.index(asked[i].group)}",
            f"  %score{i} = select i1 %runs{i}, i32 %high{i}, i32 -1",
            f"  %better{i} = icmp sgt i32 %score{i}, {score}",
            f"  %best{i} = select i1 %better{i}, ptr @table{i}, ptr {best}",
            f"  %most{i} = select i1 %better{i}, i32 %score{i}, i32 {score}",
        ]
        best, score = f"%best{i}", f"%most{i}"
    told = _ask_x86(any(x.words[-1] for x in asked)) if is_x86(targets[0]) else _ask_arm()
    lines += [f"  store atomic ptr {best}, ptr @chosen release, align 8", f"  ret ptr {best}"]
    return f"{told[0]}define internal ptr @resolve() noinline nounwind {{\nentry:\n{told[1]}" + "\n".join(
        [*lines, "}"]
    )


def _runs(i: int, asked: Needs) -> list[str]:
    """Lines that say whether all bits are there that a set needs."""
    lines, all_there = [], "true"
    for k, bits in enumerate(asked.words):
        if bits:
            lines += [
                f"  %got{i}.{k} = and i32 %word{k}, {bits}",
                f"  %has{i}.{k} = icmp eq i32 %got{i}.{k}, {bits}",
                f"  %all{i}.{k} = and i1 {all_there}, %has{i}.{k}",
            ]
            all_there = f"%all{i}.{k}"
    return [*lines, f"  %runs{i} = and i1 {all_there}, true"]


def _ask_arm() -> tuple[str, str]:
    """Declarations, and lines that set ``%word0`` ..., and ``%processor``."""
    lines = ["  %processor = add i32 0, 0"]
    for k, kind in enumerate(ARM_WORDS):
        lines += [f"  %all.{k} = call i64 @getauxval(i64 {kind})", f"  %word{k} = trunc i64 %all.{k} to i32"]
    return "declare i64 @getauxval(i64) nounwind\n", "\n".join(lines) + "\n"


def _ask_x86(tiles: bool) -> tuple[str, str]:
    """As `_ask_arm`. ``tiles``: whether Linux is asked for them. A leaf of CPUID above the highest tells of
    another one, and XCR0 may be read only where the system uses it."""
    leaves = dict.fromkeys((leaf, sub) for leaf, sub, _ in X86_WORDS)
    four = "{ i32, i32, i32, i32 }"
    lines = []
    for leaf, sub in ((0, 0), (0x80000000, 0), *leaves):
        of = f"leaf{leaf:x}.{sub}"
        lines.append(f"  %{of} = call {four} {_CPUID}(i32 {leaf}, i32 {sub})")
        if not leaf & 0xFF:
            lines.append(f"  %{of}.0 = extractvalue {four} %{of}, 0")
            continue
        highest = f"%leaf{leaf & 0x80000000:x}.0.0"
        lines.append(f"  %{of}.known = icmp uge i32 {highest}, {leaf}")
        for r in range(4):
            lines += [
                f"  %{of}.{r}.raw = extractvalue {four} %{of}, {r}",
                f"  %{of}.{r} = select i1 %{of}.known, i32 %{of}.{r}.raw, i32 0",
            ]
    lines += [f"  %word{k} = add i32 %leaf{x:x}.{sub}.{r}, 0" for k, (x, sub, r) in enumerate(X86_WORDS)]
    text = "\n".join(lines)
    return (
        "declare i64 @syscall(i64, ...)\n" if tiles else "",
        f"""{text}
{_PROCESSOR}
  %saves = and i32 %word0, {1 << OSXSAVE}
  %unsaved = icmp eq i32 %saves, 0
  br i1 %unsaved, label %asked, label %read
read:
  %xcr = call {{ i32, i32 }} {_XGETBV}(i32 0)
  %xcr.low = extractvalue {{ i32, i32 }} %xcr, 0
  br label %asked
asked:
  %word{XCR0} = phi i32 [ 0, %entry ], [ %xcr.low, %read ]
{_GRANTED if tiles else f"  %word{GRANTED} = add i32 0, 0"}
""",
    )


# Lines that compute family and model, each with its extension, as one number.
_PROCESSOR = """  %version = add i32 %leaf1.0.0, 0
  %family.low = lshr i32 %version, 8
  %family.base = and i32 %family.low, 15
  %family.high = lshr i32 %version, 20
  %family.more = and i32 %family.high, 255
  %extended = icmp eq i32 %family.base, 15
  %family.sum = add i32 %family.base, %family.more
  %family = select i1 %extended, i32 %family.sum, i32 %family.base
  %model.low = lshr i32 %version, 4
  %model.base = and i32 %model.low, 15
  %model.high = lshr i32 %version, 12
  %model.more = and i32 %model.high, 240
  %model = or i32 %model.more, %model.base
  %family.at = shl i32 %family, 8
  %processor = or i32 %family.at, %model"""

# Lines that ask Linux for tiles, where there are any.
_GRANTED = f"""  %tile.bit = and i32 %word4, {X86["amx-tile"][1]}
  %untiled = icmp eq i32 %tile.bit, 0
  br i1 %untiled, label %granted, label %request
request:
  %failed = call i64 (i64, ...) @syscall(i64 {amx.ARCH_PRCTL}, i64 {amx.REQUEST}, i64 {amx.TILE_DATA})
  %ok = icmp eq i64 %failed, 0
  %yes = zext i1 %ok to i32
  br label %granted
granted:
  %word{GRANTED} = phi i32 [ 0, %asked ], [ %yes, %request ]"""
