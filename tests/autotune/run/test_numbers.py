"""Numbers in the place of inputs without dimensions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import buffer
from needs import imported

import autotune as at
from autotune.errors import ArgumentError
from autotune.run.host_arrays import number
from schedules.dtypes import DTYPES

te = at.te
NAMES = sorted(DTYPES)


def scaled(dtype: str) -> at.Kernel:
    """y = x * s in ``dtype``."""
    x, s = te.placeholder((5,), dtype, "x"), te.placeholder((), dtype, "s")
    return at.build(at.Schedule([x, s, te.compute((5,), lambda i: x[i] * s[()], "y")]), threads=1)


@pytest.fixture(scope="module", params=["float64", "int32"])
def kernel(request: pytest.FixtureRequest) -> at.Kernel:
    return scaled(request.param)


@pytest.mark.parametrize("wrong", ["3", None, 3j, [3.0]])
def test_what_is_no_number_is_told_that_one_does(kernel: at.Kernel, wrong: Any) -> None:
    x = np.arange(5).astype(kernel.parameters[0][0].dtype)
    with pytest.raises(
        ArgumentError, match="^input 's' is a .* buffer: give a number, or a numpy array of no"
    ):
        kernel(x, wrong)


def test_a_number_is_as_good_as_an_array(kernel: at.Kernel) -> None:
    dtype = kernel.parameters[0][0].dtype
    x = np.arange(5).astype(dtype)
    for s in (3, np.array(3, dtype), DTYPES[dtype].numpy.type(3)):
        assert np.array_equal(kernel(x, s), x * 3)
        assert np.array_equal(kernel(x, s=s), x * 3)
        out = np.empty_like(x)
        assert kernel(x, s, out=out) is out and np.array_equal(out, x * 3)


def test_a_call_with_a_number_takes_the_fast_path(kernel: at.Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any) -> None:
        raise AssertionError("slow")

    monkeypatch.setattr(at.Kernel, "_slow", slow)
    x = np.arange(5).astype(kernel.parameters[0][0].dtype)
    assert np.array_equal(kernel(x, 2), x * 2)


def test_a_number_beside_tensors() -> None:
    torch = imported("torch")
    y = scaled("float64")(torch.arange(5, dtype=torch.float64), 2.5)
    assert isinstance(y, torch.Tensor) and y.tolist() == [0.0, 2.5, 5.0, 7.5, 10.0]


@pytest.mark.slow
def test_a_number_in_a_compiled_function() -> None:
    torch = imported("torch")
    k = scaled("float64")
    f = torch.compile(lambda x, s: k(x, s) + k(x, 2), backend="aot_eager", fullgraph=True)
    x = torch.arange(5, dtype=torch.float64)
    assert f(x, 3.0).tolist() == (x * 5.0).tolist() == f(x, torch.tensor(3.0, dtype=torch.float64)).tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # nothing is tuned
def test_a_number_beside_arrays_of_any_size() -> None:
    n = at.dim(1, 8)
    x, s = te.placeholder((n,), "float64", "x"), te.placeholder((), "float64", "s")
    program = [x, s, te.compute((n,), lambda i: x[i] * s[()], "y")]
    k = at.load(program, threads=1, fallback=True)
    assert k(np.arange(3.0), 2.0).tolist() == [0.0, 2.0, 4.0]


def test_a_number_is_no_array_of_one(kernel: at.Kernel) -> None:
    x = np.arange(5).astype(kernel.parameters[0][0].dtype)
    with pytest.raises(ArgumentError, match="input 'x'"):
        kernel(3, 3)
    with pytest.raises(ArgumentError, match="output 'y'"):
        kernel(x, 3, out=3)


def _taken(x: Any, dtype: str) -> bool:
    """The rule: of its kind, and in its range."""
    row = DTYPES[dtype]
    if isinstance(x, bool) or row.kind == "bool":
        return isinstance(x, bool) and row.kind == "bool"
    if row.kind == "int":
        return (isinstance(x, int) or x.is_integer()) and int(x) in row.range
    return x != x or abs(x) == math.inf or abs(x) <= row.largest


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(-300, 300),
    st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**63, 2**70, 10**400, -(10**400)]),
    st.floats(width=64),
)


@settings(max_examples=300)
@given(x=NUMBERS, dtype=st.sampled_from(NAMES))
def test_numbers_of_python(x: Any, dtype: str) -> None:
    if not _taken(x, dtype):
        with pytest.raises(ArgumentError, match="input 's' is "):
            number(x, buffer("s", (), dtype))
        return
    a = number(x, buffer("s", (), dtype))
    want = np.array(x if DTYPES[dtype].kind != "float" else float(x)).astype(DTYPES[dtype].numpy)
    assert a.shape == () and a.dtype == DTYPES[dtype].numpy
    assert a == want or (a != a and want != want)


@given(given_=st.sampled_from(NAMES), dtype=st.sampled_from(NAMES))
def test_numbers_of_numpy_are_taken_as_those_of_python(given_: str, dtype: str) -> None:
    x = DTYPES[given_].numpy.type(1)
    if (given_ == "bool") == (dtype == "bool"):
        a = number(x, buffer("s", (), dtype))
        assert a == 1 and a.dtype == DTYPES[dtype].numpy
    else:
        with pytest.raises(ArgumentError, match=f"but the kernel takes {dtype}: give "):
            number(x, buffer("s", (), dtype))


EVERY = [True, 0, 3, -1, 128, 2**31, -(2**63), 2**63, 10**400, 2.5, 3.0, -0.0, 1e300, 3.4028235677973366e38,
math.inf,
         math.nan, *(DTYPES[n].numpy.type(1) for n in NAMES), np.float64(2.5), np.float64(1e300),
         np.int64(-5), np.uint64(2**63)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NAMES)
def test_machine_code_takes_numbers_as_python_does(dtype: str) -> None:
    """A copy of the input, made of a number in machine code, has the bits that `number` gives, or both
    refuse."""
    s = te.placeholder((), dtype, "s")
    k = at.build(at.Schedule([s, te.compute((1,), lambda i: s[()], "y")]), threads=1)
    for x in EVERY:
        try:
            want = number(x, k.parameters[0][0])
        except ArgumentError as err:
            with pytest.raises(ArgumentError) as got:
                k(x)
            assert str(got.value) == str(err)
            continue
        assert k(x).tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32", "bool", "float16"])
def test_a_number_costs_what_an_array_costs(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first try, in machine code, takes it: nothing else is asked."""
    s = te.placeholder((), dtype, "s")
    k = at.build(at.Schedule([s, te.compute((1,), lambda i: s[()], "y")]), threads=1)
    monkeypatch.setattr(at.Kernel, "_of_others", None)
    given_: list[Any] = [DTYPES[dtype].numpy.type(1)]
    given_ += (
        {"float": [1.0, 1], "int": [1], "bool": [True]}[DTYPES[dtype].kind] if dtype != "float16" else []
    )
    for x in given_:
        assert k(x) == [1]


def test_a_float_with_a_fraction_is_no_integer() -> None:
    k, x = scaled("int32"), np.arange(5, dtype="int32")
    assert k(x, 3.0).tolist() == [0, 3, 6, 9, 12]
    with pytest.raises(
        ArgumentError, match="input 's' is 2.5, but the kernel takes int32, which has whole numbers"
    ):
        k(x, 2.5)
    with pytest.raises(
        ArgumentError, match="input 's' is outside the range of int32: give a number inside it"
    ):
        k(x, 2**31)


@pytest.mark.parametrize("x", ["3", None, 3j, [3]])
def test_what_is_no_number(kernel: at.Kernel, x: Any) -> None:
    with pytest.raises(ArgumentError, match="input 's' is a"):
        kernel(np.zeros(5, kernel.parameters[0][0].dtype), x)
