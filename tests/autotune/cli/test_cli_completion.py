"""Completion by the shell: what it is given, and that each shell's script passes it on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import run
from typer.main import get_command

from autotune import backends
from autotune.cli import completion
from autotune.cli.app import app
from autotune.search.policies import POLICIES
from autotune.targets.names import described
from schedules.dtypes import DTYPES, FLOATS
from schedules.ops import OPERATORS, REGISTRY

COMMAND = get_command(app)
MATMUL = ["m=", "n=", "k=", "transpose_a=", "transpose_b=", "accumulator=", "out_dtype="]


def answer(line: str) -> list[str]:
    return completion.answer(COMMAND, line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("autotune tu", ["tune"]),
        ("autotune log ver", ["verify"]),
        ("autotune cache ", ["clear"]),
        ("autotune tune conv2d_b", ["conv2d_bias_relu", "conv2d_bn_relu"]),
        ("autotune tune --threads 1 softm", ["softmax"]),
        ("autotune ops at", ["attention"]),
        ("autotune bench matmul --against num", ["numpy", "numpy.best"]),
        ("autotune bench matmul --against numpy,torch.", ["numpy,torch.best", "numpy,torch.compile"]),
        ("autotune tune matmul --shape ", MATMUL),
        ("autotune best matmul --shape m=4,n=5,", [f"m=4,n=5,{x}" for x in MATMUL[2:]]),
        ("autotune tune matmul --shape m=4,tr", ["m=4,transpose_a=", "m=4,transpose_b="]),
        ("autotune tune fused_multiply_add --shape n=", ["n="]),
        ("autotune tune fused_multiply_add --shape n=4", []),
        ("autotune tune add --shape n=4", ["n=4,other="]),  # n, or shape
        ("autotune tune softmax --shape shape=2x3,", ["shape=2x3,axis=", "shape=2x3,dim="]),
        ("autotune tune matmul --shape=m=4,k", ["--shape=m=4,k="]),
        ("autotune tune conv2d --shape k=3,k", []),  # k=3 is kh=3 and kw=3
        ("autotune tune conv2d --shape kh=3,k", ["kh=3,kw="]),
        ("autotune tune nonsense --shape ", []),
        ("autotune tune matmul --sea", ["--search"]),
        ("autotune tune matmul --search ", list(POLICIES)),
        ("autotune tune matmul --model=b", ["--model=blend"]),
        ("autotune tune matmul --target cuda", ["cuda-emulator", "cuda"]),
        ("autotune tune conv2d --layout ", ["NHWC", "NCHW"]),
        ("autotune tune matmul --json --dtype floa", [d for d in FLOATS if d != "bfloat16"]),
        ("autotune train --model ", ["xgb", "scratch", "forest", "hist"]),  # not those of tune --model
        ("autotune report net.onnx --against ", ["onnxruntime"]),
        ("autotune completion ", ["bash", "zsh", "fish"]),
        ("autotune tune matmul --db ", []),  # a file, which the shell completes
        ("autotune replay ", []),
        ("autotune nonsense ", []),
    ],
)
def test_completions(line: str, expected: list[str]) -> None:
    assert answer(line) == expected


def test_every_command_operator_and_target_is_offered() -> None:
    assert answer("autotune ") == list(COMMAND.commands)  # type: ignore[attr-defined]
    assert answer("autotune tune ") == list(REGISTRY)
    assert {*answer("autotune tune --target ")} == {*backends.kinds(), *described()}
    assert answer("autotune tune --dtype ") == list(DTYPES)
    for op in OPERATORS:
        offered = answer(f"autotune tune {op.name} --shape ")
        assert {f"{p.name}=" for p in op.params} <= {*offered}
    for name, command in COMMAND.commands.items():  # type: ignore[attr-defined]
        flags = {o for p in command.params for o in p.opts if o.startswith("--") and not p.hidden}
        assert {*answer(f"autotune {name} -")} == flags


def test_an_answer_loads_neither_a_parser_nor_a_compiler() -> None:
    """A shell waits for it. 0.2 s of one core, most of them for numpy."""
    code = (
        "import sys\n"
        "from autotune.cli import main\n"
        "sys.argv = ['autotune', '--complete', 'autotune tune matmul --shape m=4,']\n"
        "main()\n"
        "slow = {'pydantic', 'llvmlite', 'sqlalchemy', 'xgboost', 'torch', 'alembic'} & {*sys.modules}\n"
        "assert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"m=4,{x}" for x in MATMUL[1:]]


def test_the_script_of_a_shell_that_is_not_known() -> None:
    ran = run("completion", "fisch")
    assert ran.status == 2 and "SHELL 'fisch' is not one of bash, zsh, fish (did you mean 'fish'?)" in ran.err


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``autotune`` on PATH."""
    file = tmp_path / "autotune"
    file.write_text(f'#!/bin/sh\nexec {sys.executable} -m autotune "$@"\n')
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.mark.parametrize(
    ("line", "words", "expected"),
    [
        ("autotune tu", ["autotune", "tu"], ["tune"]),
        # bash cuts words at = and replaces what stands behind the last of them
        (
            "autotune tune fused_multiply_add --shape n=4,",
            ["autotune", "tune", "fused_multiply_add", "--shape", "n", "=", "4,"],
            [],
        ),
        (
            "autotune tune matmul --shape m=4,tr",
            ["autotune", "tune", "matmul", "--shape", "m", "=", "4,tr"],
            ["4,transpose_a=", "4,transpose_b="],
        ),
        ("autotune best --model=bl", ["autotune", "best", "--model", "=", "bl"], ["blend"]),
    ],
)
def test_bash(program: None, line: str, words: list[str], expected: list[str]) -> None:
    script = run("completion", "bash").out
    quoted = " ".join(f"'{w}'" for w in words)
    call = (
        f"{script}\nCOMP_WORDBREAKS=$' \\t\\n=:'; COMP_LINE='{line}'; COMP_POINT={len(line)}\n"
        f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
        'compopt() { echo "compopt $*"; }\n'
        '_autotune_completion autotune; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(["bash", "--norc", "-c", call], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    assert done.stdout.split("\n")[:-1] == (expected or [""])


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(program: None) -> None:
    call = run("completion", "fish").out + 'complete -C "autotune tune matmul --shape m=4,tr"\n'
    done = subprocess.run(["fish", "--no-config", "-c", call], capture_output=True, text=True)
    assert done.stdout.split() == ["m=4,transpose_a=", "m=4,transpose_b="], done.stderr
