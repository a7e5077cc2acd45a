"""Emits the function that each thread of a parallel loop runs: it claims chunks of its own share, then of
others."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from schedules.ir import Buffer

# Placeholders for numbers of bytes, replaced when the module is complete.
ROOT_TOKEN, THREAD_TOKEN = "@@root_bytes@@", "@@thread_bytes@@"

# Words between two counters: two cache lines, because neighbouring lines are fetched together.
SHARE = 16
# The function. A plain load comes before a claim, so that an exhausted counter's line stays with its owner.
# Claims need no order: the end of the job publishes results.
_TEXT = Template("""\
define internal void @$name(ptr %ctx, i32 %tid) nounwind {
entry:
$loads
  %t = zext i32 %tid to i64
  %t1 = mul i64 %t, $thread_bytes
  %t2 = add i64 %t1, $root_bytes
  %thread = getelementptr i8, ptr %scratch, i64 %t2
  br label %go
go:
  %gone = phi i64 [ 0, %entry ], [ %gone1, %none ]
  %turn = add i64 %t, %gone
  %share = urem i64 %turn, $shares
  %word = mul i64 %share, $words
  %counter = getelementptr i64, ptr %ctx, i64 %word
  %b0 = mul i64 %share, $n
  %b1 = add i64 %b0, $most
  %begin = udiv i64 %b1, $shares
  %b2 = add i64 %b1, $n
  %bound = udiv i64 %b2, $shares
  %size = sub i64 %bound, %begin
  br label %look
look:
  %seen = load atomic i64, ptr %counter monotonic, align 8
  %some = icmp slt i64 %seen, %size
  br i1 %some, label %claim, label %none
claim:
  %claimed = atomicrmw add ptr %counter, i64 $chunk monotonic
  %left = icmp slt i64 %claimed, %size
  br i1 %left, label %run, label %none
run:
  %first = add i64 %begin, %claimed
  %end0 = add i64 %first, $chunk
  %over = icmp sgt i64 %end0, %bound
  %end = select i1 %over, i64 %bound, i64 %end0
  br label %next
next:
  %in_$var = phi i64 [ %first, %run ], [ %after, %next ]
  call void @${name}_body($args, ptr %scratch, ptr %thread$ints)
  %after = add i64 %in_$var, 1
  %more = icmp slt i64 %after, %end
  br i1 %more, label %next, label %look
none:
  %gone1 = add i64 %gone, 1
  %others = icmp ult i64 %gone1, $shares
  br i1 %others, label %go, label %exit
exit:
$end  ret void
}""")


def driver(
    name: str, n: int | str, chunk: int | str, shares: int, params: Sequence[Buffer], outer: Sequence[str],
    var: str, end: str,
) -> str:  # fmt: skip
    """``void @name(ptr ctx, i32 tid)``: calls ``@name_body`` for every iteration of ``var`` that it claims,
    at most ``chunk`` at a time. ``n``, ``chunk``: numbers, or names ``%in_v`` of variables of ``outer``.
    ``end``: code that runs before it returns.

    The ``n`` iterations form ``shares`` contiguous shares of nearly equal size, the first the largest.
    ``ctx`` counts the claimed iterations of each. A thread begins with the share of its number, whose data
    its core's caches hold from the last call (ADR 34). Then it goes on with the next share, whose thread may
    be late or absent (affinity scheduling: Markatos & LeBlanc, 1994). ``ctx`` holds `SHARE` words a counter,
    0 at first, then arguments, scratch, and variables of outer loops."""
    loads: list[str] = []
    for k, what in enumerate(["%args", "%scratch", *(f"%in_{v}" for v in outer)]):
        t = "ptr" if k < 2 else "i64"
        loads += [
            f"  %c{k} = getelementptr i64, ptr %ctx, i64 {shares * SHARE + k}",
            f"  {what} = load {t}, ptr %c{k}, align 8",
        ]
    for k, b in enumerate(params):
        loads += [
            f"  %s{k} = getelementptr ptr, ptr %args, i64 {k}",
            f"  %arg.{b.name} = load ptr, ptr %s{k}",
        ]
    return _TEXT.substitute(
        name=name, n=n, chunk=chunk, shares=shares, most=shares - 1, words=SHARE, var=var,
        loads="\n".join(loads), root_bytes=ROOT_TOKEN, thread_bytes=THREAD_TOKEN,
        args=", ".join(f"ptr %arg.{b.name}" for b in params),
        ints="".join(f", i64 %in_{v}" for v in (*outer, var)), end=f"{end}\n" if end else "",
    )  # fmt: skip
