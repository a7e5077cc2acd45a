"""A process that has everything imported, of which the zygotes of several workloads fork.

Starting Python and importing takes most of the time until a first candidate can be measured. It runs no
candidate, and ends with the thread that started it; its zygotes end with it.
"""

from __future__ import annotations

import gc
import os

from autotune.backends.building import from_trace  # noqa: F401  what builders would import, each by itself
from autotune.measure import wire, zygote
from autotune.platform import processes


def main(fd: int, parent: int) -> None:
    """Serve the parent at the other end of socket ``fd`` until it goes away."""
    control = zygote.server(fd, parent)
    gc.freeze()  # all forks share these objects
    while True:
        try:
            header, _, fds = wire.receive(control, max_fds=2)
        except wire.Closed:
            return
        if header["do"] == "fork":
            pid = processes.forked(control, lambda fds: zygote.main(fds[0], os.getppid()), fds)
        else:
            pid = processes.end_child(header["pid"])
        wire.send(control, {"pid": pid})
