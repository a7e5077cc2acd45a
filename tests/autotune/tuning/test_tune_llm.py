"""Tuning beside a language model: what it says stands in the log, and it costs no budget."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from llm_server import envelope, serving
from made_up import tune
from needs import imported

from autotune.errors import MissingExtraError
from autotune.search import llm_client
from autotune.settings import SettingsError
from autotune.targets import detect
from autotune.tuning.options import TuneOptions
from kernels_db import Log
from schedules import ops

WORKLOAD = ops.workload("matmul", {"m": 32, "n": 32, "k": 32})
KEY = "sk-secret-of-a-user"


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True])
def test_a_run_keeps_prompts_and_answers_and_its_budget(
    silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported("openai")
    db, over = tmp_path / "tuning.db", threading.Event()

    def answer(handler: BaseHTTPRequestHandler, prompt: str) -> bytes:
        if silent:
            over.wait(60.0)
        rows = [{"sketch": s, "T2.vec": v, "T2.x0": 4} for s in range(4) for v in (8, 16)]
        return envelope(f"{KEY} DROP TABLE record; {json.dumps(rows)}")

    with serving(answer) as endpoint:
        monkeypatch.setenv("AUTOTUNE_LLM_URL", endpoint.url)
        monkeypatch.setenv("AUTOTUNE_LLM_MODEL", "a-model")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        options = TuneOptions(trials=12, budget_s=20.0, search="llm", model="random", batch=4)
        with Log(db) as log:
            try:
                result = tune(WORKLOAD, detect(1), log, options, peak=lambda: 1e-9)
            finally:
                over.set()
            records = list(log.records())
            assert log.runs()[0].options["search"] == "llm"
        assert "T2" in endpoint.prompt() and "vector_bytes" in endpoint.prompt()
    assert result.best is not None and result.measured == 12
    said = [r.environment["llm"] for r in records if "llm" in r.environment]
    mine = [r for r in records if r.environment.get("chosen_by") == "llm"]
    assert KEY not in str([r.environment for r in records])
    if silent:
        assert not mine
    else:
        assert 1 <= len(mine) <= 3
        assert said[0]["model"] == "a-model" and "DROP TABLE" in said[0]["answer"]
        assert said[0]["prompt"] == endpoint.prompt(0) and said[0]["taken"] >= 1


def test_without_an_endpoint_or_the_extra_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_LLM_URL", raising=False)
    with pytest.raises(SettingsError, match="AUTOTUNE_LLM_URL is not set; set it to"):
        TuneOptions(search="llm")
    monkeypatch.setenv("AUTOTUNE_LLM_URL", "http://localhost:1/v1")
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"--search llm needs the extra llm: .*llm"):
        llm_client.library()
    with pytest.raises(MissingExtraError):
        TuneOptions(search="llm")
