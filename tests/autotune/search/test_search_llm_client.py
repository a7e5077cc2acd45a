"""The endpoint of a language model is not trusted: limits of bytes and time, no redirects, the key hidden."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from cli_runner import run
from llm_server import envelope, serving
from needs import imported
from search_table import FormulaSpace

from autotune.search import policies
from autotune.search.base import Result
from autotune.search.llm_client import LlmError, OpenAiClient
from autotune.settings import LlmSettings, SettingsError

imported("openai")
KEY = "sk-secret-of-a-user"


def asked(url: str, deadline_s: float = 5.0, model: str = "m", key: str = KEY) -> str:
    client = OpenAiClient(LlmSettings(url, model, key))
    try:
        return client.complete("prompt", deadline_s)
    finally:
        client.close()


def test_a_prompt_is_sent_and_answered() -> None:
    with serving(lambda handler, prompt: envelope("[1]")) as endpoint:
        assert asked(endpoint.url) == "[1]"
    assert endpoint.paths == ["/v1/chat/completions"] and endpoint.prompt() == "prompt"
    assert endpoint.asked[0]["model"] == "m" and endpoint.headers[0]["authorization"] == f"Bearer {KEY}"


def test_without_a_name_the_first_model_answers() -> None:
    with serving(lambda handler, prompt: envelope("yes")) as endpoint:
        assert asked(endpoint.url, model="") == "yes"
    assert endpoint.asked[0]["model"] == "first"


def test_a_key_that_comes_back_is_hidden() -> None:
    with serving(lambda handler, prompt: envelope(f"your key is {KEY}")) as endpoint:
        assert asked(endpoint.url) == "your key is [key]"


def test_a_word_in_place_of_a_key_leaves_answers_whole() -> None:
    with serving(lambda handler, prompt: envelope('[{"x0": 4}]')) as endpoint:
        assert asked(endpoint.url, key="x") == '[{"x0": 4}]'


def test_no_proxy_sees_what_goes_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(lambda handler, prompt: envelope("[1]")) as endpoint:
        assert asked(endpoint.url) == "[1]"


@pytest.mark.parametrize(
    "body",
    [
        b"garbage", b"", b"{}", b"[]", b"null", b'{"choices": []}', b'{"choices": {"0": 1}}',
        b'{"choices": [{"message": {"content": 5}}]}', b'{"choices": [{"message": null}]}',
        b"[" * 200_000, b"\xff\xfe\x00",
    ],
)  # fmt: skip
def test_what_is_no_completion_is_refused(body: bytes) -> None:
    with serving(lambda handler, prompt: body) as endpoint, pytest.raises(LlmError, match="no JSON|no text"):
        asked(endpoint.url)


@pytest.mark.parametrize("status", [302, 307, 400, 401, 429, 500])
def test_redirects_and_errors_are_refused_unread_and_once(status: int) -> None:
    def answer(handler: BaseHTTPRequestHandler, prompt: str) -> None:
        handler.send_response(status)
        handler.send_header("Location", "/v1/elsewhere")
        handler.send_header("X-Echo", KEY)
        handler.end_headers()
        for _ in range(64):  # an endless body
            handler.wfile.write(b"x" * (1 << 20))

    with serving(answer) as endpoint, pytest.raises(LlmError, match=f"status {status}") as caught:
        asked(endpoint.url)
    assert endpoint.paths == ["/v1/chat/completions"]
    assert KEY not in str(caught.value) and caught.value.__cause__ is None


def test_a_huge_body_is_cut_off() -> None:
    sent = []

    def answer(handler: BaseHTTPRequestHandler, prompt: str) -> None:
        handler.send_response(200)
        handler.end_headers()
        for _ in range(256):
            handler.wfile.write(b"[" * (1 << 20))
            sent.append(1)

    with serving(answer) as endpoint, pytest.raises(LlmError, match="larger than 1024 KiB"):
        asked(endpoint.url)
    assert len(sent) < 64


def test_a_packed_answer_is_refused() -> None:
    def answer(handler: BaseHTTPRequestHandler, prompt: str) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.end_headers()

    with serving(answer) as endpoint, pytest.raises(LlmError, match="packed"):
        asked(endpoint.url)


@pytest.mark.parametrize("drip", [True, False])
def test_silence_and_a_slow_drip_end_at_the_deadline(drip: bool) -> None:
    def answer(handler: BaseHTTPRequestHandler, prompt: str) -> None:
        if drip:
            handler.send_response(200)
            handler.end_headers()
        while not over.wait(0.05):
            if drip:
                handler.wfile.write(b" ")

    over = threading.Event()  # the endpoint goes on until then, and would for ever
    with serving(answer) as endpoint:
        try:
            with pytest.raises(LlmError):
                asked(endpoint.url, deadline_s=0.3)
        finally:
            over.set()


def test_an_endpoint_that_is_not_there_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(LlmError, match="onnect"):
            asked(f"http://127.0.0.1:{taken.getsockname()[1]}/v1")


def test_settings_say_what_is_wrong_and_hide_the_key() -> None:
    with pytest.raises(SettingsError, match=r"AUTOTUNE_LLM_URL is not set; set it to an endpoint"):
        LlmSettings.from_environment({"OPENAI_API_KEY": KEY})
    for url in ("file:///etc/passwd", "localhost:8000", "http://", "http://[", "http://a:99999999/"):
        with pytest.raises(SettingsError, match="no address of an endpoint"):
            LlmSettings(url)
    with pytest.raises(SettingsError, match="name or a password"):
        LlmSettings("https://me:word@host/v1")
    with pytest.raises(SettingsError, match="use https, or unset OPENAI_API_KEY"):
        LlmSettings("http://host/v1", key=KEY)
    with pytest.raises(SettingsError, match="OPENAI_API_KEY has characters") as caught:
        LlmSettings("https://host/v1", key=f"{KEY}\nX-Other: 1")
    assert KEY not in str(caught.value)
    env = {"AUTOTUNE_LLM_URL": "https://host/v1", "AUTOTUNE_LLM_MODEL": "m", "OPENAI_API_KEY": KEY}
    settings = LlmSettings.from_environment(env)
    assert (settings.model, settings.key) == ("m", KEY) and KEY not in repr(settings)
    assert settings.prompts == 32
    assert LlmSettings.from_environment(env | {"AUTOTUNE_LLM_PROMPTS": "3"}).prompts == 3
    with pytest.raises(SettingsError, match="AUTOTUNE_LLM_PROMPTS is 'many'; it is a number of prompts"):
        LlmSettings.from_environment(env | {"AUTOTUNE_LLM_PROMPTS": "many"})
    with pytest.raises(SettingsError, match="AUTOTUNE_LLM_PROMPTS is 0; give 1 or more"):
        LlmSettings.from_environment(env | {"AUTOTUNE_LLM_PROMPTS": "0"})


def test_the_prompts_of_a_task_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    space = FormulaSpace()
    with serving(lambda handler, prompt: envelope('[{"sketch": 0, "h0": 1}]')) as endpoint:
        monkeypatch.setenv("AUTOTUNE_LLM_URL", endpoint.url)
        monkeypatch.setenv("AUTOTUNE_LLM_PROMPTS", "2")
        policy = policies.create("llm", space, "random")
        for _ in range(6):
            policy.tell([Result(c, 1.0) for c in policy.ask(16)])
        assert policy.calls == 2 and len(endpoint.asked) == 2
        policy.close()


def test_a_search_on_a_table_asks_the_endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = {
        "tune_params_keys": ["x", "y"],
        "cache": {f"{x},{y}": {"x": x, "y": y, "time": 1.0 + x + y} for x in range(20) for y in range(20)},
    }
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(cache))
    with serving(lambda handler, prompt: envelope('[{"sketch": 0, "x": 0, "y": 0}]')) as endpoint:
        monkeypatch.setenv("AUTOTUNE_LLM_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        words = [
            "replay",
            path,
            "--search",
            "llm",
            "--model",
            "random",
            "--trials",
            8,
            "--seeds",
            1,
            "--json",
        ]
        found = run(*words).json
    assert found["runs"][0]["best_s"][-1] == 1e-3
    assert KEY not in endpoint.prompt() and "Sketches and their holes" in endpoint.prompt()
