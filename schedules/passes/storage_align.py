"""Pads rows of scratch buffers so that they do not all fall into the same sets of a cache.

Addresses that differ by a multiple of a cache's size over its ways share a set (4 KiB for a first cache of 32
KiB with 8 ways). A register tile walks several rows at once. If those are a power of two of bytes apart, it
evicts its own lines. One more line a row spreads them (Lam, Rothberg and Wolf, 1991; `storage_align` of TVM).
Arrays of the caller are not padded. Nor is shared memory of a GPU, which has banks: its schedule pads that.
"""

from __future__ import annotations

from schedules.dtypes import DTYPES
from schedules.ir import Alloc, Buffer, Stmt, const, with_body
from schedules.ir.strides import elements, resized, row_elements
from schedules.model import LINE

# Distance of rows (bytes) at whose multiples they use only two places of a first cache.
APART = 2048


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
