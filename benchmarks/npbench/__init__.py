"""NPBench's 54 programs, stated in words of our own, beside numpy, numba and gcc."""

from benchmarks.npbench import (
    algebra,
    applications,
    complex_numbers,
    fluids,
    networks,
    solvers,
    statistics,
    stencils,
)

PROGRAMS = {
    p.name: p
    for family in (algebra, applications, complex_numbers, fluids, networks, solvers, statistics, stencils)
    for p in family.PROGRAMS
}
