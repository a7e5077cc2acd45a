"""The loop-nest IR: its nodes (`nodes`), what is known of them, and the interpreter (`interp`), which says
what they mean."""

from schedules.ir.nodes import (
    GPU_AXES,
    LOOP_KINDS,
    SCOPES,
    Access,
    Alloc,
    AllReduce,
    Barrier,
    Block,
    Buffer,
    Guard,
    Intrinsic,
    Iter,
    Loop,
    LoweredFunc,
    Nest,
    Operand,
    Prefetch,
    Seq,
    Stmt,
    Store,
    allocated,
    allocations,
    blocks,
    bound_to,
    const,
    in_order,
    kids,
    loop_nest,
    loops_around,
    multiply_add,
    path_to,
    seq,
    skew,
    walk,
    with_body,
)
from schedules.ir.strides import nbytes, rows_are_lines

__all__ = [
    "Access", "AllReduce", "Alloc", "Barrier", "Block", "Buffer", "GPU_AXES", "Guard", "Intrinsic", "Iter",
    "LOOP_KINDS", "Loop", "LoweredFunc", "Nest", "Operand", "Prefetch", "SCOPES", "Seq", "Stmt", "Store",
    "allocated", "allocations", "blocks", "bound_to", "const", "in_order", "kids", "loop_nest",
    "loops_around", "multiply_add", "nbytes", "path_to", "rows_are_lines", "seq", "skew", "walk", "with_body",
]  # fmt: skip
