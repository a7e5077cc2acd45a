"""Types of arrays that machine code reads through DLPack's C exchange API, such as torch.Tensor (ADR 48).

A type offers ``__dlpack_c_exchange_api__``, a capsule with functions in C. One of them tells an array's
address, dtype, shape and strides without making an object (``dltensor_from_py_object_no_sync``, DLPack 1.2).
`entry.at_call` looks the type of an array up in the table of this module, which only grows.
"""

from __future__ import annotations

import ctypes
from threading import Lock
from typing import Any

# Most types in the table.
MAX_TYPES = 8
# Words of a row of the table: the type's address, the function's. The row after the last has zeros.
ROW = 2
_CAPSULE = b"dlpack_exchange_api"
# The API's struct: its version (major and minor, u32), a pointer to an older one, and functions. Ours is
# number 5 of its words of 8 bytes.
_MAJOR, _FUNCTION = 1, 5

_table = (ctypes.c_int64 * (ROW * (MAX_TYPES + 1)))()
_known: list[type] = []  # kept for ever, because their addresses are in the table
_lock = Lock()


def table() -> int:
    """The address of the table."""
    return ctypes.addressof(_table)


def accept(kind: type) -> bool:
    """Have arrays of exactly this type read in machine code from now on. False where the type does not offer
    the API. Only for types all of whose arrays may be read so: the API asks nothing of gradients."""
    with _lock:
        if kind in _known:
            return True
        function = _function(getattr(kind, "__dlpack_c_exchange_api__", None))
        if not function or len(_known) == MAX_TYPES:
            return False
        at = ROW * len(_known)
        # A row counts once its type is there.
        _table[at + 1] = function
        _table[at] = id(kind)
        _known.append(kind)
        return True


def _function(capsule: Any) -> int:
    """The address of the API's function that describes an array, or 0."""
    valid, get = ctypes.pythonapi["PyCapsule_IsValid"], ctypes.pythonapi["PyCapsule_GetPointer"]
    valid.argtypes, valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
    get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    if capsule is None or not valid(capsule, _CAPSULE):
        return 0
    api = get(capsule, _CAPSULE)
    if ctypes.c_uint32.from_address(api).value != _MAJOR:
        return 0
    return int((ctypes.c_int64 * (_FUNCTION + 1)).from_address(api)[_FUNCTION])
