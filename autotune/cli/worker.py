"""``autotune worker``: measure here for others."""

from __future__ import annotations

from autotune.cli import options as opt
from autotune.cli.given import Given, takes


@takes(opt.ADDRESS, opt.OFFERED, opt.THREADS, opt.MACHINE_NAME, opt.BUILD, opt.ONCE)
def worker(o: Given) -> None:
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

    names = [x for one in o.target or [] for x in one.split(",") if x]
    fleet_worker.main(o.address, fleet_worker.offer_of(names, o.threads, o.name, o.build), o.once)
