"""Extents that know their size: their arithmetic says the same as numbers do, at every size."""

import copy
import math
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import expr as E
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Const
from schedules.te.compute_dag import Axis, ComputeDAG, Stage
from schedules.te.dims import dim
from schedules.te.extent import Extent, is_open
from schedules.te.marks import is_marked, marked, unmarked
from schedules.te.open_sizes import at

N, M = dim(1, 24, "n", open=True), dim(1, 24, "m", open=True)
n, m = Extent(N), Extent(M)
SIZES = [(1, 1), (2, 1), (1, 3), (7, 5), (23, 24), (24, 24)]


def at_size(x, a, b):
    return x.at({N: a, M: b}) if is_open(x) else x


def test_an_extent_is_the_number_of_the_largest_size():
    assert n == 24 and hash(n) == hash(24) and isinstance(n, int) and int(n) == 24
    assert not is_open(int(n)) and is_open(n) and not is_open(24)
    assert (repr(n), f"{n * 2 + 1}", f"{n:04d}") == ("n", "n * 2 + 1", "0024")


def test_shapes_keep_their_sizes():
    shape = (2, n, 64)
    assert math.prod(shape).expr == (n * 128).expr
    assert not is_open(math.prod(shape) // (n * 16)) and math.prod(shape) // (n * 16) == 8
    assert math.prod((n, m, 64)) // (n * 64) == m and (math.prod((n, m, 64)) // (n * 64)).expr is M
    assert (n + n).expr == (2 * n).expr and sum(shape).expr == (n + 66).expr
    assert n - n == 0 and not is_open(n - n) and not is_open((n + 4) - n)
    assert repr(-(-n // 8)) == "ceildiv(n, 8)"
    assert repr((n * 64 + 32) // 64) == "n" and repr((n - 3) // 2 + 1) == "(n + 1) // 2 - 1"
    assert n * 0 == 0 and not is_open(n * 0) and is_open(n * 1)


OPERATIONS = (operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod)
NUMBERS = (-3, -1, 0, 1, 2, 5, 64)
LEAVES = [(n, lambda a, b: a), (m, lambda a, b: b), *((k, lambda a, b, k=k: k) for k in NUMBERS)]


def joined(op, left, right):
    """(an extent or a number, a function that says what it is at two sizes)."""
    (x, f), (y, g) = left, right
    try:
        made = op(x, y)
    except (WorkloadError, ZeroDivisionError):
        return left
    return made, lambda a, b: op(f(a, b), g(a, b))


leaves = st.sampled_from(LEAVES)
pairs = leaves
for _ in range(3):
    pairs = st.builds(joined, st.sampled_from(OPERATIONS), pairs, leaves | pairs)


@settings(max_examples=100, deadline=None)
@given(pairs)
def test_arithmetic_says_what_numbers_do_at_every_size(pair):
    extent, number = pair
    for a, b in SIZES:
        try:
            expected = number(a, b)
        except ZeroDivisionError:  # the divisor is 0 at this size
            continue
        assert at_size(extent, a, b) == expected
    if not is_open(extent):
        assert type(extent) is int


def test_a_remainder_is_a_number_where_it_is_the_same_at_all_sizes():
    assert (n * 64) % 64 == 0 and (n * 64 + 5) % 64 == 5 and (n * m) % n == 0
    assert divmod(n * 64, 64)[0].expr is N
    few = Extent(dim(4, 7, open=True))
    assert few // 4 == 1 and not is_open(5 // Extent(dim(6, 9, open=True)))
    with pytest.raises(WorkloadError, match=r"n % 2 is no extent at every size of n=1..24; fix that size"):
        n % 2
    with pytest.raises(WorkloadError, match=r"n // m is no extent at every size of n=1..24, m=1..24"):
        n // m
    with pytest.raises(ZeroDivisionError):
        n // 0


@pytest.mark.parametrize(
    "use",
    [
        lambda: 1 / n, lambda: n / 2, lambda: n * 0.5, lambda: n + 0.5, lambda: n**2, lambda: 2**n,
        lambda: n << 1, lambda: 1 << n, lambda: n & 3, lambda: n | 1, lambda: 3 ^ n, lambda: ~n,
        lambda: float(n), lambda: math.sqrt(n),
    ],
)  # fmt: skip
def test_what_no_extent_can_be_is_refused(use):
    with pytest.raises(WorkloadError, match=r"the extent n depends on an open size.*te.cast\(extent"):
        use()


def test_an_extent_needs_an_open_size():
    for e in (Const(4), dim(1, 4, open=False), dim(1, 4, open=False) * 2 + N):
        with pytest.raises(WorkloadError, match="has no open size"):
            Extent(e)


def test_numpys_integers_are_integers():
    assert (n * np.int64(2)).expr == (n * 2).expr and (n + np.int32(1)).expr == (n + 1).expr


def test_copies_and_pickles_keep_the_size():
    assert copy.copy(n * 2).expr == (n * 2).expr and copy.deepcopy([n, m])[1].expr is M
    one, two = pickle.loads(pickle.dumps([n, n * 2]))
    assert (one * 2).expr == two.expr and one == 24 and not is_open(one * 2 - two)


# -- in te -----------------------------------------------------------------------------------------


def summed(extent=n):
    x, k = te.placeholder((4, extent, 6), name="x"), te.reduce_axis(extent, "k")
    return [x, te.compute((4, 6), lambda b, j: te.sum(x[b, k, j], axis=k), "y")]


def test_te_takes_extents_as_it_takes_dimensions():
    assert te.dag(summed()).to_json() == te.dag(summed(N)).to_json()
    assert te.dag(summed(n * 2 + 1)).to_json() == te.dag(summed(N * 2 + 1)).to_json()
    assert te.placeholder((n, 4)).shape[0].expr is N
    dag = te.dag(summed())
    assert all(type(k) is int for t in dag.tensors.values() for k in t.shape)
    assert te.dag(summed(), {N: 5}) == at(dag, {"n": 5})
    assert te.dag(summed(Extent(dim(3, 3, open=True)))).open is None


def test_an_extent_in_an_index_or_a_value_is_the_size_of_a_call():
    def made(k):
        x = te.placeholder((k, 6), name="x")
        number = te.cast(k, "float32")
        for value in (lambda j: x[k - 1, j], lambda j: x[0, j] * k, lambda j: x[0, j] / number):
            yield te.dag([x, te.compute((6,), value, "y")])

    for open_, five in zip(made(n), made(5), strict=True):
        assert at(open_, {"n": 5}) == five
    x = te.placeholder((n, 6), name="x")
    with pytest.raises(WorkloadError, match=r"index 0 of x\[23, j\] cannot be proved below n"):
        te.dag([x, te.compute((6,), lambda j: x[23, j], "y")])


def test_a_row_that_is_looked_up_in_an_open_dimension_is_held_inside_at_each_size():
    def made(k):
        x, rows = te.placeholder((k, 6), name="x"), te.placeholder((3,), "int32", "rows")
        return te.dag([x, rows, te.compute((3, 6), lambda i, j: x[rows[i], j], "y")])

    assert at(made(n), {"n": 5}) == made(5)


def test_equal_numbers_of_two_sizes_are_told_apart():
    x, k = te.placeholder((n, 6), name="x"), te.reduce_axis(m, "k")
    y = te.placeholder((m,), name="y")
    with pytest.raises(WorkloadError, match=r"stage z: index 0 of x\[k, j\] cannot be proved below n"):
        te.dag([x, y, te.compute((6,), lambda j: te.sum(x[k, j] * y[k], axis=k), "z")])


# -- marked DAGs -----------------------------------------------------------------------------------


def test_a_marked_dag_is_equal_to_the_unmarked_one():
    dag = te.dag(summed())
    both = marked(dag)
    assert is_marked(both) and not is_marked(dag)
    assert both == dag and both.to_json() == dag.to_json() and both.open == dag.open
    assert marked(both) is both and unmarked(dag) is dag
    back = unmarked(both)
    assert back == dag and not is_marked(back)
    assert not is_marked(both.largest) and both.largest == dag.largest
    assert at(both, {"n": 5}) == at(dag, {"n": 5}) and not is_marked(at(both, {"n": 5}))
    assert not is_marked(pickle.loads(pickle.dumps(both))) and pickle.loads(pickle.dumps(both)) == dag


def test_numbers_that_were_seen_before_have_no_sizes():
    """An extent equals a number and hashes alike, so that what is remembered by numbers could bring one in
    the place of the other."""
    for first, then in ((n, 24), (24, n), (n, 24)):
        made = [te.dag(summed(k)) for k in (first, then)]
        assert [d.open is not None for d in made] == [is_open(first), is_open(then)]
        literals = (x for d in made for v in d.stages[0].values for x in E.walk(v) if isinstance(x, Const))
        assert not any(is_open(x.value) for x in literals)


def changed(dag, axis=None, reduce=None, shape=None, value=None):
    """A marked DAG with other extents in its stage."""
    s = dag.stages[0]
    axes = s.axes if axis is None else (Axis(s.axes[0].var, axis), *s.axes[1:])
    reduce_axes = s.reduce_axes if reduce is None else (Axis(s.reduce_axes[0].var, reduce),)
    outputs = s.outputs
    if shape is not None:
        outputs = (type(outputs[0])(outputs[0].name, shape, outputs[0].dtype),)
    values = s.values if value is None else (value(s.values[0]),)
    return ComputeDAG(dag.inputs, (Stage(outputs, axes, reduce_axes, values, s.reducer),), dag.outputs)


def doubled(extent=n):
    x = te.placeholder((extent, 6), name="x")
    return [x, te.compute((extent, 6), lambda i, j: x[i, j] * 2.0, "y")]


def test_a_mark_that_was_lost_is_found():
    dag = marked(te.dag(summed()))
    with pytest.raises(ValueError, match=r"stage y: index 1 of x\[b, k, j\] cannot be proved below n"):
        changed(dag, reduce=24)  # the number of the largest size
    dag = marked(te.dag(doubled()))
    size = dag.stages[0].axes[0].extent
    assert changed(dag, axis=size, shape=(size, 6)) == dag
    with pytest.raises(ValueError, match="stage y: axis i has n points and y 24 elements along it"):
        changed(dag, axis=size, shape=(24, 6))
    with pytest.raises(ValueError, match="stage y: axis i has 24 points and y n elements along it"):
        changed(dag, axis=24, shape=(size, 6))
    with pytest.raises(ValueError, match="stage y: axis i has m points and y n elements along it"):
        changed(dag, axis=m, shape=(size, 6))


def test_a_literal_that_is_an_extent_is_found():
    dag = marked(te.dag(doubled()))
    size = dag.stages[0].axes[0].extent
    with pytest.raises(ValueError, match="stage y: a value has the open extent n in the place of a number"):
        changed(dag, value=lambda v: v * Const(size, "float32"))
