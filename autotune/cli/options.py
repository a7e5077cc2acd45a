"""The table of options and arguments: a row each, with its help, its values, and what a shell offers for it.

A command names its rows (`given.takes`). Where a word means another thing in one command, that has a row of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from autotune.cli import values
from autotune.cli.given import REQUIRED, OptionRow, one_of
from autotune.search.policies import POLICIES
from autotune.settings import LOG_LEVELS, SettingsError, duration
from cost_model.models import MODELS, names_file
from schedules.dtypes import DTYPES

# Dtypes of a cache of keys and values. They are repeated here so that help needs no import of them.
CACHES = ("float32", "float16", "bfloat16")


def parse_budget(text: str, option: str) -> float:
    """Seconds of a `duration` that an option has. Raises `typer.BadParameter`."""
    try:
        return duration(text)
    except SettingsError as err:
        raise typer.BadParameter(f"{option}: {err}") from None


def aim(text: str, option: str) -> str:
    """What ``--until`` asks for, which is read where it is used. Raises `typer.BadParameter`."""
    from autotune.results.aim import Aim

    try:
        Aim.read(text)
    except SettingsError as err:
        raise typer.BadParameter(f"{option}: {err}") from None
    return text


def outputs_in_inputs(text: str, option: str) -> dict[str, str]:
    """``y=x,z=w`` as outputs that are inputs. Raises `typer.BadParameter`."""
    parts = [[n.strip() for n in word.split("=")] for word in text.split(",")]
    if not all(len(p) == 2 and all(p) for p in parts):
        raise typer.BadParameter(f"{option} {text!r}: write OUTPUT=INPUT, with commas between several")
    return {p[0]: p[1] for p in parts}


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers from 0 on, with commas between them. Raises `typer.BadParameter`."""
    words = [w.strip() for w in text.split(",") if w.strip()]
    if not words or not all(w.isascii() and w.isdigit() and len(w) < 12 for w in words):
        raise typer.BadParameter(f"{option} {text!r}: write numbers with commas between them, as 1,2,3")
    return tuple(map(int, words))


def cost_model(name: str, option: str) -> str:
    """A name of a cost model, or of a file, which is read where it is used. Raises `typer.BadParameter`."""
    if not names_file(name):
        one_of(option, name, MODELS)
    return name


def argument(metavar: str, help: str, name: str, **more: Any) -> OptionRow:
    """A row of an argument."""
    return OptionRow(name, (), help, metavar=metavar, **more)


def option(
    flag: str, help: str, metavar: str | None = None, also: Iterable[str] = (), **more: Any
) -> OptionRow:
    """A row of an option. ``also``: its other names. The first has the name of its value."""
    name = more.pop("name", flag.removeprefix("--").partition("/")[0].replace("-", "_"))
    return OptionRow(name, (flag, *also), help, metavar=metavar, **more)


def switch(flag: str, help: str, **more: Any) -> OptionRow:
    """A row of an option without a value."""
    return option(flag, help, kind=bool, default=False, **more)


def number(
    flag: str, help: str, metavar: str | None = None, *, default: int | None = None, least: int = 1
) -> OptionRow:
    """A row of an option that is a number of something."""
    return option(flag, help, metavar, kind=int, default=default, least=least)


# -- what is computed ------------------------------------------------------------------------

OP = argument(
    "OP", "An operator (see: autotune ops), or the name of an expression of yours.", "op",
    default=REQUIRED, values=values.operators,
)  # fmt: skip
OP_OR_MODEL = replace(OP, help="An operator of the library (see: autotune ops), NET.onnx, or X.gguf.")
SOME_OP = replace(OP_OR_MODEL, default=None)
LISTED_OP = replace(SOME_OP, help="One operator, NET.onnx or X.gguf; all operators without it.")
REPORTED_OP = replace(SOME_OP, help="An operator, NET.onnx or X.gguf; the whole log without it.")
SHAPE = option(
    "--shape",
    "Parameters of OP, such as m=512 or stride=2x1, which autotune ops OP lists; 1..512: a range, "
    "with one kernel for all; 1..512,fixed: with one for each size.",
    "NAME=N,...", default="", values=values.shape,
)  # fmt: skip
LISTED_SHAPE = replace(
    SHAPE, help="What a file leaves open: x=1x3x224x224, or seq=1..512,open; of X.gguf context=2048,rows=64."
)
GGUF_SHAPE = replace(
    SHAPE, help="Tokens that the cache has room for, and the most of a call, as tuned: context=2048,rows=64."
)
SUITE = option("--suite", "Tasks of a TOML file; NAME: a suite, quick or all.", "FILE[:NAME]")
DTYPE = option(
    "--dtype", f"Element type: {', '.join(DTYPES)}. [default: float32, or OP's first]", "DTYPE",
    values=values.dtypes,
)  # fmt: skip
LAYOUT = option("--layout", "Data layout, where the operator has several.", "LAYOUT", values=values.layouts)
CONSTANTS = switch("--constant-weights", "Weights are known ahead, and packed once, not at each call.")
STRIDES = option(
    "--strides", "Of arguments that are not row-major, in elements: a=1x512.", "NAME=NxN,...", default=""
)
WHAT = (SHAPE, DTYPE, LAYOUT, CONSTANTS, STRIDES)  # of an operator

CACHE = option(
    "--cache", f"Of X.gguf: dtype of keys and values, {', '.join(CACHES)}.", "DTYPE",
    default="float32", choices=CACHES,
)  # fmt: skip
ACTIVATIONS = option(
    "--activations",
    "Of X.gguf with weights of few bits: int8 rounds activations in each call; none keeps floats.",
    default="int8", choices=("int8", "none"),
)  # fmt: skip
OF_GGUF = (CACHE, ACTIVATIONS)

# -- for what, and where ---------------------------------------------------------------------

TARGET = option(
    "--target",
    "What to compile for: cpu (this machine), cuda, opencl, an emulated GPU such as cuda-emulator or "
    "h100-emulator, a processor such as x86-64-v3 or h100, or a JSON file.",
    "TARGET",
    default="cpu",
    values=values.targets,
)
OFFERED = replace(
    TARGET, help="What to offer, also a list: cpu,x86-64-v3. [default: cpu, and a GPU if there is one]",
    kind=list[str], default=None,
)  # fmt: skip
THREADS = number("--threads", "Threads of the kernel. [default: the CPUs usable here]", "N")
TUNED_THREADS = replace(THREADS, help="Threads that it was tuned for. [default: what is fastest here]")
REPORTED_THREADS = replace(THREADS, help="Of tasks with so many. [default: all; of a model: CPUs here]")
DB = option(
    "--db", "The tuning log. [default: AUTOTUNE_DB, else tuning.db in the user data directory]", "PATH_OR_URL"
)
FLEET = option(
    "--fleet",
    "Measure on workers of a Dask scheduler: tcp://HOST:PORT, tls://HOST:PORT; local:N: N here.",
    "ADDRESS",
)
SEED = number("--seed", "Seed of every random choice.", "N", default=0, least=0)
JSON = switch("--json", "Print one JSON document on stdout and nothing else.")
TUNED = (TARGET, TUNED_THREADS, DB)  # a kernel that a log has

# -- tune, replay ----------------------------------------------------------------------------

TRIALS = number(
    "--trials", "Stop after N new trials of a task; 0: no search, only a first pick. [default: no limit]",
    "N", least=0,
)  # fmt: skip
BUDGET = option("--budget", "Stop after: 60s, 2m, 500ms.", "TIME", default="60s", read=parse_budget)
UNTIL = option(
    "--until", "Stop once a call takes this time (200us), or reaches this share of the limit (0.9).",
    "TIME|SHARE", read=aim,
)  # fmt: skip
IN_PLACE = option(
    "--in-place", "Calls will give an input's memory for an output: only schedules count that allow it.",
    "OUT=IN,...", read=outputs_in_inputs,
)  # fmt: skip
REWRITES = option(
    "--rewrites", "Of a model: rewrites of its graph that may lose; always: where they usually pay; "
    "measured: where that is faster, which a quarter of the budget finds out.",
    "always|measured|none", default="measured", choices=("always", "measured", "none"),
)  # fmt: skip
EXACT = switch("--exact", "Of a model: no rewrite whose results are less exact (Winograd's convolutions).")
ARENA_BYTES = option(
    "--arena-bytes", "Of a model: no rewrite whose memory between kernels is larger than N bytes: 32000000.",
    "N", kind=int, least=0,
)  # fmt: skip
SEARCH = option("--search", f"Strategy: {', '.join(POLICIES)}.", default="evolutionary", choices=POLICIES)
COST_MODEL = option(
    "--cost-model", f"Cost model: {', '.join(MODELS)}, or a file that autotune train made.", "NAME|FILE",
    ("--model",), default="xgb", read=cost_model, values=lambda op, word: MODELS,
)  # fmt: skip
FROZEN = switch("--frozen", "Take what the log has and measure nothing.")
BUILD_HERE = switch("--build-here", "With --fleet: compile here, for workers whose CPUs are slow.")
RTOL = option(
    "--rtol", "Accept outputs within ATOL + RTOL x |reference|. [default: what rounding explains]",
    kind=float, least=0,
)  # fmt: skip
ATOL = option("--atol", "See --rtol.", kind=float, least=0)
TABLE_FILE = argument(
    "FILE", "A log, an export, a Kernel Tuner cache or T4 results; - is stdin.", "file",
    kind=Path, default=REQUIRED,
)  # fmt: skip
TASK = option(
    "--task", "Which task of a log: its number, or words of its name. [default: with the most records]",
    "N|WORDS",
)  # fmt: skip
MODEL = option("--model", f"Cost model: {', '.join(MODELS)}.", default="xgb", choices=MODELS)
REPLAYED = number("--trials", "Trials of each search.", default=100)
SEEDS = number("--seeds", "Searches, with seeds from 0.", default=10)

# -- best, bench, export, report -------------------------------------------------------------

NEAREST = switch("--nearest", "Where there is none, try the most similar machine's here.")
TRACE = switch("--trace", "Print the schedule: one primitive a line.")
SOURCE = switch("--source", "Print the generated code.")
IR = switch("--ir", "Print the scheduled loop nest.")
AGAINST = option(
    "--against",
    "Peers: numpy, torch, torch.compile, onnxruntime; numpy.best and torch.best at the settings that suit "
    "this CPU; tvm, tuned by 64 trials of MetaSchedule first, which takes minutes. Of NET.onnx: "
    "onnxruntime. Of X.gguf: llama.cpp.",
    "PEER,...",
    default="numpy",
    values=values.peers,
)
SIZES = option(
    "--sizes", "Of a range: where to compare. [default: the least, one between, the largest]", "N,...",
    default="",
)  # fmt: skip
MUST_BEAT = option("--must-beat", "Exit with status 1 unless faster than it.", "PEER", values=values.peers)
DURATION = option("--duration", "How long to measure each operator.", "TIME", default="5s", read=parse_budget)
DEPTHS = option(
    "--depth", "Of X.gguf: time a token after so many others.", "N,...", default="130,440", read=whole_numbers
)
PREFILL = number("--prefill", "Of X.gguf: time a prompt of so many tokens.", "N", default=64)
DIRECTORY = argument("DIR", "Where to write; made where missing.", "directory", default=REQUIRED)
FALLBACK = switch("--fallback", "Where nothing is stored, take an untuned schedule.")
TARGETS = option(
    "--targets",
    "Code for each of these processors in one object, which takes the best that runs: "
    "x86-64-v3,x86-64-v4,znver5. cpu: this one.",
    "A,B",
    values=values.targets,
)
FILES_NAME = option("--name", "Of the files. [default: the operator's, or the model's]", "NAME")
WEIGHTS = option(
    "--weights", "Of a model: inside the shared object, or beside it. auto: beside from 16 MiB on.", "WHERE",
    default="auto", choices=("auto", "inside", "beside"),
)  # fmt: skip
OUTPUT = option(
    "--output", "Where to write; replaced if there; - is stdout.", "FILE.html", ("-o",),
    kind=Path, default=Path("report.html"),
)  # fmt: skip
PROFILE = switch("--profile", "Of NET.onnx: run it here, and show the time of each step inside it.")
PROFILED_AGAINST = option(
    "--against", "Of NET.onnx: onnxruntime's profile too; runs both here.", "PEER", choices=("onnxruntime",)
)
OPEN = switch("--open", "Open the page in a browser.")

# -- generate --------------------------------------------------------------------------------

GGUF = argument("X.gguf", "A language model.", "op", default=REQUIRED)
TOKENS = option("--tokens", "The prompt, as the tokenizer numbers it; - is stdin.", "N,...", default=REQUIRED)
MADE = number("--n", "Tokens to make at most.", "N", default=32)
STOP = option("--stop", "Tokens after which it ends.", "N,...", read=whole_numbers)

# -- fleet, worker ---------------------------------------------------------------------------

ADDRESS = argument(
    "ADDRESS", "Of a Dask scheduler: tcp://HOST:8786 or tls://HOST:8786.", "address", default=REQUIRED
)
MACHINE_NAME = option("--name", "What to call this machine, also in logs.", "NAME", default="")
BUILD = option(
    "--build/--no-build",
    "Compile here, or have clients compile. [default: here, if there is a compiler]",
    kind=bool,
)
ONCE = switch("--once", "End with the scheduler, in place of waiting for it to come back.")

# -- train, evaluate -------------------------------------------------------------------------

# Learners, and their names for people. They are repeated here so that help needs no import of them.
LEARNERS = {
    "xgb": "XGBoost after the shipped model",
    "scratch": "XGBoost from scratch",
    "forest": "a random forest",
    "hist": "HistGradientBoosting",
}
LOGS = argument("LOG", "Logs, URLs of logs, exports. [default: the log of --db]", "logs", kind=list[str])
OUT = option(
    "--out", "Where to write; replaced if it is there.", "FILE", ("-o",),
    kind=Path, default=Path("cost-model.json"),
)  # fmt: skip
LEARNER = option(
    "--model", f"{', '.join(LEARNERS)}; the last two need the extra train.", "LEARNER",
    default="xgb", choices=LEARNERS,
)  # fmt: skip
JUDGED_MODEL = replace(
    COST_MODEL, default=None, read=None,
    help="Judge a file that autotune train made, or xgb (the shipped one), and train nothing. "
    "[default: train on the other folds]",
)  # fmt: skip

# -- log -------------------------------------------------------------------------------------

BEST_K = number("--top", "The K best records of every task.", "K", default=1)
SLOWER = option(
    "--slower", "Times the stored time from which a record is slower.", kind=float, default=1.25, least=1.0
)
LOCK_FILE = argument("FILE", "Also write the pins to this lock file; - is stdout.", "file", kind=Path)
LOCKED = option("--from", "Pin as this lock file says; - is stdin.", "FILE", kind=Path, name="source")
REMOVE = switch("--remove", "Remove all pins.")
KEEP = number("--keep", "Records a task to keep.", "K", default=10)
APPLY = switch("--apply", "Remove them; without it nothing is changed.")
EXPORT_FILE = argument(
    "FILE", "Where to write; an existing export is replaced. FILE.gz and FILE.xz are packed, - is stdout.",
    "file", kind=Path, default=REQUIRED,
)  # fmt: skip
ONLY_BEST = number("--top", "Only the K best records of every task.", "K")
FORMAT = option(
    "--format", "jsonl, or t4: for tools that read T4 results.", "FORMAT",
    default="jsonl", choices=("jsonl", "t4"),
)  # fmt: skip
EXPORTS = argument(
    "FILE...", "Exports, or T4 documents; - is stdin.", "files", kind=list[Path], default=REQUIRED
)
SOURCES = argument(
    "FILE_OR_DB...", "Exports, logs, and URLs of logs; - is stdin.", "sources",
    kind=list[str], default=REQUIRED,
)  # fmt: skip


# -- of all commands -------------------------------------------------------------------------

SHELL = argument(
    "SHELL", "One of bash, zsh, fish.", "shell", default=REQUIRED, choices=("bash", "zsh", "fish")
)
LOG_LEVEL = option(
    "--log-level",
    f"Least level of messages on stderr: {', '.join(LOG_LEVELS)}. "
    "[default: AUTOTUNE_LOG_LEVEL, else warning]",
    "LEVEL",
    choices=LOG_LEVELS,
)


# {heading in the help of commands with many options: names of these}.
GROUPS = {
    "What to compute": (
        "shape", "suite", "dtype", "layout", "constant_weights", "strides", "in_place", "cache",
        "activations", "rewrites", "exact", "arena_bytes",
    ),
    "For which machine": ("target", "threads", "targets", "fleet", "build_here", "nearest"),
    "How long": ("trials", "budget", "until", "duration", "seeds"),
    "Search": ("search", "cost_model", "seed", "rtol", "atol", "frozen"),
    "Compare with": ("against", "must_beat", "sizes", "depth", "prefill"),
    "Log and output": (
        "db", "json", "output", "open", "profile", "trace", "source", "ir", "fallback", "name", "weights",
        "log_level",
    ),
}  # fmt: skip


def offered(rows: Iterable[OptionRow] = ()) -> Mapping[str, Callable[[str, str], Iterable[str]]]:
    """What a shell offers, by the names of options and the words for arguments: of a command's rows, else of
    the table. Others take numbers, or files, which the shell completes."""
    table = [row for row in globals().values() if isinstance(row, OptionRow)]
    found: dict[str, Callable[[str, str], Iterable[str]]] = {}
    for row in [*rows, *table]:
        for name in row.flags or (row.metavar or "",):
            found.setdefault(name, row.offered)
    return found
