"""Whether a scheduler answers, asked before Dask does, so that a refusal is told at once and in words.

Dask tries again and again, whatever the reason is; a worker of it does so for ever, without a word. Here one
connection tells whether a scheduler answers, with or without TLS, and whether each side takes the other's
certificate. Nothing is sent but TLS's own handshake: a scheduler of Dask speaks first.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import struct
import time
from contextlib import suppress
from typing import Any

from autotune.fleet.errors import FleetError

# Longest time of one connection, time that a scheduler without TLS may take to speak until it is asked
# whether it has TLS, and time between two attempts (seconds).
ANSWER_S, SPEAKS_S, AGAIN_S = 5.0, 1.0, 0.2
MOST_FRAMES = 1 << 20  # bytes of a scheduler's first message, at most

# What the other side says of TLS by an alert (OpenSSL's names), in words.
_ALERTS = {
    "UNKNOWN_CA": "it was signed by a CA that the scheduler does not know",
    "CERTIFICATE_REQUIRED": "none was shown",
    "CERTIFICATE_EXPIRED": "it has expired",
    "BAD_CERTIFICATE": "it is broken, or not valid yet",  # OpenSSL says both so
    "UNSUPPORTED_CERTIFICATE": "its kind is not supported",
}
# What a clock may be the cause of: such alerts, and OpenSSL's errors "not yet valid" and "has expired".
_TIMES, _TIME_CODES = ("CERTIFICATE_EXPIRED", "BAD_CERTIFICATE"), (9, 10)


def reach(address: str, security: Any, role: str, timeout_s: float) -> str:
    """Wait until a scheduler answers. ``security``: of Dask. ``role``: whose certificate is shown, "client"
    or "worker". Returns what `try_once` does. Raises `FleetError`: at once for a refusal, and after
    ``timeout_s`` where nobody answers."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            return try_once(address, security, role)
        except OSError as err:
            if time.monotonic() >= until:
                raise FleetError(
                    f"no scheduler answers at {address} ({reason(err)}); start one with: dask scheduler, and "
                    f"workers with: autotune worker {address}"
                ) from None
        time.sleep(AGAIN_S)


def try_once(address: str, security: Any, role: str, timeout_s: float = ANSWER_S) -> str:
    """Connect once. Returns the address of this machine that faces the scheduler: 127.0.0.1 for one that is
    here; of IPv6 in brackets, as Dask has it. Raises `FleetError` for a refusal, and `OSError` where nobody
    answers."""
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    place = host.strip("[]"), int(port)
    if scheme == "tcp" and security.require_encryption:
        raise FleetError(
            f"{address} has no TLS, and Dask's setting distributed.comm.require-encryption asks for it; use "
            f"tls://{rest}"
        )
    context = _context(address, security, role) if scheme == "tls" else None
    with socket.create_connection(place, timeout_s) as sock:
        here = str(sock.getsockname()[0])
        if context is None:
            first = _plain(address, place, sock, timeout_s)
        else:
            first = _with_tls(address, sock, context, security, role)
    if not 0 < struct.unpack("<Q", first)[0] <= MOST_FRAMES:  # its messages begin with their length
        raise FleetError(f"what answers at {address} is no scheduler of Dask; its port is usually 8786")
    return f"[{here}]" if ":" in here else here


def reason(err: BaseException) -> str:
    """Why nobody answered, in short."""
    text = str(getattr(err, "strerror", None) or err) or type(err).__name__
    return re.sub(r" \(_ssl\.c:\d+\)$", "", text.splitlines()[0])[:300]


def _context(address: str, security: Any, role: str) -> ssl.SSLContext:
    """What Dask's settings give for a role. Raises `FleetError` for settings that are missing or wrong."""
    files = {
        "ca-file": security.tls_ca_file,
        f"{role}.cert": getattr(security, f"tls_{role}_cert"),
        f"{role}.key": getattr(security, f"tls_{role}_key"),
    }
    missing = [name for name, value in files.items() if not value and not name.endswith(".key")]
    if missing:
        named = ", ".join(f"distributed.comm.tls.{name} ({_variable(name)})" for name in missing)
        raise FleetError(f"{address} needs certificates, and Dask's settings have no {named}; give files")
    for name, value in files.items():
        if not value or "\n" in value:  # the key may be in the file of the certificate; all may be text
            continue
        try:
            with open(value, "rb"):
                pass
        except OSError as err:
            raise FleetError(
                f"{value}, which Dask's setting distributed.comm.tls.{name} names, cannot be read: "
                f"{err.strerror}"
            ) from None
    try:
        context: ssl.SSLContext = security.get_connection_args(role)["ssl_context"]
    except (OSError, ValueError) as err:
        raise FleetError(
            f"the certificates in Dask's settings distributed.comm.tls cannot be used: {reason(err)}; "
            f"ca-file and {role}.cert must be PEM, and {role}.key must be the key of {role}.cert"
        ) from None
    return context


def _variable(name: str) -> str:
    """The variable of the environment that gives a setting of TLS."""
    return "DASK_DISTRIBUTED__COMM__TLS__" + name.upper().replace(".", "__").replace("-", "_")


def _with_tls(address: str, plain: socket.socket, context: ssl.SSLContext, security: Any, role: str) -> bytes:
    """The first bytes that come. Before, it is not known whether our certificate was taken."""
    try:
        with context.wrap_socket(plain) as sock:
            return _eight(sock)
    except ssl.SSLCertVerificationError as err:
        remedy = (
            f"it must be signed by the CA of {_shown(security.tls_ca_file)}, Dask's setting "
            "distributed.comm.tls.ca-file"
        )
        if err.verify_code in _TIME_CODES:
            remedy = _clocks()
        raise FleetError(
            f"the scheduler at {address} shows a certificate that is not trusted here "
            f"({err.verify_message}); {remedy}"
        ) from None
    except ssl.SSLEOFError:
        raise ConnectionResetError("it ended the connection during the handshake of TLS") from None
    except ssl.SSLError as err:
        said = err.reason or ""
        if "ALERT" not in said:
            raise FleetError(
                f"what answers at {address} has no TLS ({reason(err)}); start the scheduler with it "
                f"(dask scheduler --protocol tls), or use tcp://{address[6:]} in a network that you trust"
            ) from None
        words = next((w for name, w in _ALERTS.items() if name in said), said.lower().replace("_", " "))
        own = _shown(getattr(security, f"tls_{role}_cert"))
        remedy = "must be signed by the CA that the scheduler has"
        if any(name in said for name in _TIMES):
            remedy = f"has a time from and until which it holds: {_clocks()}"
        raise FleetError(
            f"the scheduler at {address} refuses the certificate of this {role}: {words}; {own}, Dask's "
            f"setting distributed.comm.tls.{role}.cert, {remedy}"
        ) from None


def _clocks() -> str:
    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return f"compare the clocks of both machines (here it is {now} UTC), or make a new certificate"


def _shown(value: str) -> str:
    return "a text" if "\n" in value else os.path.abspath(value)


def _plain(address: str, place: tuple[str, int], sock: socket.socket, timeout_s: float) -> bytes:
    """The first bytes that come."""
    for wait_s in (min(SPEAKS_S, timeout_s), timeout_s):  # it may be slow
        sock.settimeout(wait_s)
        with suppress(TimeoutError):
            return _eight(sock)
        if _has_tls(place):
            raise FleetError(
                f"the scheduler at {address} has TLS, and this address asks for none; use "
                f"tls://{address[6:]}, with a certificate that was made for this fleet"
            )
    raise TimeoutError("what answers there says nothing; is it the scheduler's port?")


def _has_tls(place: tuple[str, int]) -> bool:
    """Whether what answers begins TLS, with whatever certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(place, SPEAKS_S) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as err:
        return "ALERT" in (err.reason or "")
    except OSError:
        return False


def _eight(sock: socket.socket) -> bytes:
    """The first eight bytes. Raises OSError."""
    found = b""
    while len(found) < 8:
        more = sock.recv(8 - len(found))
        if not more:
            raise ConnectionResetError("it ended the connection")
        found += more
    return found
