"""``autotune cache``: compiled kernels on disk. Where they are, how large they are, and removing them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, print_json
from autotune.settings import SettingsError, cache_dir
from schedules.units import size

if TYPE_CHECKING:
    from autotune.backends.building.object_cache import Contents, ObjectCache

app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
@takes(opt.JSON)
def show(o: Given) -> None:
    """Say where compiled kernels are kept, how many and how large they are.

    They are there so that loading a kernel compiles nothing. AUTOTUNE_CACHE_DIR names another directory. The
    least recently used are removed beyond the limit.

    \b
    Examples:
      autotune cache
      autotune cache clear
    """
    if o.ctx.invoked_subcommand is not None:
        return
    from autotune.backends.building.object_cache import CAP_BYTES

    folder = _usable()
    found = _of_all(folder, lambda cache: cache.contents())
    if o.json:
        print_json({"directory": str(folder), **found._asdict(), "limit_bytes": CAP_BYTES})
        return
    out = console()
    out.print(folder)
    out.print(f"  {_text(found)}; limit {size(CAP_BYTES)}")


@app.command("clear", short_help="Remove compiled kernels.")
@takes(opt.JSON)
def clear(o: Given) -> None:
    """Remove all compiled kernels. Each is compiled again when it is next loaded.

    Running processes keep the kernels that they have. The tuning log is not touched.

    \b
    Example:
      autotune cache clear
    """
    folder = _usable()
    removed = _of_all(folder, lambda cache: cache.clear())
    before = o.ctx.parent is not None and o.ctx.parent.params["json"]  # autotune cache --json clear
    if o.json or before:
        print_json({"directory": str(folder), "removed": removed.objects, "freed_bytes": removed.bytes})
    else:
        console().print(f"removed {_text(removed)} from {folder}")


def _usable() -> Path:
    """The directory. Raises `SettingsError` where it is not to be trusted."""
    from autotune.settings.own_folders import refusal_of

    folder = cache_dir()
    refusal = refusal_of(folder.stat()) if folder.exists() else None
    if folder.exists() and not folder.is_dir():
        refusal = "is not a directory"
    if refusal is not None:
        raise SettingsError(
            f"{folder} {refusal}: it is not used; name a directory of this user alone with AUTOTUNE_CACHE_DIR"
        )
    return folder


def _of_all(folder: Path, ask: Callable[[ObjectCache], Contents]) -> Contents:
    """The kernels of autotune, and those that TVM tuned to be compared with."""
    from autotune.backends.building.object_cache import Contents, ObjectCache

    each = [ask(ObjectCache(place)) for place in (folder, folder / "tvm")]
    return Contents(sum(c.objects for c in each), sum(c.bytes for c in each))


def _text(found: Contents) -> str:
    return f"{found.objects} kernel{'' if found.objects == 1 else 's'}, {size(found.bytes)}"
