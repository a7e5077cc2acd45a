"""Messages between the measuring processes: a length-prefixed JSON header and raw bytes, over a socket.

Layout: u32 header length, u64 payload length (little endian), the header in ASCII JSON, the payload.
Nothing received is ever executed or unpickled.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

# The two lengths before a message: header (u32) and payload (u64), little endian.
PREFIX = struct.Struct("<IQ")
# Largest header and payload accepted (bytes).
MAX_HEADER = 64 << 20
MAX_PAYLOAD = 1 << 34


class Closed(Exception):
    """The other end has closed, or it sent something that is not a message."""


def send(
    sock: socket.socket, header: dict[str, Any], payload: bytes = b"", fds: tuple[int, ...] = ()
) -> None:
    """Send one message, with open file descriptors if given. Raises `Closed`."""
    text = json.dumps(header).encode()
    head = PREFIX.pack(len(text), len(payload))
    try:
        if fds:
            sent = socket.send_fds(sock, [head], list(fds))
            head = head[sent:]
        sock.sendall(head + text)
        if payload:
            sock.sendall(payload)
    except OSError as err:
        raise Closed(str(err)) from None


def receive(sock: socket.socket, max_fds: int = 0) -> tuple[dict[str, Any], bytes, list[int]]:
    """The next message and the descriptors that came with it. Raises `Closed`."""
    fds: list[int] = []
    try:
        if max_fds:
            head, fds, _, _ = socket.recv_fds(sock, PREFIX.size, max_fds)
            if not head:
                raise Closed("end of stream")
            head = bytes(head + _exactly(sock, PREFIX.size - len(head)))
        else:
            head = bytes(_exactly(sock, PREFIX.size))
        header_size, payload_size = PREFIX.unpack(head)
        if header_size > MAX_HEADER or payload_size > MAX_PAYLOAD:
            raise Closed("malformed message")
        header = json.loads(_exactly(sock, header_size))
        payload = bytes(_exactly(sock, payload_size))
    except (OSError, ValueError) as err:
        raise Closed(str(err)) from None
    if not isinstance(header, dict):
        raise Closed("malformed message")
    return header, payload, fds


def _exactly(sock: socket.socket, count: int) -> bytearray:
    out = bytearray(count)
    view = memoryview(out)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise Closed("end of stream")
        view = view[got:]
    return out
