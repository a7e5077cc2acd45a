"""Arrays that machine code reads by DLPack's C exchange API, of a library made here."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from kernel_cases import add_loaded

from autotune.codegen.runtime import entry, exchange
from schedules.dtypes import DTYPES

DONE, SLOW = 0, 1


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
def describe(array, told):
    """The function of the API: -1 for an array that does not tell."""
    if array.fails:
        return -1
    told[0] = array.told
    return 0


def capsule(major: int = 1):
    words = (ctypes.c_int64 * 7)(major, 0, 0, 0, 0, ctypes.cast(describe, ctypes.c_void_p).value, 0)
    make = ctypes.pythonapi["PyCapsule_New"]
    make.argtypes, make.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
    made = make(ctypes.addressof(words), b"dlpack_exchange_api", None)
    KEPT.append(words)
    return made


KEPT: list[object] = []


class Array:
    """What a library says of an array: here whatever a test wants."""

    __dlpack_c_exchange_api__ = capsule()

    def __init__(self, a: np.ndarray, dtype: str = "float32", *, strides=True, offset=0, device=1) -> None:
        self.a, self.fails = a, False
        self.shape = (ctypes.c_int64 * a.ndim)(*a.shape)
        self.strides = (ctypes.c_int64 * a.ndim)(*(s // a.itemsize for s in a.strides))
        self.told = DLTensor(
            a.ctypes.data - offset, device, 0, a.ndim, DTYPES[dtype].dlpack,
            ctypes.addressof(self.shape), ctypes.addressof(self.strides) if strides else None, offset,
        )  # fmt: skip


exchange.accept(Array)


def arrays(shape, dtype="float32"):
    rng = np.random.default_rng(1)
    return [*(rng.integers(-9, 9, shape).astype(dtype) for _ in range(2)), np.full(shape, 77, dtype)]


def test_rows_agree_with_numpy_about_dlpack() -> None:
    """The number of a dtype is that which numpy's own capsules have."""
    from autotune.run.device_arrays import of_dlpack

    codes = {"int": 0, "uint": 1, "float": 2, "bool": 6}
    for name in (n for n, row in DTYPES.items() if row.module == "numpy"):
        assert of_dlpack(np.zeros(3, name), "x", None).dtype == name
        kind = name.rstrip("0123456789")
        assert DTYPES[name].dlpack == codes[kind] + 8 * np.dtype(name).itemsize * 256 + 65536
    assert DTYPES["bfloat16"].dlpack == 4 + 16 * 256 + 65536


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8"])
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (2, 1, 3, 2)])
def test_they_are_read_where_they_are(dtype, shape) -> None:
    loaded = add_loaded(shape, dtype)
    f, numpy_only = loaded.python_function(True), loaded.python_function()
    a, b, c = arrays(shape, dtype)
    told = [Array(x, dtype) for x in (a, b, c)]
    assert numpy_only(*told) == SLOW and (c == 77).all()
    assert f(*told) == DONE
    np.testing.assert_array_equal(c, a + b)
    c[...] = 77
    assert f(Array(a, dtype, strides=False), b, Array(c, dtype, offset=64)) == DONE
    np.testing.assert_array_equal(c, a + b)


def test_the_stride_of_one_element_has_no_meaning() -> None:
    f = add_loaded((2, 1, 3)).python_function(True)
    a, b, c = arrays((2, 1, 3))
    x = Array(a)
    x.strides[1] = 999
    assert f(x, b, c) == DONE
    np.testing.assert_array_equal(c, a + b)


def wrong(change):
    def make(a):
        x = Array(a)
        change(x)
        return x

    return make


WRONG = {
    "transposed": lambda a: Array(np.asfortranarray(a)),
    "rows apart": lambda a: Array(np.zeros((7, 9), np.float32)[:, :5]),
    "dtype": lambda a: Array(a, "int32"),
    "width": lambda a: Array(a, "float64"),
    "lanes": wrong(lambda x: setattr(x.told, "dtype", 2 + 32 * 256 + 2 * 65536)),
    "device": lambda a: Array(a, device=2),
    "rank": lambda a: Array(a.reshape(35)),
    "more dimensions": lambda a: Array(a.reshape(1, 7, 5)),
    "extent": lambda a: Array(np.zeros((7, 6), np.float32)),
    "misaligned": wrong(lambda x: setattr(x.told, "byte_offset", 2)),
    "no memory": wrong(lambda x: setattr(x, "fails", True)),
    "another type": lambda a: type("Sub", (Array,), {})(a),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(WRONG))
@pytest.mark.parametrize("place", range(3))
def test_what_does_not_fit_is_refused(case, place) -> None:
    f = add_loaded((7, 5)).python_function(True)
    given = arrays((7, 5))
    c = given[2]
    given[place] = WRONG[case](given[place])
    assert f(*given) == SLOW
    assert (c == 77).all()


def test_overlap_is_refused() -> None:
    f = add_loaded((7, 5)).python_function(True)
    a, b, _ = arrays((7, 5))
    assert f(Array(a), b, Array(a)) == SLOW


def test_types_are_accepted_once_and_only_with_the_api() -> None:
    known = len(exchange._known)
    assert exchange.accept(Array) and len(exchange._known) == known
    assert not exchange.accept(int)
    assert not exchange.accept(type("Newer", (), {"__dlpack_c_exchange_api__": capsule(2)}))
    assert not exchange.accept(type("Odd", (), {"__dlpack_c_exchange_api__": "text"}))
    assert len(exchange._known) == known
    words = (ctypes.c_int64 * (exchange.ROW * (known + 1))).from_address(exchange.table())
    assert words[exchange.ROW * (known - 1)] == id(exchange._known[-1]) and words[-2] == 0


def test_layout_of_dltensor() -> None:
    offsets = [getattr(DLTensor, n).offset for n, *_ in DLTensor._fields_]
    named = (entry.DL_DATA_AT, entry.DL_DEVICE_AT, 12, entry.DL_NDIM_AT, entry.DL_DTYPE_AT, entry.DL_SHAPE_AT)
    assert (*named, entry.DL_STRIDES_AT, entry.DL_OFFSET_AT) == tuple(offsets)
    assert ctypes.sizeof(DLTensor) == entry.DL_BYTES
