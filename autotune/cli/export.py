"""``autotune export``: a tuned kernel for programs without Python."""

from __future__ import annotations

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, print_json


@takes(opt.OP, opt.DIRECTORY, *opt.WHAT, *opt.TUNED, opt.FALLBACK, opt.FILES_NAME, opt.TARGETS, opt.JSON)
def export(o: Given) -> None:
    """Write a kernel as a shared object, with a C header, a contract in JSON and an example in C.

    With --targets it has code for several processors, and takes that for the one it runs on.
    It needs a linker: gcc, or the extra emulator. Exit status 1: the log has no such kernel.

    \b
    Examples:
      autotune export matmul --shape m=512,n=512,k=512 build
      autotune export softmax --shape m=64,n=1000 --threads 1 --name softmax_64 build
      autotune export matmul --shape m=512,n=512,k=512 --targets x86-64-v3,x86-64-v4,znver5 build
    """
    from autotune.errors import KernelNotFound
    from autotune.run.asked import Asked
    from autotune.run.export import export as write
    from autotune.run.loading import load_workload

    try:
        kernel = load_workload(o.workload(), Asked.of(o.target, o.threads, o.where, o.fallback))
    except KernelNotFound as err:
        raise KernelNotFound(f"{err.message}\nor take a schedule that is not tuned: --fallback") from None
    files = write(kernel, o.directory, o.name, targets=o.targets and o.targets.split(","), db=o.where)
    written = {part: str(getattr(files, part)) for part in ("library", "header", "contract", "example")}
    if o.json:
        print_json(written)
        return
    out = console()
    for path in written.values():
        out.print(path, highlight=False, soft_wrap=True)
