"""The benchmark that counts machine code of products on matrix units."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from schedules.expr import Const
from schedules.ir import Buffer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
bench = importlib.import_module("matrix_units")

LISTING = """
.L_x_0:
        /*0000*/                   LDG.E R2, [R2] ;
        /*0010*/              @P0  BRA `(.L_x_0) ;
.L_x_1:
        /*0020*/                   LDSM.16.M88.4 R4, [R2] ;
        /*0030*/              @!P1 LDGSTS.E.BYPASS.128 [R3], [R8.64] ;
        /*0040*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0050*/                   HMMA.16816.F32 R12, R4, R7, R12 ;
        /*0060*/              @P0  BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
"""


def test_the_loop_with_most_products_is_counted() -> None:
    found = bench.main_loop(LISTING)
    assert found == {"LDSM": 1, "LDGSTS": 1, "HMMA": 2, "BRA": 1}


@pytest.mark.parametrize(
    ("columns", "swizzle", "turns"), [(64, 0, 8), (64, 128, 1), (256, 128, 1), (32, 128, 1)]
)
def test_rows_that_are_read_at_once_lie_in_different_banks(columns: int, swizzle: int, turns: int) -> None:
    b = Buffer("b", (Const(16), Const(columns)), "float16", "shared", swizzle=swizzle)
    assert bench.bank_turns(b) == turns
