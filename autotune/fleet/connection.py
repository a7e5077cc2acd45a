"""Reaching a scheduler of Dask: addresses, TLS, and what is not installed.

TLS is set up by the settings of `distributed` alone: ``distributed.comm.tls`` in its configuration, or
``DASK_DISTRIBUTED__COMM__TLS__CA_FILE`` and so on in the environment.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autotune.errors import MissingExtraError
from autotune.fleet import reachability
from autotune.fleet.errors import FleetError
from schedules.distribution import install

if TYPE_CHECKING:
    from distributed import Client

CONNECT_S = 10.0
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")


def distributed() -> Any:
    """The module `distributed`. Raises `MissingExtraError`."""
    try:
        import distributed as found
    except ImportError as err:
        raise MissingExtraError(f"{err}; a fleet needs the extra fleet: {install('fleet')}") from err
    return found


def check_address(address: str) -> None:
    """Raises `FleetError` unless it is tcp://HOST:PORT or tls://HOST:PORT."""
    match = _ADDRESS.fullmatch(address)
    if re.fullmatch(r"local:[0-9]+", address):
        raise FleetError(
            f"{address[:200]} is a fleet that tune and log verify start and end; give the address of a "
            "scheduler, such as tcp://host:8786"
        )
    if match is None or not 0 < int(match[3]) < 65536:
        raise FleetError(
            f"{address[:200]!r} is no address of a scheduler; give one such as tcp://host:8786 or "
            "tls://host:8786, or local:4 for four workers on this machine"
        )


def loopback(address: str) -> bool:
    """Whether an address is of this machine alone."""
    match = _ADDRESS.fullmatch(address)
    host = match[2].strip("[]") if match else ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def warn_of_plain(address: str, say: Callable[[str], None]) -> None:
    """Say that whoever reaches an address without TLS may run code here."""
    if address.startswith("tcp://") and not loopback(address):
        say(
            f"{address} has no TLS: whoever reaches it can read what is sent and run code on its workers; "
            "use it in a network that you trust, or set up TLS (documentation: A fleet of machines)"
        )


def security() -> Any:
    """What Dask's configuration says of TLS. Raises `FleetError`."""
    try:
        return distributed().Security()
    except (ValueError, TypeError) as err:
        raise FleetError(f"Dask's settings of TLS cannot be used: {err}") from None


def connect(address: str, timeout_s: float = CONNECT_S) -> Client:
    """A client of the scheduler at an address. Raises `FleetError`, `MissingExtraError`."""
    check_address(address)
    library = distributed()
    quiet()
    trusted = security()
    reachability.reach(address, trusted, "client", timeout_s)
    try:
        client: Client = library.Client(
            address, timeout=timeout_s, security=trusted, set_as_default=False, name="autotune"
        )
    except (OSError, TimeoutError, ValueError, TypeError, RuntimeError, ImportError) as err:
        raise FleetError(f"{address} cannot be connected to: {reachability.reason(err)}") from None
    return client


def quiet() -> None:
    """Keep Dask's own lines about connections, which say less than ours, from stderr."""
    distributed()  # which sets them up
    for logger in (*_loggers("distributed"), *_loggers("tornado")):
        logger.setLevel(logging.CRITICAL)


@contextmanager
def quieted() -> Iterator[None]:
    """`quiet` for a while: others in this process, such as a notebook's kernel, use Tornado too."""
    distributed()
    before = [(logger, logger.level) for logger in _loggers("tornado")]
    quiet()
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


def _loggers(package: str) -> list[logging.Logger]:
    names = [n for n in logging.root.manager.loggerDict if n.partition(".")[0] == package]
    return [logging.getLogger(n) for n in names]
