"""Atomic updates in C for GPUs: functions ``at_atomic_<operation>_<dtype>(place, value)``.

Sums of CUDA C are one instruction, as are updates of integers in both languages. All others compare what they
read with what is there when they write, and begin again where another thread was faster. Threads of the
emulator take turns between barriers alone, so that a plain update is one there.
"""

from __future__ import annotations

from collections.abc import Collection

# (name of the operation, dtype).
Update = tuple[str, str]
# {operator: its name}.
NAMES = {"+": "add", "min": "min", "max": "max"}

_TYPES = {"int32": "int", "int64": "at_long", "float32": "float", "float64": "double"}
_BITS = {"int32": "unsigned", "float32": "unsigned", "int64": "at_ulong", "float64": "at_ulong"}
# {(operation, dtype): one call of CUDA C with {p} and {v}}; integers of 64 bits are long long there.
_CUDA = {
    ("add", "float32"): "atomicAdd({p}, {v})",
    ("add", "float64"): "atomicAdd({p}, {v})",
    ("add", "int32"): "atomicAdd({p}, {v})",
    ("min", "int32"): "atomicMin({p}, {v})",
    ("max", "int32"): "atomicMax({p}, {v})",
    ("add", "int64"): "atomicAdd((at_ulong *){p}, (at_ulong){v})",
    ("min", "int64"): "atomicMin({p}, {v})",
    ("max", "int64"): "atomicMax({p}, {v})",
}
_OPENCL = {
    ("add", "int32"): "atomic_add({p}, {v})",
    ("min", "int32"): "atomic_min({p}, {v})",
    ("max", "int32"): "atomic_max({p}, {v})",
}
_CUDA_CAST = {
    "float32": ("__uint_as_float({})", "__float_as_uint({})"),
    "float64": ("__longlong_as_double({})", "(at_ulong)__double_as_longlong({})"),
    "int64": ("(at_long)({})", "(at_ulong)({})"),
}
_OPENCL_CAST = {
    "float32": ("as_float({})", "as_uint({})"),
    "float64": ("as_double({})", "as_ulong({})"),
    "int64": ("as_long({})", "as_ulong({})"),
}


def joined(op: str, dtype: str, a: str, b: str) -> str:
    """What an update makes of two values."""
    return f"({a} + {b})" if op == "add" and dtype.startswith("float") else f"at_{op}_{dtype}({a}, {b})"


def of_cuda(updates: Collection[Update]) -> str:
    """The functions of CUDA C."""
    out = []
    for op, dtype in sorted(updates):
        head = f"AT_INLINE void at_atomic_{op}_{dtype}({_TYPES[dtype]} *p, {_TYPES[dtype]} v)"
        call = _CUDA.get((op, dtype))
        body = _loop(op, dtype, "", "atomicCAS({p}, {old}, {new})", *_CUDA_CAST.get(dtype, ("", "")))
        device = f"{{ {call.format(p='p', v='v')}; }}" if call else body
        out.append(f"#ifdef AT_EMULATED\n{head} {{ *p = {joined(op, dtype, '*p', 'v')}; }}")
        out.append(f"#else\n{head} {device}\n#endif")
    return "\n".join(out)


def of_opencl(updates: Collection[Update]) -> str:
    """The functions of OpenCL C. Those of 64 bits need cl_khr_int64_base_atomics."""
    out = []
    if any(dtype in ("int64", "float64") for _, dtype in updates):
        out.append("#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable")
    for op, dtype in sorted(updates):
        kind = _TYPES[dtype]
        head = f"static inline void at_atomic_{op}_{dtype}(volatile __global {kind} *p, {kind} v)"
        call = _OPENCL.get((op, dtype))
        swap = ("atom" if dtype in ("int64", "float64") else "atomic") + "_cmpxchg({p}, {old}, {new})"
        body = _loop(op, dtype, "__global ", swap, *_OPENCL_CAST.get(dtype, ("", "")))
        device = f"{{ {call.format(p='p', v='v')}; }}" if call else body
        out.append(f"{head} {device}")
    return "\n".join(out)


def _loop(op: str, dtype: str, space: str, swap: str, of_bits: str, to_bits: str) -> str:
    """Compare and swap until nobody was faster. A value that would change nothing is not written."""
    bits = _BITS[dtype]
    now = joined(op, dtype, of_bits.format("seen"), "v")
    call = swap.format(p="at", old="seen", new="now")
    return (
        f"{{\n  {space}{bits} *at = ({space}{bits} *)p;\n"
        f"  {bits} old = *(volatile {space}{bits} *)at, seen;\n"
        f"  do {{\n    seen = old;\n    const {bits} now = {to_bits.format(now)};\n"
        f"    if (now == seen) break;\n    old = {call};\n  }} while (old != seen);\n}}"
    )
