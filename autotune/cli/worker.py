"""``autotune worker``: measure here for others."""

from __future__ import annotations

from typing import Annotated

import typer

from autotune.cli import options as opt


def worker(
    address: Annotated[
        str,
        typer.Argument(metavar="ADDRESS", help="Of a Dask scheduler: tcp://HOST:8786 or tls://HOST:8786."),
    ],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="What to offer, also a list: cpu,x86-64-v3. [default: cpu, and a GPU if there is one]",
        ),
    ] = None,
    threads: opt.ThreadsOption = None,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="What to call this machine, also in logs.")
    ] = "",
    build: Annotated[
        bool | None,
        typer.Option(
            "--build/--no-build",
            help="Compile here, or have clients compile. [default: here, if there is a compiler]",
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End with the scheduler, in place of waiting for it to come back.")
    ] = False,
) -> None:
    """Offer this machine to a fleet: it builds, checks and times candidates for whoever tunes with --fleet.

    A worker has one slot, so that one candidate runs at a time. Workers that share CPUs take turns. Ctrl-C
    ends it. Where the scheduler goes away, it waits for it to come back.

    Whoever reaches the scheduler can run code here. Use a network that you trust, or TLS: the documentation
    has the settings.

    \b
    Examples:
      dask scheduler                                  # on one machine; it tells its address
      autotune worker tcp://host:8786                 # on each machine that measures
      autotune worker tcp://host:8786 --target cpu,x86-64-v3 --threads 1 --name rack-7
      autotune tune matmul --shape m=512,n=512,k=512 --fleet tcp://host:8786
    """
    from autotune.fleet import worker as fleet_worker

    names = [x for one in target or [] for x in one.split(",") if x]
    fleet_worker.main(address, fleet_worker.offer_of(names, threads, name, build), once)
