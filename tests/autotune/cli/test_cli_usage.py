"""The command line's manners: exit statuses, messages, JSON and help."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_runner import run
from typer.main import get_command

from autotune.cli import options
from autotune.cli.app import app
from autotune.cli.given import OptionRow
from autotune.cli.help import OTHERS
from autotune.cli.options import GROUPS, parse_budget
from kernels_db import Log
from schedules.units import counts, digits, number, percent, rate, seconds

SHAPE = ("--shape", "m=8,n=8,k=8")
TUNE = ("tune", "matmul", *SHAPE)
CONV = "h=8,w=8,ci=4,co=4,k=3"
COMMANDS = ("tune", "best", "bench", "ops", "log", "doctor", "cache", "completion")

# words -> what the message must name
BAD = [
    (("best", "net.onnx"), "net.onnx is a model's file, and this command takes one operator"),
    (("best", "nets/net"), "ops, tune, bench, explain, export and report take models"),
    (("tune", "net.onx"), "'net.onx' is no operator (see: autotune ops), and no model's file"),
    ((*TUNE, "--budget", "10x"), "--budget: '10x' is not a duration"),
    (("bench", "matmul", *SHAPE, "--duration", "10x"), "--duration: '10x' is not a duration"),
    (("tunes",), "tunes"),
    (("--colour",), "--colour"),
    (("tune", "matmul", "--shap", "m=8"), "--shap"),
    (("tune", "matmull", *SHAPE), "did you mean 'matmul'"),
    (("tune", "matmul"), "matmul needs the parameters m, n, k: m=…"),
    (("tune", "conv2d"), "conv2d needs the parameters h, w, ci, co, kh, kw: b=1,h=…"),
    (("tune", "conv2d"), "such as h=56,w=56,ci=64,co=64,k=3"),
    (("best", "softmax", "--shape", ""), "softmax needs the parameters m, n"),
    (("tune", "matmul", "--shape", "m=8"), "n, k"),
    (("tune", "matmul", "--shape", "m=8,n=8,kk=8"), "'kk'"),
    (("tune", "matmul", "--shape", "m=8,n=8,k=0"), "k=0"),
    (("tune", "matmul", "--shape", "m=8,n=8,k=-8"), "k=-8"),
    (("tune", "matmul", "--shape", "m=8,n=8,k=99999999999999"), "k=99999999999999"),
    (("tune", "matmul", "--shape", "m=8,n=8,k=8.5"), "8.5"),
    (("tune", "matmul", "m=1..8", "n=8", "k=8"), "commas between them: --shape m=1..8,n=8,k=8"),
    (("tune", "matmul", "--shape", "m=8;n=8"), "m=8;n=8"),
    (("tune", "matmul", "--shape", "m=8,m=9,n=8,k=8"), "twice"),
    (("tune", "matmul", "--shape", "m=8..4,n=8,k=8"), "m=8..4: a range begins at 1"),
    (("best", "matmul", "--shape", "m=4..8,fixed,n=8,k=8"), "m=4..8 is a size that varies"),
    (("tune", "matmul", "--shape", "m=4..8,fixed,n=8,k=8", "--frozen"), "one size"),
    (("bench", "permute"), "permute needs the parameters shape, axes"),
    (("best", "softmx"), "softmax"),
    (("tune", "conv2d", "--shape", f"{CONV},stride=2x1x1"), "stride=2x1x1 has 3 numbers"),
    (("tune", "softmax", "--shape", "shape=4x8,axis=2"), "axis=2"),
    ((*TUNE, "--dtype", "float3"), "float3"),
    (("tune", "softmax", "--shape", "m=8,n=8", "--dtype", "int32"), "int32"),
    ((*TUNE, "--layout", "NHWC"), "layout"),
    (("tune", "conv2d", "--shape", CONV, "--layout", "NHCW"), "NHCW"),
    ((*TUNE, "--target", "tpu"), "tpu"),
    ((*TUNE, "--threads", "0"), "--threads"),
    ((*TUNE, "--threads", "two"), "--threads"),
    ((*TUNE, "--threads", "100000"), "100000"),
    ((*TUNE, "--trials", "-1"), "--trials"),
    ((*TUNE, "--budget", "soon"), "soon"),
    ((*TUNE, "--budget", "0s"), "0s"),
    ((*TUNE, "--budget", "-5s"), "-5s"),
    ((*TUNE, "--search", "evolution"), "evolutionary"),
    ((*TUNE, "--model", "xgboost"), "xgb"),
    ((*TUNE, "--seed", "-1"), "--seed"),
    ((*TUNE, "--db", ""), "empty"),
    (("bench", "matmul", *SHAPE, "--against", "nunpy"), "numpy"),
    (("bench", "matmul", *SHAPE, "--against", "numpy", "--must-beat", "torch"), "torch"),
    (("ops", "conv"), "conv"),
    (("log", "stats"), "no tuning log"),
    (("log", "statistics"), "statistics"),
    (("log", "import", "/nonexistent/x.jsonl"), "/nonexistent/x.jsonl"),
    (("log", "export", "x.jsonl", "--top", "0"), "--top"),
]


@pytest.mark.parametrize(("words", "named"), BAD, ids=[" ".join(w)[:60] for w, _ in BAD])
def test_bad_input_is_named_and_gives_status_2(words: tuple[str, ...], named: str) -> None:
    ran = run(*words)
    assert ran.status == 2
    assert named in ran.err and "Traceback" not in ran.err
    assert ran.out == ""


@pytest.mark.fast("log *", "best *", "ops *")
@pytest.mark.parametrize(("words", "named"), BAD, ids=[" ".join(w)[:60] for w, _ in BAD])
def test_with_json_the_error_is_the_one_document(words: tuple[str, ...], named: str) -> None:
    ran = run(*words, "--json")
    assert ran.status == 2
    error = ran.json["error"]
    assert named in error["message"] and error["exit_status"] == 2


def test_a_directory_or_a_foreign_file_is_no_log(tmp_path: Path) -> None:
    foreign = tmp_path / "notes.txt"
    foreign.write_text("these are not the records you are looking for\n" * 3)
    truncated = tmp_path / "cut.db"
    truncated.write_bytes(b"SQLite form")
    for db in (tmp_path, foreign, truncated):
        for words in (("log", "stats"), ("best", "matmul", *SHAPE), ("bench", "matmul", *SHAPE)):
            ran = run(*words, "--db", db)
            assert ran.status == 2 and str(db) in ran.err, (words, ran)
    assert foreign.read_text().startswith("these are not")


@pytest.mark.parametrize("command", ["best", "bench"])
def test_nothing_stored_gives_status_1_and_the_command_that_helps(command: str, tmp_path: Path) -> None:
    ran = run(command, "matmul", *SHAPE, "--threads", "1", "--db", tmp_path / "none.db")
    assert ran.status == 1
    assert "autotune tune matmul --shape m=8,n=8,k=8 --dtype float32 --threads 1" in ran.err
    assert (
        run(command, "matmul", *SHAPE, "--db", tmp_path / "none.db", "--json").json["error"]["exit_status"]
        == 1
    )


def test_one_number_an_axis_is_read_and_shown(tmp_path: Path) -> None:
    shape = f"{CONV},stride=2x1,padding=0x1"
    ran = run("best", "conv2d", "--shape", shape, "--threads", "1", "--db", tmp_path / "none.db")
    assert "h=8,w=8,ci=4,co=4,kh=3,kw=3,stride=2x1,padding=0x1 --dtype" in ran.err


@pytest.mark.parametrize("words", [(), *((c,) for c in COMMANDS), ("log", "merge"), ("log", "import")])
def test_every_command_has_help(words: tuple[str, ...]) -> None:
    ran = run(*words, "--help")
    assert ran.status == 0 and "Usage: autotune" in ran.out
    if words not in ((), ("log",)):
        assert "autotune " + words[0] in ran.out.split("Example")[1]


def test_the_list_of_commands_is_not_cut_off() -> None:
    for words in ((), ("log",)):
        shown = run(*words, "--help").out
        assert "..." not in shown.split("Commands")[1], shown


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\nfrom autotune.cli import main\nsys.argv = ['autotune', '--help']\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert not e.code\n"
        "heavy = {'numpy', 'llvmlite', 'sqlalchemy', 'xgboost', 'sklearn'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"
    assert run("--version").out.startswith("autotune ")


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("autotune.cli.checks.examine", broken)
    with pytest.raises(ZeroDivisionError):
        run("doctor")


@pytest.mark.fast("words2")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is full")
@pytest.mark.parametrize("words", [("ops",), ("ops", "--json"), ("--version",)])
def test_output_that_cannot_be_written_is_an_error_in_words(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "autotune", *words]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert ran.returncode == 2
    assert ran.stderr == "autotune: the output cannot be written: No space left on device\n"


def test_ops_lists_the_library_and_describes_one() -> None:
    listed = run("ops")
    assert listed.status == 0 and "conv2d" in listed.out and "softmax" in listed.out
    names = [o["name"] for o in run("ops", "--json").json["operators"]]
    assert {"matmul", "conv2d", "layer_norm", "permute"} <= set(names) and len(names) == len(set(names))
    one = run("ops", "conv2d", "--json").json
    assert one["name"] == "conv2d" and "NCHW" in one["layouts"] and "float32" in one["dtypes"]
    text = run("ops", "conv2d").out
    assert "required" in text and "NCHW" in text
    assert re.search("stride +1 +int or AxB", text) and "example  --shape h=56," in text
    assert re.search("m +required, or shape", run("ops", "softmax").out)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("60s", 60), ("2m", 120), ("500ms", 0.5), ("1.5h", 5400), ("30", 30), (" 10S ", 10)],
)
def test_budgets(text: str, expected: float) -> None:
    assert parse_budget(text, "--budget") == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "s", "1d", "1e3s", "nan", "inf", "60 s", "0ms", "999999h", "٣s"])
def test_budgets_that_are_none(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_budget(text, "--budget")


def test_numbers_for_people() -> None:
    assert [seconds(x) for x in (2.5, 1.234e-3, 5e-7, None)] == ["2.5 s", "1.23 ms", "500 ns", "-"]
    assert seconds(float("inf")) == "-"
    assert rate(2 * 512**3, 3 * 4 * 512**2, 1e-3) == "268.4 GFLOP/s"
    assert rate(2 << 20, 20 << 20, 1e-3) == "21.0 GB/s"
    assert rate(1, 1, None) == "-"
    assert (percent(0.9871), percent(None), percent(float("nan"))) == ("98.7 %", "-", "-")
    assert [digits(x) for x in (6.613, 99.95, 246123.0, 6600.0, 0.0)] == [
        "6.61",
        "100",
        "246,000",
        "6,600",
        "0",
    ]
    assert [number(n, "record") for n in (0, 1, 31)] == ["0 records", "1 record", "31 records"]
    assert counts({"timeout": 1, "crash": 0, "compile_error": 2}) == "compile_error 2, timeout 1"


def test_an_interrupt_while_importing_leaves_no_traceback() -> None:
    program = textwrap.dedent("""
        import sys
        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == "typer":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupt())
        from autotune.cli import main
        main()
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.fast("tune add --shape n=1000 --budget 1s")
@pytest.mark.parametrize("words", ["ops", "ops --json", "doctor", "tune add --shape n=1000 --budget 1s"])
def test_a_closed_stdout_is_said_before_anything_is_done(words: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m autotune {words}"
    done = subprocess.run(f"{command} >&-", shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        2, "autotune: stdout is closed; redirect it, to /dev/null at least\n"
    )  # fmt: skip
    done = subprocess.run(f"{command} <&- >&- 2>&-", shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


@pytest.mark.fast("ops", "ops --json")
@pytest.mark.parametrize("words", ["ops", "ops --json", "--version", "best add --shape n=3 --json"])
def test_a_stdout_that_is_only_read_is_said_too(words: str) -> None:
    command = f"{sys.executable} -m autotune {words} 1</dev/null"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    wanted = "autotune: stdout is open for reading only; redirect it, to /dev/null at least\n"
    assert (done.returncode, done.stderr) == (2, wanted)


@pytest.mark.fast("tunes-2-2>/dev/full")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is full")
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2</dev/null", "--json >/dev/full 2>/dev/full"])
@pytest.mark.parametrize(("words", "status"), [("tunes", 2), ("best add --shape n=3 --db {db}", 1)])
def test_a_mistake_that_cannot_be_told_keeps_its_status(
    words: str, status: int, redirection: str, tmp_path: Path
) -> None:
    Log(tmp_path / "t.db").close()
    command = f"{sys.executable} -m autotune {words.format(db=tmp_path / 't.db')} {redirection}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is full")
def test_an_error_document_that_cannot_be_written_is_told_on_stderr() -> None:
    command = f"{sys.executable} -m autotune ops conv --json >/dev/full"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("autotune: ") and "'conv'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_closed_stderr_and_stdin_do_no_harm(tmp_path: Path) -> None:
    """What is opened first would have their numbers, and be written to: the log, say."""
    db = tmp_path / "t.db"
    command = f"{sys.executable} -m autotune tune add --shape n=1000 --budget 1s --db {db} --json <&- 2>&-"
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0 and json.loads(done.stdout)["best"]
    assert run("log", "stats", "--db", db).status == 0


def test_the_usage_of_an_argument_has_one_pair_of_brackets() -> None:
    for command in ("report", "ops"):
        assert run(command, "--help").out.splitlines()[0].endswith("[OPTIONS] [OP]")
    assert run("log", "pin", "--help").out.splitlines()[0].endswith("[OPTIONS] [FILE]")


def test_options_of_a_command_with_many_stand_in_groups() -> None:
    text = run("tune", "--help").out
    order = [text.index(f"\n{g}:\n") for g in (*(g for g in GROUPS if g != "Compare with"), OTHERS)]
    assert order == sorted(order)
    assert text.index("\nHow long:\n") < text.index("--budget TIME") < text.index("\nSearch:\n")
    assert "\nOptions:\n" in run("fleet", "--help").out  # few of them


def test_every_option_of_a_grouped_command_has_a_group() -> None:
    named = {name for names in GROUPS.values() for name in names}
    for command in ("tune", "best", "bench", "report", "explain"):
        others = run(command, "--help").out.split(f"\n{OTHERS}:\n")[-1]
        assert others.split() == "-h, --help Show this message and exit.".split(), command
    assert named <= {row.name for row in vars(options).values() if isinstance(row, OptionRow)}


@pytest.mark.parametrize(("columns", "widest"), [(60, 60), (80, 80), (200, 120)])
def test_help_is_as_wide_as_the_terminal_up_to_120(
    columns: int, widest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    root: Any = get_command(app)
    above = root.make_context("autotune", ["tune"], resilient_parsing=True)
    tune = root.commands["tune"]
    text = tune.get_help(tune.make_context("tune", [], parent=above, resilient_parsing=True))
    described = text.split("How long")[1]
    assert widest - 12 < max(map(len, described.splitlines())) <= widest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--threads", "0"), "--threads is at least 1, not 0"),
        (("--threads", "two"), "--threads 'two' is not a whole number, such as 4"),
        (("--threads", "1.5"), "--threads '1.5' is not a whole number, such as 4"),
        (("--rtol", "x"), "--rtol 'x' is not a number, such as 1.5"),
        (("--rtol", "nan"), "--rtol 'nan' is not finite; give a number, such as 1.5"),
        (("--atol", "-1"), "--atol is at least 0, not -1"),
    ],
)
def test_a_number_that_does_not_fit_is_refused_in_our_words(words: tuple[str, str], said: str) -> None:
    ran = run("tune", "matmul", *words)
    assert (ran.status, ran.err) == (2, f"autotune: {said}\nTry 'autotune tune --help'.\n")


@pytest.mark.parametrize(
    ("words", "help_of"),
    [(("tune", "--bogus"), "tune"), (("log", "stats", "x"), "log stats"), (("cache", "x"), "cache")],
)
def test_a_mistake_names_the_help_of_its_command(words: tuple[str, ...], help_of: str) -> None:
    assert run(*words).err.endswith(f"Try 'autotune {help_of} --help'.\n")


@pytest.mark.parametrize(("short", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")])
def test_short_names_of_dtypes_are_those(short: str, dtype: str, tmp_path: Path) -> None:
    ran = run("best", "matmul", "--shape", "m=3,n=3,k=3", "--dtype", short, "--db", tmp_path / "none.db")
    assert f"--dtype {dtype}" in ran.err
