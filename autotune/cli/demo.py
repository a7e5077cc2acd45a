"""``autotune demo``: tunes a matrix product and compares its kernel, with nothing but what is installed."""

from __future__ import annotations

from dataclasses import replace

import typer

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from kernels_db.temporary import temporary_folder

OP = "matmul"


@takes(
    replace(opt.SHAPE, default="m=512,n=32,k=512", help="The product: rows, columns and terms."),
    replace(opt.THREADS, default=1, help="Threads of the kernel."),
    replace(opt.BUDGET, default="30s"),
    replace(opt.DB, help="The tuning log. [default: one that is removed afterwards]"),
)
def demo(o: Given) -> None:
    """Tune a matrix product, then compare its kernel with numpy and with the machine's limit.

    It is what `autotune tune matmul` and `autotune bench matmul --against numpy` do. Nothing stays but
    compiled kernels in the cache. Exit status 1: no kernel was found, or it was slower than numpy.

    \b
    Examples:
      autotune demo
      autotune demo --shape m=512,n=512,k=512 --budget 60s --db tuning.db
    """
    commands = o.ctx.find_root().command
    with temporary_folder() as folder:
        task = [OP, "--shape", o.shape, "--threads", str(o.threads), "--db", o.db or f"{folder}/demo.db"]
        steps = {
            f"Tuning {OP} {o.shape} for {o.budget:g} s, threads: {o.threads}": [
                *("tune", *task, "--budget", f"{o.budget}s")
            ],
            "The kernel that was found, beside numpy and the machine's limit": [
                *("bench", *task, "--against", "numpy", "--must-beat", "numpy")
            ],
        }
        for n, (what, step) in enumerate(steps.items(), 1):
            print(f"\n{n}/{len(steps)}  {what}\n", flush=True)
            status = commands.main(step, standalone_mode=False)
            if status:
                raise typer.Exit(status)
