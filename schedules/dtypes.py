"""The dtypes that tensors may have, in one table.

float16 is for storage: an element is widened to float32 wherever something is computed with it, and a cast
rounds what is stored. So no layer has arithmetic in half precision, only conversions from and to float32.
"""

from __future__ import annotations

HALF = "float16"
ITEMSIZE = {HALF: 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}  # bytes of an element
DTYPES = tuple(ITEMSIZE)


def bound_dtype(dtype: str) -> str:
    """What says how far outputs of ``dtype`` may be from a reference: of float64 in float64, of others in
    float32."""
    return "float64" if dtype == "float64" else "float32"
