"""The table of a whole suite: what is measured once, what a resumed run keeps, what rows say they are of."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import suite  # noqa: E402

SUITE = """
[[group]]
suite = "one"
name = "sums"
op = "add"
fields = ["n"]
shapes = [[64], [65]]

[[group]]
suite = "one"
name = "more sums"
op = "add"
fields = ["n"]
shapes = [[65]]

[[group]]
suite = "one"
name = "halves"
op = "add"
fields = ["n"]
dtype = "float16"
shapes = [[65]]
"""


def test_a_resumed_run_goes_on_and_measures_no_task_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "ops.toml", tmp_path / "found.json"
    file.write_text(SUITE)
    tuned: list[str] = []
    compared: list[str] = []

    def run(command: str, *args: str) -> dict[str, Any]:
        if command == "tune":
            if len(tuned) == 1 and not out.with_suffix(".again").exists():
                out.with_suffix(".again").touch()
                raise SystemExit("killed")
            tuned.append(" ".join(args[: args.index("--threads")]))
            return {"trials": {"measured": 1, "failed": {}}, "best": {"time_s": 1.0, "share_of_peak": 0.5}}
        compared.append(Path(args[1]).read_text())
        rows = [{"impl": "autotune", "time_s": 1.0, "share_of_peak": 0.5}]
        return {"tasks": [{"rows": rows, "ratio": {"torch": 2.0}}]}

    monkeypatch.setattr(suite, "run", run)

    def main(budget: str) -> None:
        monkeypatch.setattr(sys, "argv", ["suite.py", str(file), "--budget", budget, "--out", str(out)])
        suite.main()

    with pytest.raises(SystemExit, match="killed"):
        main("10s")
    main("20s")
    assert tuned == ["add --shape n=64", "add --shape n=65", "add --shape n=65 --dtype float16"]
    assert ['dtype = "float16"' in text for text in compared] == [False, False, True]
    rows = json.loads(out.read_text())["rows"]
    assert [(r["group"], r["task"][2]) for r in rows] == [
        ("sums", "n=64"),
        ("sums", "n=65"),
        ("more sums", "n=65"),
        ("halves", "n=65"),
    ]
    assert ["--budget 10s" in r["command"] for r in rows] == [True, False, False, False]
    main("30s")  # nothing is left
    assert len(tuned) == 3 and json.loads(out.read_text())["rows"] == rows
