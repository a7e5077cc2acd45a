"""`at.explain`: what it says of schedules by hand, of records and of results, with the source of each."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_runner import run
from grid_cases import sampled
from log_filler import fill, host
from said import said
from small_shapes import SMALL

import autotune as at
from autotune.report.data import Limit
from autotune.report.explain.counters import countable, counted, points
from autotune.report.explain.cpu import register_bytes
from autotune.report.explain.kernel import of_schedule
from autotune.results.explanation import SOURCES, Explanation, Row, Section
from autotune.results.tuned import Best, TuneResult
from autotune.run.workloads import as_workload
from kernels_db.records import NewRecord
from kernels_db.store import Log
from schedules import ops, te
from schedules.ir import Nest
from schedules.ir.interp import OPERATIONS
from schedules.model import Target, Trace
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space.estimate.cpu.facts import analyse
from schedules.te.fusion import by_operation, by_stage, fused

CPU = Target(
    "cpu",
    "znver4",
    limits=(
        ("l1_bytes", 32 << 10),
        ("l2_bytes", 1 << 20),
        ("l3_bytes", 16 << 20),
        ("vector_bytes", 64),
        ("vector_registers", 32),
    ),
)
GPU = Target("cuda", "sm_90", limits=(("sm_threads", 2048), ("sms", 132)))


def matmul(n: int, tile: int, lanes: int = 0) -> Schedule:
    s = Schedule(ops.workload("matmul", {"m": n, "n": n, "k": n}).dag, CPU)
    i, j, k = s.loops("c")
    i0, i1 = s.split(i, tile)
    j0, j1 = s.split(j, tile)
    s.reorder(i0, j0, k, i1, j1)
    if lanes:
        s.vectorize(s.split(j1, lanes)[1])
    return s


def accesses(nest: Nest) -> dict[str, int]:
    """The interpreter's counters of loads and stores."""
    counts = counted(lower(nest))
    counts.pop(OPERATIONS)
    return counts


def fma_dag() -> object:
    a, b, c, d = (te.placeholder((60,), "float32", x) for x in "abcd")
    return te.dag([a, b, c, d, te.compute((60,), lambda i: d[i] + (a[i] + b[i]) * c[i], "e")])


def test_bytes_before_and_after_tiling_are_those_of_the_lecture() -> None:
    n, v = 512, 32
    e = at.explain(matmul(n, v))
    assert e.number("L1 and L2: a", "fetched_bytes") == n**3 // v * 4
    assert e.number("L1 and L2: b", "fetched_bytes") == n**3 // v * 4
    assert e.number("L1 and L2", "after_bytes") == 2 * n**3 // v * 4 + 2 * n * n * 4
    assert e.number("L1 and L2", "before_bytes") > 100 * e.number("L1 and L2", "after_bytes")
    assert "c_i_0 16 x c_j_0 16 x 65.5 KB in c_k = 16.8 MB, 16 times its 1.05 MB" in said(e)
    assert e.number("operations", "operations") == 2 * n**3


def test_the_formula_in_words_follows_from_the_tiles() -> None:
    n = 512
    s = Schedule(ops.workload("matmul", {"m": n, "n": n, "k": n}).dag, CPU)
    i, j, k = s.loops("c")
    i0, i1 = s.split(i, 16)
    j0, j1 = s.split(j, 32)
    s.reorder(i0, j0, k, i1, j1)
    e = at.explain(s)
    assert (e.number("L1 and L2: a", "divisor"), e.number("L1 and L2: b", "divisor")) == (32, 16)
    assert "i·j·k / 32 + i·j·k / 16 elements of a and b; i = 512, j = 512, k = 512" in said(e)
    assert e.number("L1 and L2: sum", "elements") == n**3 // 32 + n**3 // 16
    assert "i·j·k / 64 + i·j·k / 64" in said(at.explain(matmul(512, 64)))
    conv = Schedule(ops.workload("conv2d", {"h": 56, "w": 56, "ci": 64, "co": 64, "k": 3}).dag, CPU)
    x = next(r for s in at.explain(conv).sections for r in s.rows if r.name == "L1 and L2: x")
    assert x.numbers["divisor"] is None  # a window is no quotient


def test_tails_are_counted_from_extents_and_guards() -> None:
    x = te.placeholder((4, 33), "float32", "x")
    k = te.reduce_axis(33, "k")
    s = Schedule([x, te.compute((4,), lambda i: te.sum(x[i, k], axis=k), "y")], CPU)
    s.unroll(s.split("y_k", 8)[1])
    e = at.explain(s)
    assert (e.number("tails", "iterations"), e.number("tails", "run")) == (4 * 40, 4 * 33)
    assert "17.5 % are cut off: 132 of 160 iterations run" in said(e)
    assert "none: every iteration runs" in said(at.explain(matmul(64, 8)))


def test_another_tile_changes_the_text() -> None:
    small, large = (at.explain(matmul(512, v)) for v in (16, 32))
    assert str(small) != str(large)
    assert small.number("L1 and L2: a", "fetched_bytes") == 2 * large.number("L1 and L2: a", "fetched_bytes")
    assert at.explain(matmul(512, 32)) == large and str(at.explain(matmul(512, 32))) == str(large)


def test_vectors_change_what_registers_hold_and_what_bounds_it() -> None:
    scalar, wide = at.explain(matmul(256, 32)), at.explain(matmul(256, 32, lanes=16))
    assert scalar.number("vectors", "lanes") == 1 and wide.number("vectors", "lanes") == 16
    assert "none: one element at a time of 16" in said(scalar)
    assert wide.number("c", "cycles") < scalar.number("c", "cycles") / 8
    assert scalar.number("c", "bound") == "latency of additions"
    assert scalar.number("c", "latency_of_additions_cycles") > scalar.number("c", "arithmetic_cycles")
    half = at.explain(matmul(256, 32, lanes=8))
    assert half.number("vectors", "lane_use") == 0.5


def test_too_few_tasks_for_the_threads_are_told() -> None:
    s = matmul(64, 32)
    s.target = Target("cpu", "znver4", threads=4, limits=CPU.limits)
    s.parallel("c_i_0")
    e = at.explain(s)
    assert e.number("c", "too_few_tasks") == 1 and "only 2 of 4 threads have a task" in said(e)
    assert e.number("cores", "balance") == 0.5


def test_fused_and_unfused_multiply_add() -> None:
    dag = fma_dag()
    assert by_operation(dag).intensity == 1 / 3 and by_operation(dag).kernels == 3
    assert by_stage(dag).intensity == fused(dag).intensity == 3 / 5
    text = said(at.explain(Schedule(dag, CPU)))
    assert "3 kernels: 180 operations / 540 elements = 1/3" in text
    assert "1 kernel: 180 operations / 300 elements = 3/5" in text


def test_fusion_is_read_off_any_program() -> None:
    m, n, k = 8, 16, 4
    dag = ops.workload("matmul_bias_gelu", {"m": m, "n": n, "k": k}).dag
    inputs = m * k + k * n + n
    assert fused(dag).transfers == inputs + m * n
    assert by_stage(dag).transfers == inputs + m * n + 2 * m * n * (len(dag.stages) - 1)
    assert by_operation(dag).transfers > by_stage(dag).transfers
    square = te.placeholder((6,), "float32", "x")
    doubled = te.dag([square, te.compute((6,), lambda i: square[i] * square[i] + 1.0, "y")])
    assert by_operation(doubled).transfers == 6 * (2 + 2)  # x is read once for x·x


def test_counters_are_those_of_the_interpreter() -> None:
    e = at.explain(matmul(16, 8))
    assert (e.number("a", "loads"), e.number("b", "loads")) == (16**3, 16**3)
    assert e.number("a", "stores") == 0
    assert e.number("operations run", "operations") == 2 * 16**3
    assert at.explain(matmul(512, 32)).number("a", "loads") == 512**3


@pytest.mark.slow
def test_what_data_decides_is_counted_on_a_smaller_problem() -> None:
    s = Schedule(ops.workload("argmax", {"m": 1000, "n": 999}).dag, CPU)
    s.split(s.loops(s.blocks()[0])[0], 8)
    small = countable(s)
    assert small is not None and points(small.schedule.dag) <= 100_000 < points(s.dag)
    e = at.explain(s)
    assert e.number("problem", "points") == points(small.schedule.dag)
    assert f"the same trace on a smaller one, {small.words}:" in said(e)
    assert e.number("x", "loads") == accesses(small.schedule.nest)["load x"] < 200_000
    one = Schedule(s.dag, CPU)
    one.split(one.loops(one.blocks()[0])[0], [None, 1000])  # no smaller problem fills the tile
    assert countable(one, most=1000) is None


@pytest.mark.slow
def test_register_traffic_is_what_is_counted_where_sums_go_through_memory() -> None:
    """All but the zeros that sums begin with."""
    nest = matmul(32, 8).nest
    assert register_bytes(analyse(nest)) == 4 * (sum(accesses(nest).values()) - 32 * 32)
    nest = matmul(32, 8, lanes=4).nest  # a vector of a takes one element of it
    assert register_bytes(analyse(nest)) == 4 * (sum(accesses(nest).values()) - 32 * 32 - 32**3 * 3 // 4)


@pytest.mark.fast("conv2d")
@pytest.mark.parametrize("op", ["matmul", "conv2d"])
def test_sums_whose_loops_are_innermost_are_stored_once(op: str) -> None:
    shape = {"m": 32, "n": 32, "k": 32} if op == "matmul" else {"h": 8, "w": 8, "ci": 4, "co": 4, "k": 3}
    s = Schedule(ops.workload(op, shape).dag)
    (name,) = s.dag.outputs
    counts = accesses(s.nest)
    loads = sum(n for key, n in counts.items() if key.startswith("load ") and key != f"load {name}")
    assert register_bytes(analyse(s.nest)) == 4 * loads + s.dag.tensors[name].nbytes


def test_every_number_has_a_source() -> None:
    e = at.explain(matmul(16, 8))
    assert {r.source for s in e.sections for r in s.rows} == {"definition", "estimate", "counter"}
    body = [x for x in e.text(10_000).splitlines() if x.startswith("  ")]
    assert all(re.search(r"  \[(definition|estimate|counter)\]$", x) for x in body)
    with pytest.raises(ValueError, match="the source 'guess' of x is not one of definition, estimate"):
        Row("x", "1", "guess")


def test_lines_end_where_the_terminal_does() -> None:
    text = str(at.explain(matmul(512, 32)))
    assert max(map(len, text.splitlines())) <= 100
    assert not re.search(r"\d\n +(KB|MB|bytes|%)", at.explain(matmul(512, 32)).text(60))
    narrow = at.explain(matmul(512, 32)).text(60)
    assert narrow.split() == text.split() and max(map(len, narrow.splitlines()[10:14])) <= 60


def test_blocks_that_take_little_are_summed_up() -> None:
    s = matmul(256, 32)
    s.cache_read("c", "b")
    e = at.explain(s)
    assert e.number("others", "blocks") == 1 and e.number("c", "share") > 0.97
    assert "Block c" in str(e) and "Block b_global" not in str(e)
    assert re.search(r"others \S+ cycles, [0-2]\.\d % of all, in b_global", said(e))


def test_forms() -> None:
    e = at.explain(matmul(16, 8))
    document = json.loads(json.dumps(e.to_json()))
    assert document["sources"] == dict(SOURCES) and document["title"] == e.title
    assert [s["title"] for s in document["sections"]] == [s.title for s in e.sections]
    assert repr(e).startswith("<Explanation of the expression of c[16, 16]") and len(repr(e)) < 160
    risky = Explanation("<b>", (Section("<i>", (Row("<u>", "<script>", "log"),)),))
    shown = risky._repr_html_()
    assert not any(x in shown for x in ("<b>", "<i>", "<u>", "<script>")) and "&lt;script&gt;" in shown
    with pytest.raises(KeyError):
        e.number("nothing", "x")


def test_a_record_of_the_log_and_the_command(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    fill(db, [("matmul", {"m": 8, "n": 8, "k": 8}, 2e-6)])
    e = at.explain("matmul", m=8, n=8, k=8, threads=1, db=db)
    assert e.number("time", "time_s") == 2e-6
    assert e.number("time", "gflops") == pytest.approx(2 * 8**3 / 2e-6 / 1e9)
    words = ("explain", "matmul", "--shape", "m=8,n=8,k=8", "--threads", 1, "--db", db)
    ran = run(*words)
    assert ran.out.rstrip() == str(e) and not ran.err
    assert run(*words, "--json").json == json.loads(json.dumps(e.to_json()))
    missing = run("explain", "matmul", "--shape", "m=9,n=8,k=8", "--threads", 1, "--db", db)
    assert missing.status == 1
    assert "autotune tune matmul" in missing.err


@pytest.mark.parametrize("op", ["matmul", "matmul_bias_gelu", "quantized_matmul", "softmax"])
def test_operations_are_those_that_tuning_counts(op: str) -> None:
    """Of an operator those of its definition: 2 for each multiply-add, however it is computed."""
    workload = ops.workload(op, SMALL[op])
    e = of_schedule(workload, Schedule(workload.dag, host()), host(), time_s=1e-6)
    assert e.number("operations", "operations") == workload.flops
    assert e.number("time", "gflops") == pytest.approx(workload.flops / 1e-6 / 1e9)

def test_the_share_of_the_limit_is_what_runs_kept(tmp_path: Path) -> None:
    db = tmp_path / "t.db"
    shape = {"m": 8, "n": 8, "k": 8}
    fill(db, [("matmul", shape, 2e-6)])
    before = at.explain("matmul", **shape, threads=1, db=db)
    assert before.number("limit", "share") is None
    asked = "`autotune bench matmul --shape m=8,n=8,k=8 --dtype float32 --threads 1` measures it"
    assert asked in said(before)
    workload = ops.workload("matmul", shape)
    limit = {"seconds": 5e-7, "flops_a_second": 1e11, "bytes_a_second": 5e10}
    with Log(db) as log:
        for machine, s in (("a test", 5e-7), ("a faster one", 1e-7), ("a test", 6e-7)):
            run = log.start_run(workload, host(), {"cpu": machine}, seed=0)
            kept = {"limit": limit | {"seconds": s}}
            log.add(NewRecord(run.uid, 0, "s", Trace(), "timeout", "too slow", environment=kept))
            log.finish_run(run)
    e = at.explain("matmul", **shape, threads=1, db=db)
    assert (e.number("limit", "limit_s"), e.number("limit", "share")) == (5e-7, 0.25)
    assert "25.0 % of what the machine can do: 500 ns at least, by 100 GFLOP/s and 50 GB/s" in said(e)
    assert e.number("balance", "balance") == 2.0
    assert e.number("balance", "intensity") == pytest.approx(2 * 8**3 / (3 * 8 * 8 * 4))
    assert "so bytes are the limit [log]" in said(e)


def limited(seconds: float, time_s: float = 1e-6, dtype: str = "float32") -> Explanation:
    """The explanation of a product that ends in int8, on a machine with this limit."""
    a, b = te.placeholder((8, 8), dtype, "a"), te.placeholder((8, 8), dtype, "b")
    k = te.reduce_axis(8, "k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    workload = as_workload([a, b, c, te.compute((8, 8), lambda i, j: te.cast(c[i, j], "int8"), "d")], {})
    limit = Limit(seconds, 1e9, 1e12)
    return of_schedule(workload, Schedule(workload.dag), CPU, time_s, limit)


def test_what_the_limit_is_that_of() -> None:
    """The dtype of an output says nothing of it, and no row says otherwise than another."""
    arithmetic_s = 2 * 8**3 / 1e9
    e = limited(arithmetic_s, 2e-6)
    assert e.number("balance", "limit") == e.number("machine's limit", "limit") == "arithmetic"
    assert "so arithmetic is the limit [log]" in said(e)
    longer = limited(3 * arithmetic_s, 5e-6)  # by another version, perhaps: it has no special functions
    assert longer.number("machine's limit", "limit") == "arithmetic"
    gelu = ops.workload("matmul_bias_gelu", {"m": 8, "n": 8, "k": 8})
    e = of_schedule(gelu, Schedule(gelu.dag), CPU, 1e-3, Limit(1e-3, 1e9, 1e12))
    assert e.number("machine's limit", "limit") == "special functions"
    assert "but special functions are the limit" in said(e)
    whole = limited(576e-12, 1e-9, "int32")  # arithmetic of integers takes no time in a limit
    assert whole.number("balance", "limit") == whole.number("machine's limit", "limit") == "bytes"
    other = str(whole.number("c", "bound"))
    assert other == "arithmetic"  # vectors multiply integers in two steps
    assert f"that of bytes; by the estimate this schedule takes longer, with {other}" in said(whole)


def test_the_limit_of_an_instruction_names_it() -> None:
    a, b = te.placeholder((64, 64), "uint8", "a"), te.placeholder((64, 64), "int8", "b")
    k = te.reduce_axis(64, "k")
    w = as_workload([a, b, te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")], {})
    peak, needs = 1e12, 2 * 64**3 / 1e12
    rates = {"flops_a_second": peak, "bytes_a_second": 1e12, "vpdpbusd_a_second": peak}
    limit = Limit.of({"seconds": needs, **rates})
    assert limit is not None and limit.by == "vpdpbusd" == limit.instruction(w)
    e = of_schedule(w, Schedule(w.dag), CPU, 2 * needs, limit)
    assert "50.0 % of the peak of vpdpbusd: 524 ns at least, by 1000 GFLOP/s" in said(e)
    assert e.number("limit", "peak_of") == "vpdpbusd" and e.number("balance", "limit") == "arithmetic"
    slow = Limit(3 * needs, peak, 8e9, limit.instructions)  # bytes take as long
    assert slow.instruction(w) is None
    e = of_schedule(w, Schedule(w.dag), CPU, 6 * needs, slow)
    assert "50.0 % of what the machine can do" in said(e) and e.number("balance", "limit") == "bytes"
    best = Best(2 * needs, 1.0, 0.5, Schedule(w.dag).trace, "ab12", "vpdpbusd")
    result = TuneResult(w, host(), best, 1, {}, 0, 1.0, 0, "trials")
    assert "50.0 % of the peak of vpdpbusd" in said(result.explain())


def test_a_limit_that_was_disturbed_is_none() -> None:
    e = limited(2e-6, 1e-6)
    assert e.number("limit", "share") == 2.0 and e.number("limit", "peak_disturbed") is True
    assert "it was disturbed when measured, as 2 us at least are more than the time" in said(e)
    assert "200" not in said(e) and "balance" not in said(e) and "machine's limit" not in said(e)
    assert limited(1e-6, 1e-6).number("limit", "peak_disturbed") is False


def test_a_core_needs_operations_of_its_dtype() -> None:
    def needed(dtype: str) -> float:
        s = Schedule(ops.workload("matmul", {"m": 64, "n": 64, "k": 64}, dtype).dag, CPU)
        return float(at.explain(s).number("L1 and L2", "balance"))

    assert needed("float32") == 2 * needed("float64") == needed("float16")
    assert limited(1e-6).number("L1 and L2", "balance") == needed("float32")  # though its output is int8
    assert limited(1e-6, dtype="float64").number("L1 and L2", "balance") == needed("float64")


def test_a_result_explains_its_best() -> None:
    w = ops.workload("matmul", {"m": 16, "n": 16, "k": 16})
    best = Best(1e-6, 8.192, 0.5, matmul(16, 8).trace, "ab12")
    result = TuneResult(w, host(), best, 1, {}, 0, 1.0, 0, "trials")
    assert result.explain().number("time", "time_s") == 1e-6
    assert result.explain().number("limit", "limit_s") == 0.5e-6
    none = TuneResult(w, host(), None, 1, {}, 0, 1.0, 0, "trials")
    with pytest.raises(at.ScheduleError, match="no valid schedule of matmul was found"):
        none.explain()


@pytest.mark.slow
def test_a_gpu_has_occupancy_and_coalescing() -> None:
    dag = ops.workload("matmul", {"m": 64, "n": 64, "k": 64}).dag
    trace = next(iter(sampled(dag, 1)))[1]
    s = Schedule.replay(dag, trace, GPU)
    e = at.explain(s)
    assert 0 < e.number("occupancy", "occupancy") <= 1
    assert e.number("occupancy", "limited_by") in ("threads", "shared memory", "registers", "blocks")
    assert 0 <= e.number("coalescing", "share") <= 1
    assert e.number("grid", "threads") >= 1 and "L1 and L2" not in said(e)
