"""Counts the instructions of CUDA's machine code with NVIDIA's disassembler (wheel of extra ``cuda``, or on
the path). It takes a few tenths of a second a kernel: it is asked where a person looks, not for each
candidate.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from autotune.codegen.simt.nvrtc import in_wheel
from kernels_db.temporary import temporary_folder

# Instructions that are counted by name: matrix units (those of Hopper and of Blackwell too), arithmetic,
# memory, and what waits. Source: CUDA Binary Utilities, *Instruction Set Reference*.
WATCHED = (
    "HMMA", "IMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "QGMMA", "FFMA", "LDGSTS", "LDSM", "LDS", "STS", "LDG",
    "STG", "LDL", "STL", "BAR",
)  # fmt: skip
TOTAL = "instructions"
_SECTION = re.compile(r"^\.text\.(\w+):")
_CODE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")


def tool() -> Path | None:
    """The disassembler, None where there is none."""
    found = in_wheel("cu13/bin/nvdisasm") or shutil.which("nvdisasm")
    return None if found is None else Path(found)


def counts(cubin: bytes) -> dict[str, dict[str, int]]:
    """{kernel: {instruction: how often it stands in the code}} for those of `WATCHED` that it has, and
    `TOTAL`. Empty without the disassembler, or where it fails."""
    command = tool()
    if command is None:
        return {}
    with temporary_folder() as tmp:
        (tmp / "code.cubin").write_bytes(cubin)
        done = subprocess.run(
            [str(command), "-c", str(tmp / "code.cubin")], capture_output=True, text=True, check=False
        )
    return counted(done.stdout) if done.returncode == 0 else {}


def counted(listing: str) -> dict[str, dict[str, int]]:
    """`counts` of what the disassembler prints."""
    found: dict[str, Counter[str]] = {}
    own: Counter[str] = Counter()
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            own = found.setdefault(section[1], Counter())
        elif code := _CODE.match(line):
            own.update([TOTAL, *([code[1]] if code[1] in WATCHED else [])])
    return {kernel: dict(sorted(n.items())) for kernel, n in found.items()}
