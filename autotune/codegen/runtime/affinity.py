"""Sets the CPUs that a thread may use, as LLVM IR text for Linux. Workers of the thread pool call it on
themselves.

A set of CPUs has 128 bytes, one bit a CPU. With more than 1024 CPUs nothing is changed. ``@at_avoid`` stops
the use of a CPU, ``@at_free`` ends that, ``@at_move`` only leaves the CPU once.
"""

__all__ = ["AFFINITY"]

# IR text of the functions.
AFFINITY = """\
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @memcmp(ptr, ptr, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; Use this CPU no longer: %avoided is it then, %all what this thread might use, %others what it may use now.
; Nothing where there is no other, or the CPU is none of its own.
define internal void @at_avoid(i32 %cpu, ptr %avoided, ptr %all, ptr %others) noinline nounwind {
entry:
  %known = icmp ult i32 %cpu, 1024
  br i1 %known, label %ask, label %stay

ask:
  %size = call i32 @sched_getaffinity(i32 0, i64 128, ptr %all)
  %answered = icmp eq i32 %size, 0
  br i1 %answered, label %look, label %stay

look:
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %all, i64 128, i1 false)
  %byte = lshr i32 %cpu, 3
  %place = getelementptr i8, ptr %others, i32 %byte
  %bits = load i8, ptr %place, align 1
  %low = and i32 %cpu, 7
  %low.byte = trunc i32 %low to i8
  %one = shl i8 1, %low.byte
  %has = and i8 %bits, %one
  %own = icmp ne i8 %has, 0
  br i1 %own, label %clear, label %stay

clear:
  %kept = xor i8 %bits, %one
  store i8 %kept, ptr %place, align 1
  ; fails, and changes nothing, where no CPU is left
  %left = call i32 @sched_setaffinity(i32 0, i64 128, ptr %others)
  %gone = icmp eq i32 %left, 0
  br i1 %gone, label %done, label %stay

done:
  store i32 %cpu, ptr %avoided, align 4
  ret void

stay:
  store i32 -1, ptr %avoided, align 4
  ret void
}

; Whether it is these CPUs that this thread may use: somebody else may have said otherwise.
define internal i1 @at_may_use(ptr %cpus) noinline nounwind {
entry:
  %now = alloca [128 x i8], align 8
  %size = call i32 @sched_getaffinity(i32 0, i64 128, ptr %now)
  %answered = icmp eq i32 %size, 0
  br i1 %answered, label %compare, label %unknown

compare:
  %differs = call i32 @memcmp(ptr %now, ptr %cpus, i64 128)
  %same = icmp eq i32 %differs, 0
  ret i1 %same

unknown:
  ret i1 false
}

; The end of @at_avoid, unless somebody else has said meanwhile where this thread may run.
define internal void @at_free(ptr %avoided, ptr %all, ptr %others) noinline nounwind {
entry:
  %was = load i32, ptr %avoided, align 4
  store i32 -1, ptr %avoided, align 4
  %avoids = icmp ne i32 %was, -1
  br i1 %avoids, label %look, label %done

look:
  %kept = call i1 @at_may_use(ptr %others)
  br i1 %kept, label %restore, label %done

restore:
  %restored = call i32 @sched_setaffinity(i32 0, i64 128, ptr %all)
  br label %done

done:
  ret void
}

; Go to another of the CPUs that this thread may use. False where there is none.
define internal i1 @at_move(i32 %cpu) noinline nounwind {
entry:
  %avoided = alloca i32, align 4
  %all = alloca [128 x i8], align 8
  %others = alloca [128 x i8], align 8
  call void @at_avoid(i32 %cpu, ptr %avoided, ptr %all, ptr %others)
  %was = load i32, ptr %avoided, align 4
  %gone = icmp ne i32 %was, -1
  call void @at_free(ptr %avoided, ptr %all, ptr %others)
  ret i1 %gone
}
"""
