"""A local endpoint that answers as a test says, for `--search llm`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def envelope(text: Any) -> bytes:
    """A chat completion with an answer."""
    message = {"role": "assistant", "content": text}
    return json.dumps({"id": "1", "choices": [{"index": 0, "message": message}]}).encode()


class Endpoint:
    """``url``; ``asked``: the bodies of requests; ``headers``: theirs; ``paths``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []

    def prompt(self, k: int = -1) -> str:
        return self.asked[k]["messages"][0]["content"]


@contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler, str], bytes | None]) -> Iterator[Endpoint]:
    """An endpoint on loopback. ``answer``: given the handler and the prompt, the body of the response, or
    None if it wrote one itself."""

    class Handler(BaseHTTPRequestHandler):
        def _send(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            endpoint.paths.append(self.path)
            self._send(json.dumps({"data": [{"id": "first"}, {"id": "second"}]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.paths.append(self.path)
            endpoint.asked.append(body)
            endpoint.headers.append({k.lower(): v for k, v in self.headers.items()})
            try:
                sent = answer(self, endpoint.prompt())
                if sent is not None:
                    self._send(sent)
            except (BrokenPipeError, ConnectionResetError):  # the client gave up
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    server = Server(("127.0.0.1", 0), Handler)
    endpoint = Endpoint(f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
