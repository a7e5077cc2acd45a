"""The function that a thread of a parallel loop runs: it claims chunks of its share, then of the others'."""

from __future__ import annotations

from collections.abc import Sequence

from schedules.ir import Buffer

ROOT_TOKEN, THREAD_TOKEN = "@@root_bytes@@", "@@thread_bytes@@"  # filled in when the module is done


SHARE = 16  # words between the counters of two threads: two cache lines, as neighbours are fetched together


def first_of(share: int, n: int, threads: int) -> int:
    """Where the share of a thread begins, of ``n`` iterations."""
    return n * share // threads


def driver(
    name: str,
    n: int,
    chunk: int,
    threads: int,
    params: Sequence[Buffer],
    outer: Sequence[str],
    var: str,
    end: str,
) -> str:
    """``void @name(ptr ctx, i32 tid)`` calls ``@name_body`` for every iteration of ``var`` that it claims, at
    most ``chunk`` at a time; ``end`` is run before it returns.

    Each of ``threads`` threads has a share of the ``n`` iterations (`first_of`), and ``ctx`` a counter
    of what is claimed of it. A thread begins with its own: from call to call it finds there what its core's
    caches hold. Then it goes on with the next one's, who may be late, or not come at all (affinity
    scheduling: Markatos & LeBlanc, 1994). ``ctx``: ``SHARE`` words a counter, arguments, scratch, variables
    of loops around."""
    lines = ["entry:"]
    for k, what in enumerate(["%args", "%scratch", *(f"%in_{v}" for v in outer)]):
        t = "ptr" if k < 2 else "i64"
        lines += [
            f"  %c{k} = getelementptr i64, ptr %ctx, i64 {threads * SHARE + k}",
            f"  {what} = load {t}, ptr %c{k}, align 8",
        ]
    for k, b in enumerate(params):
        lines += [
            f"  %s{k} = getelementptr ptr, ptr %args, i64 {k}",
            f"  %arg.{b.name} = load ptr, ptr %s{k}",
        ]
    args = ", ".join(f"ptr %arg.{b.name}" for b in params)
    ints = "".join(f", i64 %in_{v}" for v in (*outer, var))
    lines += [
        "  %t = zext i32 %tid to i64",
        f"  %t1 = mul i64 %t, {THREAD_TOKEN}",
        f"  %t2 = add i64 %t1, {ROOT_TOKEN}",
        "  %thread = getelementptr i8, ptr %scratch, i64 %t2",
        "  br label %share",
        "share:",
        "  %gone = phi i64 [ 0, %entry ], [ %gone1, %none ]",
        "  %turn = add i64 %t, %gone",
        f"  %owner = urem i64 %turn, {threads}",
        f"  %o1 = mul i64 %owner, {SHARE}",
        "  %counter = getelementptr i64, ptr %ctx, i64 %o1",
        "  %o2 = add i64 %owner, 1",
        f"  %o3 = mul i64 %o2, {n}",
        f"  %bound = udiv i64 %o3, {threads}",
        "  br label %look",
        "look:",
        # a plain look first: the line stays with its owner where nothing is left
        "  %seen = load atomic i64, ptr %counter monotonic, align 8",
        "  %some = icmp slt i64 %seen, %bound",
        "  br i1 %some, label %claim, label %none",
        "claim:",
        # claims need no order among themselves: results are published by the end of the job
        f"  %first = atomicrmw add ptr %counter, i64 {chunk} monotonic",
        "  %left = icmp slt i64 %first, %bound",
        "  br i1 %left, label %run, label %none",
        "run:",
        f"  %end0 = add i64 %first, {chunk}",
        "  %over = icmp sgt i64 %end0, %bound",
        "  %end = select i1 %over, i64 %bound, i64 %end0",
        "  br label %next",
        "next:",
        f"  %in_{var} = phi i64 [ %first, %run ], [ %after, %next ]",
        f"  call void @{name}_body({args}, ptr %scratch, ptr %thread{ints})",
        f"  %after = add i64 %in_{var}, 1",
        "  %more = icmp slt i64 %after, %end",
        "  br i1 %more, label %next, label %look",
        "none:",
        "  %gone1 = add i64 %gone, 1",
        f"  %others = icmp ult i64 %gone1, {threads}",
        "  br i1 %others, label %share, label %exit",
        "exit:",
        end,
        "  ret void",
    ]
    body = "\n".join(x for x in lines if x)
    return f"define internal void @{name}(ptr %ctx, i32 %tid) nounwind {{\n{body}\n}}"
