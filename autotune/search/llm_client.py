"""The endpoint of a language model, and what is allowed to it. The only place that imports ``openai``.

An endpoint is not trusted. Bytes and time of an answer are limited, redirects and packed answers are refused,
nothing is asked twice, and the key is taken out of every text that leaves this module.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from autotune.errors import MissingExtraError
from autotune.settings import LlmSettings
from schedules.distribution import install
from schedules.errors import AutotuneError

# Longest answer of an endpoint (bytes), with its envelope.
MOST_BYTES = 1 << 20
# Longest answer that a model is asked for (tokens), where it thinks aloud too.
MOST_TOKENS = 8192
# What stands for the key in texts, and the shortest key that is hidden (characters): servers that ask for
# none are given words such as EMPTY, which may occur in any answer.
HIDDEN, SHORTEST_KEY = "[key]", 8


class LlmError(AutotuneError):
    """An endpoint that gives no answer, or one that is no answer. It ends no run."""


class Client(Protocol):
    """Who answers a prompt."""

    @property
    def model(self) -> str:
        """The name of the model, for the log."""

    def complete(self, prompt: str, deadline_s: float) -> str:
        """The answer to a prompt, within ``deadline_s`` seconds. Raises `LlmError`."""

    def close(self) -> None:
        """Close connections. No prompt is being answered."""


@dataclass(frozen=True)
class _Limit:
    """When an answer must be there (`time.monotonic`)."""

    until: float

    def check(self) -> None:
        if time.monotonic() > self.until:
            raise LlmError("the answer took too long")


def library() -> Any:
    """The module `openai`. Raises `MissingExtraError`."""
    try:
        import openai
    except ImportError as err:
        raise MissingExtraError(f"{err}; --search llm needs the extra llm: {install('llm')}") from err
    return openai


class OpenAiClient:
    """A `Client` of any endpoint that speaks OpenAI's chat completions. Where no model is named, the first
    that the endpoint lists answers. Raises `MissingExtraError` without the extra ``llm``."""

    def __init__(self, settings: LlmSettings) -> None:
        openai = library()
        self._settings, self._model = settings, settings.model
        http: Any = openai.DefaultHttpxClient(
            follow_redirects=False,
            trust_env=not settings.local,  # no proxy sees what stays on this machine
            event_hooks={"response": [_refuse]},
            headers={"Accept-Encoding": "identity"},
        )
        self._openai: Any = openai.OpenAI(
            api_key=settings.key or "none", base_url=settings.url, max_retries=0, http_client=http
        )

    @property
    def model(self) -> str:
        return self._hidden(self._model)[:200] or "not named"

    def complete(self, prompt: str, deadline_s: float) -> str:
        limit = _Limit(time.monotonic() + deadline_s)
        with self._failing():
            if not self._model:
                self._model = self._first_model(limit)
            limit.check()
            request = self._openai.chat.completions.with_streaming_response.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                max_completion_tokens=MOST_TOKENS,
                timeout=max(limit.until - time.monotonic(), 0.01),
            )
            with request as response:
                document = _document(response, limit)
            text = _at(document, "choices", 0, "message", "content")
            if not isinstance(text, str):
                raise LlmError("the answer has no text")
            return self._hidden(text)

    def close(self) -> None:
        self._openai.close()

    def _first_model(self, limit: _Limit) -> str:
        left_s = max(limit.until - time.monotonic(), 0.01)
        with self._openai.models.with_streaming_response.list(timeout=left_s) as response:
            name = _at(_document(response, limit), "data", 0, "id")
        if not isinstance(name, str) or not name:
            raise LlmError("the endpoint lists no model; name one in AUTOTUNE_LLM_MODEL")
        return name

    def _hidden(self, text: str) -> str:
        key = self._settings.key
        return text.replace(key, HIDDEN) if len(key) >= SHORTEST_KEY else text

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Turn whatever the library raises into `LlmError`, without its traceback: it may have the key."""
        try:
            yield
        except Exception as err:
            cause = err.__cause__ if isinstance(err.__cause__, LlmError) else err
            kind = "" if isinstance(cause, LlmError) else f"{type(cause).__name__}: "
            raise LlmError(self._hidden(f"{kind}{cause}")[:500]) from None


def _refuse(response: Any) -> None:
    """Refuse a response before any of its body is read."""
    if not 200 <= response.status_code < 300:
        raise LlmError(f"the endpoint answers with status {response.status_code}")
    packing = response.headers.get("content-encoding", "identity")
    if packing != "identity":
        raise LlmError(f"the answer is packed ({packing[:40]})")


def _document(response: Any, limit: _Limit) -> Any:
    """The JSON of a response, read within the limits."""
    data = bytearray()
    for part in response.iter_bytes():
        limit.check()
        data += part
        if len(data) > MOST_BYTES:
            raise LlmError(f"the answer is larger than {MOST_BYTES >> 10} KiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise LlmError("the answer is no JSON") from None


def _at(document: Any, *path: str | int) -> Any:
    """What stands in a JSON document at a path; None where nothing does."""
    for step in path:
        if isinstance(step, int):
            document = document[step] if isinstance(document, list) and len(document) > step else None
        else:
            document = document.get(step) if isinstance(document, dict) else None
    return document
