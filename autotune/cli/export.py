"""``autotune export``: a tuned kernel for programs without Python."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli import options as opt
from autotune.cli.output import console, print_json


def export(
    op: opt.OpArgument,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where to write; made where missing.")],
    shape: opt.ShapeOption = "",
    dtype: opt.DtypeOption = "float32",
    layout: opt.LayoutOption = None,
    constant_weights: opt.ConstantsOption = False,
    target: opt.TargetOption = "cpu",
    threads: opt.TunedThreadsOption = None,
    db: opt.DbOption = None,
    fallback: Annotated[
        bool, typer.Option("--fallback", help="Where nothing is stored, take an untuned schedule.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Of the files. [default: the operator's]")
    ] = None,
    json: opt.JsonOption = False,
) -> None:
    """Write a kernel as a shared object, with a C header, a contract in JSON and an example in C.

    It needs a linker: gcc, or the extra emulator. Exit status 1: the log has no such kernel.

    \b
    Examples:
      autotune export matmul --shape m=512,n=512,k=512 build
      autotune export softmax --shape m=64,n=1000 --threads 1 --name softmax_64 build
    """
    where = opt.db_of(db)
    workload = opt.workload_of(op, shape, dtype, layout, constant_weights, where)

    from autotune.errors import KernelNotFound
    from autotune.run.export import export as write
    from autotune.run.loading import load_workload

    try:
        kernel = load_workload(workload, target=target, threads=threads, db=where, fallback=fallback)
    except KernelNotFound as err:
        raise KernelNotFound(f"{err.message}\nor take a schedule that is not tuned: --fallback") from None
    files = write(kernel, directory, name)
    written = {part: str(getattr(files, part)) for part in ("library", "header", "contract", "example")}
    if json:
        print_json(written)
        return
    out = console()
    for path in written.values():
        out.print(path, highlight=False, soft_wrap=True)
