"""Settings: the only place that reads the environment.

Nothing here runs on import; `Settings.from_environment` is called when a database or a cache is
first needed, and its result is passed on.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from autotune.settings.own_folders import instead_of_home
from kernels_db.temporary import TemporaryFilesError
from schedules.errors import AutotuneError

D = TypeVar("D", float, None)
CUDA_BINDINGS = ("auto", "cuda-python", "pycuda")
LOG_LEVELS = ("debug", "info", "warning", "error")
NO_DB = "AUTOTUNE_DB is empty; unset it or give a path or a database URL"
# A duration: a number and a unit. {unit: seconds}. The longest (seconds): 30 days.
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|)")
_UNITS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
LONGEST_S = 30 * 86400.0


class SettingsError(AutotuneError, ValueError):
    """An environment variable or a setting has a value that cannot be used.

    >>> at.Settings.from_environment({"AUTOTUNE_LOG_LEVEL": "loud"})
    Traceback (most recent call last):
        ...
    autotune.settings.SettingsError: AUTOTUNE_LOG_LEVEL is 'loud'; it is one of debug, info, warning, error
    """


class NoPlaceError(SettingsError):
    """This user has no place for files of its own. The message names the setting that gives one."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the surroundings decide.

    ``db``: path or SQLAlchemy URL of the tuning log. ``cache_dir``: compiled objects.
    ``log_level``: one of `LOG_LEVELS`. ``cuda_binding``: one of `CUDA_BINDINGS`; "auto" takes the first that
    reaches a GPU. Raises `SettingsError` for a value that cannot be used.

    >>> at.Settings(db="tuning.db", cache_dir=Path("cache")).log_level
    'warning'
    """

    db: str
    cache_dir: Path
    log_level: str = "warning"
    cuda_binding: str = "auto"

    def __post_init__(self) -> None:
        if not self.db:
            raise SettingsError(NO_DB)
        _one_of("AUTOTUNE_LOG_LEVEL", self.log_level, LOG_LEVELS)
        _one_of("AUTOTUNE_CUDA_BINDING", self.cuda_binding, CUDA_BINDINGS)

    @staticmethod
    def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
        """Settings from ``AUTOTUNE_DB``, ``AUTOTUNE_CACHE_DIR``, ``AUTOTUNE_LOG_LEVEL`` and
        ``AUTOTUNE_CUDA_BINDING``; places that are not set are in the user's directories.

        >>> at.Settings.from_environment({"AUTOTUNE_LOG_LEVEL": "info"}).log_level
        'info'
        """
        env = os.environ if environ is None else environ
        return Settings(_db(env), cache_dir(env), log_level(env), cuda_binding(env))


@dataclass(frozen=True, slots=True)
class LlmSettings:
    """The endpoint of ``--search llm``. ``url``: where it is, such as ``http://localhost:8000/v1``.
    ``model``: its name there; empty: the first that the endpoint lists. ``key``: what it asks for, in no
    `repr`. ``prompts``: most prompts of a task. Raises `SettingsError`."""

    url: str
    model: str = ""
    key: str = field(default="", repr=False)
    prompts: int = 32

    def __post_init__(self) -> None:
        if self.prompts < 1:
            raise SettingsError(
                f"AUTOTUNE_LLM_PROMPTS is {self.prompts}; give 1 or more, or leave out --search llm"
            )
        try:
            parts = urlsplit(self.url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise SettingsError(
                "AUTOTUNE_LLM_URL is no address of an endpoint; give one such as http://localhost:8000/v1"
            )
        if parts.username is not None or parts.password is not None:
            raise SettingsError("AUTOTUNE_LLM_URL has a name or a password; give the key in OPENAI_API_KEY")
        if not all("!" <= c <= "~" for c in self.key):
            raise SettingsError("OPENAI_API_KEY has characters that no key has, such as spaces; set it again")
        if self.key and parts.scheme == "http" and not self.local:
            raise SettingsError(
                "AUTOTUNE_LLM_URL is http on another machine, which would show the key to the network; use "
                "https, or unset OPENAI_API_KEY"
            )

    @property
    def host(self) -> str:
        """The machine that the endpoint is on."""
        return urlsplit(self.url).hostname or ""

    @property
    def local(self) -> bool:
        """Whether the endpoint is on this machine."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @staticmethod
    def named(environ: Mapping[str, str] | None = None) -> bool:
        """Whether ``AUTOTUNE_LLM_URL`` is set."""
        return bool((os.environ if environ is None else environ).get("AUTOTUNE_LLM_URL"))

    @staticmethod
    def from_environment(environ: Mapping[str, str] | None = None) -> LlmSettings:
        """Settings from ``AUTOTUNE_LLM_URL``, ``AUTOTUNE_LLM_MODEL``, ``AUTOTUNE_LLM_PROMPTS`` and
        ``OPENAI_API_KEY``."""
        env = os.environ if environ is None else environ
        if not LlmSettings.named(env):
            raise SettingsError(
                "--search llm asks a language model, and AUTOTUNE_LLM_URL is not set; set it to an endpoint "
                "that speaks OpenAI's API, such as http://localhost:8000/v1"
            )
        prompts = env.get("AUTOTUNE_LLM_PROMPTS", "32").strip()
        if not re.fullmatch("[0-9]{1,9}", prompts):
            raise SettingsError(f"AUTOTUNE_LLM_PROMPTS is {prompts!r}; it is a number of prompts, such as 32")
        key = env.get("OPENAI_API_KEY", "").strip()
        return LlmSettings(env["AUTOTUNE_LLM_URL"], env.get("AUTOTUNE_LLM_MODEL", ""), key, int(prompts))


def seconds_of(budget: str | float | None, budget_s: float | None, otherwise: D) -> float | D:
    """The seconds that a user gives in one of two ways; ``otherwise`` where in neither. Whoever uses the
    number checks it. Raises `SettingsError`."""
    if isinstance(budget_s, str):
        raise SettingsError(f"the budget is {budget_s!r}, text; give seconds, or budget={budget_s!r}")
    if budget is None:
        return otherwise if budget_s is None else budget_s
    if budget_s is not None:
        raise SettingsError(f"budget={budget!r} and budget_s={budget_s!r} are both given; give one of them")
    return duration(budget) if isinstance(budget, str) else budget


def duration(text: str) -> float:
    """Seconds from ``60s``, ``2m``, ``500ms``, ``1.5h`` or a bare number of seconds. Raises `SettingsError`
    for anything else, for zero and for more than 30 days."""
    m = _DURATION.fullmatch(text.strip().lower())
    if not m:
        raise SettingsError(f"{text!r} is not a duration; write it as 60s, 2m, 500ms or 1h")
    value = float(m[1]) * _UNITS[m[2]]
    if value <= 0:
        raise SettingsError(f"{text!r} is zero; give a duration above zero, such as 60s")
    if value > LONGEST_S:
        raise SettingsError(f"{text!r} is more than 30 days; give a shorter duration")
    return value


# Each of `Settings` alone. Who needs one asks for no other, because a place may be missing.


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """`Settings.cache_dir`: ``AUTOTUNE_CACHE_DIR``, or a directory of the user. Raises `SettingsError`."""
    named = (os.environ if environ is None else environ).get("AUTOTUNE_CACHE_DIR")
    if named == "":
        raise SettingsError("AUTOTUNE_CACHE_DIR is empty; unset it or name a directory")
    return _of_the_user("user_cache_dir", "AUTOTUNE_CACHE_DIR") if named is None else _home(named)


def log_level(environ: Mapping[str, str] | None = None) -> str:
    """`Settings.log_level`: ``AUTOTUNE_LOG_LEVEL``, or "warning". Raises `SettingsError`."""
    level = (os.environ if environ is None else environ).get("AUTOTUNE_LOG_LEVEL", "warning").lower()
    return _one_of("AUTOTUNE_LOG_LEVEL", level, LOG_LEVELS)


def cuda_binding(environ: Mapping[str, str] | None = None) -> str:
    """`Settings.cuda_binding`: ``AUTOTUNE_CUDA_BINDING``, or "auto". Raises `SettingsError`."""
    binding = (os.environ if environ is None else environ).get("AUTOTUNE_CUDA_BINDING", "auto").lower()
    return _one_of("AUTOTUNE_CUDA_BINDING", binding, CUDA_BINDINGS)


def _db(environ: Mapping[str, str]) -> str:
    """`Settings.db`: ``AUTOTUNE_DB``, or ``tuning.db`` in a directory of the user."""
    named = environ.get("AUTOTUNE_DB")
    if named == "":
        raise SettingsError(NO_DB)
    return str(_of_the_user("user_data_dir", "AUTOTUNE_DB") / "tuning.db") if named is None else named


def _one_of(variable: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise SettingsError(f"{variable} is {value!r}; it is one of {', '.join(known)}")
    return value


def _of_the_user(kind: str, variable: str) -> Path:
    """A directory of the user, by a name of `platformdirs`; who has no home directory has one among temporary
    files. ``variable``: names another place."""
    import platformdirs

    with suppress(RuntimeError):
        found = Path(getattr(platformdirs, kind)("autotune", appauthor=False))
        if found.is_absolute():
            return found
    try:
        return instead_of_home()
    except TemporaryFilesError as err:
        why = str(err).partition(":")[0]
        raise NoPlaceError(
            f"this user has no home directory, and {why}: name a directory of this user alone with {variable}"
        ) from None
    except OSError as err:
        raise NoPlaceError(
            f"this user has no home directory, and {err.filename} {err.strerror}: it is not used; name a "
            f"directory of this user alone with {variable}"
        ) from None


def config_file(*parts: str) -> Traversable:
    """A file of ``configs/``: ``config_file("targets", "x86-64-v3.json")``. It may not exist.

    An installed package carries the folder inside; a checkout has it beside the package.
    """
    package = files("autotune")
    inside = package.joinpath("configs")
    root = inside if inside.is_dir() else package.joinpath("..", "configs")
    return root.joinpath(*parts)


def database(db: str | os.PathLike[str] | None) -> str:
    """The path or URL to use: ``db`` where given, else `Settings.db`. ``~`` is expanded in paths.

    Raises `SettingsError` for an empty name.
    """
    if db is None:
        return _expanded(_db(os.environ))
    if not isinstance(db, (str, os.PathLike)):
        raise SettingsError(f"the database is {db!r}; give a path or a database URL")
    text = os.fspath(db)
    if not text:
        raise SettingsError("the database name is empty; give a path or a database URL")
    return _expanded(text)


def _expanded(db: str) -> str:
    return db if "://" in db else str(_home(db))


def _home(path: str) -> Path:
    """A path with its ``~`` expanded."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise SettingsError(f"{path}: that user has no home directory here; give the path in full") from None


# What makes an OpenMP runtime bind the thread that loads it to one CPU. xgboost brings such a runtime, and
# worker processes started afterwards would all be on that CPU.
UNBOUND: Mapping[str, None] = dict.fromkeys(("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"))


@contextmanager
def environment(changed: Mapping[str, str | None]) -> Iterator[None]:
    """Variables that libraries loaded and processes started meanwhile see so; None: not at all."""
    before = {k: os.environ.get(k) for k in changed}

    def put(values: Mapping[str, str | None]) -> None:
        for k, v in values.items():
            if v is None:
                os.environ.pop(k, None)
            else:
                os.environ[k] = v

    put(changed)
    try:
        yield
    finally:
        put(before)
