"""Rows of scratch buffers that do not all fall into the same sets of a cache.

Addresses that differ by a multiple of a cache's size over its ways (4 KiB for a first cache of 32 KiB and 8
ways) share a set. A register tile walks several rows at once: where those are a power of two of bytes
apart, the tile evicts itself. One line more a row spreads them (Lam, Rothberg and Wolf, 1991; `storage_align`
of TVM). Arrays of the caller keep the layout they have, and so does what threads of a GPU share: that lies in
banks, against which its schedule pads it.
"""

from __future__ import annotations

from schedules.dtypes import DTYPES
from schedules.ir import Alloc, Buffer, Stmt, const, with_body
from schedules.ir.strides import elements, resized, row_elements
from schedules.model import LINE

APART = 2048  # rows at a multiple of this fall into two places of a first cache


def storage_align(s: Stmt) -> Stmt:
    """``s`` with a line between the rows of scratch buffers that lie a multiple of ``APART`` bytes apart."""
    if isinstance(s, Alloc):
        return Alloc(_spread(s.buffer), storage_align(s.body))
    return with_body(s, storage_align)


def _spread(b: Buffer) -> Buffer:
    if b.scope == "shared" or len(b.shape) < 2 or any(const(n) is None for n in b.shape):
        return b
    item = DTYPES[b.dtype].itemsize
    row = row_elements(b)
    if row * item < APART or row * item % APART or elements(b) == row:
        return b
    return resized(b, b.shape, LINE // item)
