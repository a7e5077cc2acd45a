"""The function that a thread of a parallel loop runs: it claims chunks until none is left."""

from __future__ import annotations

from collections.abc import Sequence

from schedules.ir import Buffer

ROOT_TOKEN, THREAD_TOKEN = "@@root_bytes@@", "@@thread_bytes@@"  # filled in when the module is done


def driver(
    name: str, n: int, chunk: int, params: Sequence[Buffer], outer: Sequence[str], var: str, end: str
) -> str:
    """``void @name(ptr ctx, i32 tid)`` calls ``@name_body`` for every iteration of ``var`` that it claims,
    ``chunk`` of ``n`` at a time, from the counter in the context; ``end`` is run before it returns."""
    lines = ["entry:"]
    for k, what in enumerate(["%args", "%scratch", *(f"%in_{v}" for v in outer)]):
        t = "ptr" if k < 2 else "i64"
        lines += [
            f"  %c{k} = getelementptr i64, ptr %ctx, i64 {k + 1}",
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
        "  br label %claim",
        "claim:",
        # claims need no order among themselves: results are published by the end of the job
        f"  %first = atomicrmw add ptr %ctx, i64 {chunk} monotonic",
        f"  %left = icmp slt i64 %first, {n}",
        "  br i1 %left, label %run, label %exit",
        "run:",
        f"  %end0 = add i64 %first, {chunk}",
        f"  %over = icmp sgt i64 %end0, {n}",
        f"  %end = select i1 %over, i64 {n}, i64 %end0",
        "  br label %next",
        "next:",
        f"  %in_{var} = phi i64 [ %first, %run ], [ %after, %next ]",
        f"  call void @{name}_body({args}, ptr %scratch, ptr %thread{ints})",
        f"  %after = add i64 %in_{var}, 1",
        "  %more = icmp slt i64 %after, %end",
        "  br i1 %more, label %next, label %claim",
        "exit:",
        end,
        "  ret void",
    ]
    body = "\n".join(x for x in lines if x)
    return f"define internal void @{name}(ptr %ctx, i32 %tid) nounwind {{\n{body}\n}}"
