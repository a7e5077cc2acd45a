"""Functions of the support module that run a whole program: kernels one after the other, in one call.

A *step* is `STEP` words: the kernel's address, the address of its data pointers, its threads. All steps share
one block of scratch memory, large enough for each and aligned for each, so that nothing can fail:

- ``void at_program(steps, n, scratch)``: ``n`` steps in order;
- ``void at_program_times(steps, n, scratch, clock, ns)``: the same, and adds to ``ns``, an array of i64, the
  nanoseconds of each step on ``clock`` (`clocks.MONOTONIC`, or `clocks.THREAD_CPU`);
- ``i64 at_program_repeat(steps, first, n, begin, total, scratch, ns)``: steps number ``begin`` to ``total``
of a
  sequence: the ``n`` steps, and after the last number ``first`` again. It returns the number of the next step
  once about ``ns`` nanoseconds have passed: a caller looks for signals and goes on. The clock is read after
  each of the first `EACH` steps, then after some.
"""

from __future__ import annotations

SYMBOLS = ("at_program", "at_program_times", "at_program_repeat")
STEP = 3
EACH = 16


def _step(name: str) -> str:
    """IR that runs the step at ``%at``; each value's name begins with ``name``."""
    return f"""
  %{name}.kernel = load ptr, ptr %at
  %{name}.args.at = getelementptr i64, ptr %at, i64 1
  %{name}.args = load ptr, ptr %{name}.args.at
  %{name}.threads.at = getelementptr i64, ptr %at, i64 2
  %{name}.threads = load i64, ptr %{name}.threads.at
  %{name}.n = trunc i64 %{name}.threads to i32
  call void %{name}.kernel(ptr %{name}.args, ptr %scratch, i32 %{name}.n)
"""


# IR text of these functions. They call ``@now`` of `support.running`.
TEXT = f"""
define void @at_program(ptr %steps, i64 %n, ptr %scratch) nounwind {{
entry:
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %word = mul i64 %i, {STEP}
  %at = getelementptr i64, ptr %steps, i64 %word
{_step("s")}
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}

define void @at_program_times(ptr %steps, i64 %n, ptr %scratch, i32 %clock, ptr %ns) nounwind {{
entry:
  %start = call i64 @now(i32 %clock)
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %last = phi i64 [ %start, %entry ], [ %now, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  %word = mul i64 %i, {STEP}
  %at = getelementptr i64, ptr %steps, i64 %word
{_step("s")}
  %now = call i64 @now(i32 %clock)
  %took = sub i64 %now, %last
  %sum.at = getelementptr i64, ptr %ns, i64 %i
  %sum = load i64, ptr %sum.at
  %total = add i64 %sum, %took
  store i64 %total, ptr %sum.at
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}

define i64 @at_program_repeat(ptr %steps, i64 %first, i64 %n, i64 %begin, i64 %total, ptr %scratch, i64 %ns)
nounwind {{ entry:
  %start = call i64 @now(i32 1)
  %period = sub i64 %n, %first
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %more ], [ %next, %clock ]
  %left = icmp ult i64 %i, %total
  br i1 %left, label %place, label %done
place:
  %once = icmp ult i64 %i, %n
  br i1 %once, label %body, label %again
again:
  %over = sub i64 %i, %first
  %rest = urem i64 %over, %period
  %turn = add i64 %first, %rest
  br label %body
body:
  %k = phi i64 [ %i, %place ], [ %turn, %again ]
  %word = mul i64 %k, {STEP}
  %at = getelementptr i64, ptr %steps, i64 %word
{_step("s")}
  %next = add i64 %i, 1
  br label %more
more:
  %ran = sub i64 %i, %begin
  %few = icmp ult i64 %ran, {EACH}
  %low = and i64 %ran, 63
  %some = icmp eq i64 %low, 0
  %look = or i1 %few, %some
  br i1 %look, label %clock, label %head
clock:
  %now = call i64 @now(i32 1)
  %took = sub i64 %now, %start
  %late = icmp sgt i64 %took, %ns
  br i1 %late, label %end, label %head
end:
  ret i64 %next
done:
  ret i64 %i
}}
"""
