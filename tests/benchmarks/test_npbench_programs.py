"""The programs of the suite at small sizes: numpy's words, the loops, and what is compiled agree."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.npbench import PROGRAMS  # noqa: E402
from benchmarks.npbench.compare import gcc_peer  # noqa: E402
from benchmarks.npbench.kernels import kernels  # noqa: E402
from benchmarks.npbench.program import copied, distance, looped, made, refer, sized  # noqa: E402
from benchmarks.npbench.timed import Timed  # noqa: E402

SUITE = """
adi arc_distance atax azimint_hist azimint_naive bicg cavity_flow channel_flow cholesky cholesky2
compute contour_integral conv2d_bias correlation covariance covariance2 crc16 deriche doitgen durbin
fdtd_2d floyd_warshall gemm gemver gesummv go_fast gramschmidt hdiff heat_3d jacobi_1d jacobi_2d
k2mm k3mm lenet lu ludcmp mandelbrot1 mandelbrot2 mlp mvt nbody nussinov resnet
scattering_self_energies seidel_2d softmax spmv stockham_fft symm syr2k syrk trisolv trmm vadv
""".split()
CASES = [(preset, dtype) for preset in ("tiny", "odd") for dtype in ("float64", "float32")]


def test_every_program_of_the_suite_is_stated() -> None:
    assert sorted(PROGRAMS) == SUITE


@pytest.mark.parametrize("name", SUITE)
def test_kernels_compute_what_numpy_does(name: str) -> None:
    program = PROGRAMS[name]
    for preset, dtype in CASES:
        p = sized(program, preset)
        arrays = made(program, p, dtype)
        found = program.run(kernels(program, p, dtype, "plain"), copied(arrays), p)
        most = program.rtol if dtype == "float64" else program.rtol32
        assert distance(found, refer(program, p, arrays)) <= most, (preset, dtype)


@pytest.mark.parametrize("name", SUITE)
def test_loops_compute_what_numpy_does(name: str) -> None:
    program = PROGRAMS[name]
    for preset in ("tiny", "odd"):
        p = sized(program, preset)
        arrays = made(program, p, "float64")
        assert distance(looped(program, p, arrays), refer(program, p, arrays)) <= program.rtol, preset


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITE)
def test_loops_in_c_compute_what_numpy_does(name: str, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    program = PROGRAMS[name]
    for dtype in ("float64", "float32"):
        p = sized(program, "odd")
        arrays = made(program, p, dtype)
        most = program.rtol if dtype == "float64" else program.rtol32
        found = gcc_peer(program, p, arrays, dtype, tmp_path).result
        assert distance(found, refer(program, p, arrays)) <= most, dtype


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITE)
def test_first_picks_compute_what_numpy_does(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    p = sized(program, "odd")
    for dtype in ("float64", "float32"):
        arrays = made(program, p, dtype)
        ready = kernels(program, p, dtype, "first", str(tmp_path / "log.db"))
        most = program.rtol if dtype == "float64" else program.rtol32
        assert distance(program.run(ready, copied(arrays), p), refer(program, p, arrays)) <= most, dtype


def test_a_difference_in_one_element_is_seen() -> None:
    want = np.array([1.0, np.nan, 4.0])
    assert distance([np.array([1.0, np.nan, 4.0])], [want]) == 0.0
    assert distance([np.array([1.0, np.nan, 3.0])], [want]) == 0.25
    assert distance([np.array([1.0, 2.0, 4.0])], [want]) == np.inf
    with pytest.raises(ValueError, match=r"has shape \(1, 3\), not \(3,\)"):
        distance([want[None]], [want])


def test_what_a_call_changes_is_put_back() -> None:
    def call(a: object) -> None:
        a.x += 1.0  # type: ignore[attr-defined]

    timed = Timed({"x": np.zeros(3), "y": np.ones(2)}, call)
    assert timed.changed == ["x"]
    assert timed.seconds() >= 0.0 and timed.seconds() >= 0.0
    assert np.array_equal(timed.own.x, np.ones(3))
