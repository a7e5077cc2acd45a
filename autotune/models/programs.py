"""Which kind of program runs a model: by what its kernels are loaded on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from autotune.errors import ModelError
from autotune.models.device_program import DeviceProgram
from autotune.models.outline import Outline
from autotune.models.program import Program, RunIsland
from autotune.run.kernel import Kernel

AnyProgram = Program | DeviceProgram


def program_of(
    outline: Outline,
    kernels: Sequence[Kernel],
    value_of: Callable[[str], NDArray[Any]],
    run_island: RunIsland,
    *,
    mine: bool = False,
) -> AnyProgram:
    """The program of kernels that all run in one place: in this process, or on one device. Emulated kernels
    run in this process. Arguments: as of `Program.of`. Raises `ModelError` for kernels of several places."""
    places = {id(d): d for k in kernels if (d := getattr(k.code, "device", None)) is not None}
    if not places:
        return Program.of(outline, kernels, value_of, run_island, mine=mine)
    if len(places) > 1 or any(getattr(k.code, "device", None) is None for k in kernels):
        kinds = ", ".join(sorted({f"{k.target.kind} {k.target.arch}" for k in kernels}))
        raise ModelError(
            f"the kernels of this model are for several devices ({kinds}), and a model runs on one: tune it "
            "for that one, or compile it with fallback=True"
        )
    return DeviceProgram.of(outline, kernels, value_of, run_island)
