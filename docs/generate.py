"""Pages of the site that are made of the code and of the changelog, so that they cannot fall behind.

`conf.py` calls `write_all` before each build. What it writes is not kept in the repository.
"""

from __future__ import annotations

import inspect
import re
import shutil
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def write_all(folder: Path) -> None:
    """Write all pages below ``folder``, anew."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = {"operators.md": operators(), "command-line.md": command_line(), "primitives.md": primitives()}
    pages |= {"targets.md": targets(), "decisions.md": decisions(), **changes()}
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def plain_names(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make single backquotes of docstrings links where the name is public, else code; and indented text code.

    An event handler of Sphinx.
    """
    text = "\n".join(lines)
    # An example that is indented would be shown as a quotation.
    text = re.sub(r"(?m)^ {4}>>> .*(?:\n {4}.*)*", lambda m: re.sub(r"(?m)^ {4}", "", m[0]), text)
    text = re.sub(r"(?<=[^:\n])(:?)\n\n(?= {4}(?!>>>)\S)", _code_follows, text)

    def shown(m: re.Match[str]) -> str:
        target = _public_target(m[1], name)
        if not target:
            return f"``{m[1]}``"
        # The class of a primitive is called by its method.
        label = target.rpartition(".")[2] if target.startswith("autotune.Schedule.") else m[1]
        return f":py:obj:`{label} <{target}>`"

    text = re.sub(r"(?<![`\w.])([A-Z]\w+Error|KernelNotFound)(?![\w`:]|\.\w)", r"`\1`", text)
    lines[:] = re.sub(r"(?<![`\w:>])`([^`\n]+(?:\n[^`\n]+)?)`(?![`_])", shown, text).split("\n")


# What calls return, and nobody makes: how it is made says nothing to users.
RETURNED = ("autotune.Kernel", "autotune.DynamicKernel", "autotune.OpenKernel", "autotune.Module")


def signatures(app: Any, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:
    """Leave out how an object is made that users only get. An event handler of Sphinx."""
    return ("", None) if name in RETURNED else None


def _code_follows(m: re.Match[str]) -> str:
    """What ends a paragraph before indented text, so that reStructuredText takes that for code."""
    return "::\n\n" if m[1] else "\n\n::\n\n"


def _public_target(text: str, inside: str) -> str | None:
    """The full name of what a docstring calls ``text``; None where that is not public.

    ``inside``: the full name of what has the docstring. `sum` in one of `te` is `te.sum`.
    """
    import autotune
    from schedules import te
    from schedules.primitives import PRIMITIVES

    short = text.removeprefix("autotune.").removeprefix("at.")
    first, _, rest = short.partition(".")
    primitives = {p.__name__: key for key, p in PRIMITIVES.items()} | {key: key for key in PRIMITIVES}
    if first == "te" and rest in te.__all__ and inspect.isfunction(getattr(te, rest)):
        return f"autotune.te.{rest}"
    if inside.startswith("autotune.te.") and short in te.__all__ and inspect.isfunction(getattr(te, short)):
        return f"autotune.te.{short}"
    if inside.startswith("autotune.Schedule.") and short in primitives:
        return f"autotune.Schedule.{primitives[short]}"
    owner = ".".join(inside.split(".")[:2])
    if short == inside.rpartition(".")[2]:
        return None  # itself
    if inside.count(".") and hasattr(resolve_name(owner), short) and isinstance(resolve_name(owner), type):
        return f"{owner}.{short}"
    if short in _inner_classes():
        return _inner_classes()[short]
    if first not in autotune.__all__ or first in ("te", "ops", "torch"):
        return None
    return f"autotune.{short}" if not rest or hasattr(getattr(autotune, first), rest) else None


def outside(app: Any, page: str, source: list[str]) -> None:
    """Turn links to files that are not on the site into their paths. An event handler of Sphinx."""
    here = (ROOT / "docs" / page).parent

    def link(m: re.Match[str]) -> str:
        path = (here / m[2]).resolve()
        if path.is_relative_to(ROOT / "docs") and path.is_file() and path.suffix in (".md", ".svg", ".png"):
            return m[0]
        if not path.is_relative_to(ROOT) or not path.exists():
            return m[0]  # a mistake, which is told
        name = str(path.relative_to(ROOT)) + ("/" if path.is_dir() else "")
        return f"`{name}`" if m[1].strip("`") in (name, path.name) else f"{m[1]} (`{name}`)"

    source[0] = re.sub(r"(?<!!)\[([^\]\n]*)\]\((?!https?:|#)([^)#\s]+)(?:#[^)\s]*)?\)", link, source[0])


@cache
def _inner_classes() -> dict[str, str]:
    """{name: full name} of classes in the reference that are no names of `autotune`, such as `Progress`."""
    pages = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs" / "reference").glob("*.md"))
    found = re.findall(r"autoclass:: (\S+\.(\w+))", pages)
    return {last: full for full, last in found if full.count(".") > 1}


# -- operators -----------------------------------------------------------------------------------


def operators() -> str:
    """A section for each operator of the library: what it computes, parameters, dtypes, layouts."""
    from schedules import ops

    out = [
        "# Catalogue of operators",
        "",
        "Made from the code, as `autotune ops OP` prints it. [Another page](../operators.md) has what",
        "parameters have in common. All are given by name: `at.tune('matmul', m=512, n=512, k=512)`.",
        "",
    ]
    for d in sorted(ops.describe(), key=lambda d: d["name"]):
        out += [f"## {d['name']}", "", _plain(d["doc"]), ""]
        out += ["| parameter | default | form | means |", "|---|---|---|---|"]
        for p in d["params"]:
            default = "required" if p["required"] else f"`{p['default']}`"
            out.append(f"| `{p['name']}` | {default} | {p['form']} | {_cell(p['doc'])} |")
        out += ["", f"dtypes: {', '.join(d['dtypes'])}."]
        if d["layouts"]:
            out.append(f"Layouts: {', '.join(d['layouts'])}; the first is the default.")
        if d.get("weights"):
            out.append(f"Weights that may be known ahead: {', '.join(d['weights'])}.")
        out += [f"Example: `autotune tune {d['name']} --shape {d['example']}`", ""]
    return "\n".join(out)


# -- the command line ----------------------------------------------------------------------------


def command_line() -> str:
    """A section for each command: its help, and its options."""
    import typer

    from autotune.cli.app import app

    out = [
        "# Command line",
        "",
        "Made from the code; `--help` after a command prints the same. The page on",
        "[scripts](../how-to/command-line.md) has exit status, JSON documents and variables.",
        "",
    ]
    _commands(typer.main.get_command(app), "autotune", out)
    return "\n".join(out)


def _commands(command: Any, name: str, out: list[str]) -> None:
    inner = getattr(command, "commands", {})
    if not inner or command.callback is not None:
        out += [f"## {name}", ""]
        out += [_help(command.help or ""), ""]
        rows = [_option(p) for p in command.params if not getattr(p, "hidden", False)]
        if rows:
            out += ["| argument or option | means | default |", "|---|---|---|", *rows, ""]
    for key in inner:
        _commands(inner[key], f"{name} {key}", out)


def _help(text: str) -> str:
    """The help of a command; its examples as a block."""
    text = text.replace("\f", "")
    body, _, examples = text.partition("\b\n")
    out = " ".join(_plain(body).split("\n")).strip()
    out = _options_as_code(re.sub(r"  +", "\n\n", out))
    if examples.strip():
        lines = [x.strip() for x in examples.strip().splitlines()]
        lines = [x for x in lines if x and x != "Examples:"]
        out += "\n\n```console\n" + "\n".join(f"$ {x}" for x in lines) + "\n```"
    return out


def _option(p: Any) -> str:
    if p.opts[0].startswith("-"):
        name = ", ".join(f"`{x}`" for x in (*p.opts, *p.secondary_opts))
        if not getattr(p, "is_flag", False):
            name += f" `{p.metavar or p.name.upper()}`"
    else:
        name = f"`{p.metavar or p.name.upper()}`"
    default = None if callable(p.default) else p.default
    said = "" if default in (None, False, "", ()) else f"`{default}`"
    return f"| {name} | {_cell(getattr(p, 'help', None) or '')} | {said} |"


# -- primitives and targets ----------------------------------------------------------------------


# What examples of primitives schedule: a matrix product and a second stage.
EXAMPLE = """x, w = te.placeholder((64, 64), name="x"), te.placeholder((64, 64), name="w")
k = te.reduce_axis(64, name="k")
y = te.compute((64, 64), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="y")
z = te.compute((64, 64), lambda i, j: te.maximum(y[i, j], 0.0), name="z")
s = at.Schedule([x, w, z])"""


def primitives() -> str:
    """A section for each primitive, as methods of `Schedule`."""
    from schedules.primitives import PRIMITIVES
    from schedules.schedule import Schedule

    out = [
        "# Primitives",
        "",
        "Made from the code. Each is a method of [`Schedule`](../reference/schedules.md). It checks that the",
        "schedule still computes the same. Where it does not, it raises `ScheduleError` and changes nothing.",
        "In the examples, `s` is a new schedule of this expression:",
        "",
        "```python",
        EXAMPLE,
        "```",
        "",
    ]
    for name in sorted(PRIMITIVES):
        # autodoc would leave out the first argument, for ``self``, which these signatures do not have
        takes = inspect.signature(getattr(Schedule, name))
        method = f".. automethod:: autotune.Schedule.{name}{_signature(takes)}"
        out += [f"## {name}", "", "```{eval-rst}", method, "```", ""]
        if name == "annotate":
            out += [*_hints(), ""]
    return "\n".join(out)


def _hints() -> list[str]:
    """A table of the hints that `annotate` attaches."""
    from schedules.primitives.annotate import HINTS, values

    rows = []
    for hint, told in HINTS.items():
        what, _, means = told.partition(": ")
        rows.append(f"| `{hint}` | {what} | {values(hint)} | {_cell(means)} |")
    return ["| hint | of a | values | means |", "|---|---|---|---|", *rows]


def _signature(takes: inspect.Signature) -> str:
    """Parameters with their types, which are text, and defaults."""
    plain = [re.sub(r": '([^']*)'", r": \1", str(p)) for p in takes.parameters.values()]
    return f"({', '.join(plain)})"


def targets() -> str:
    """The targets that have a file."""
    import json

    rows = []
    for path in sorted((ROOT / "configs" / "targets").glob("*.json")):
        d = json.loads(path.read_text(encoding="utf-8"))
        rows.append(f"| `{path.stem}` | {d.get('kind', 'cpu')} | `{d.get('arch', '')}` |")
    return "\n".join(
        [
            "# Targets",
            "",
            "`--target` and `target=` take one of these names, the path of such a file, or one of `cpu`",
            "(this machine's CPU), `cuda` and `opencl` (its first GPU).",
            "",
            "| name | kind | architecture |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


# -- decisions and changes -----------------------------------------------------------------------


def decisions() -> str:
    """A list of the decisions with their titles."""
    pages = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    titles = [p.read_text(encoding="utf-8").splitlines()[0].lstrip("# ").strip() for p in pages]
    rows = [f"- [{title}](../adr/{p.name})" for p, title in zip(pages, titles, strict=True)]
    tree = ["```{toctree}", ":hidden:", "", *(f"../adr/{p.stem}" for p in pages), "```"]
    about = "Each page has a decision, its reasons, and what was measured."
    return "\n".join(["# Decisions", "", about, "", *rows, "", *tree, ""])


def changes() -> dict[str, str]:
    """A page for each version of the changelog, and one that lists them."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    pages: dict[str, str] = {}
    for part in parts[1:]:
        head, _, body = part.partition("\n")
        m = re.match(r"\[([^\]]+)\](.*)", head)
        name = m[1] if m else head.strip()
        title = f"{name}{m[2] if m else ''}"
        body = re.sub(r"^###", "##", body, flags=re.MULTILINE)
        body = re.sub(r"\]\(((?!https?:)[^)#]+)", r"](../../../\1", body)
        body = re.sub(r"^\[[^\]]+\]: .*$", "", body, flags=re.MULTILINE)
        pages[f"changes/{name.lower()}.md"] = f"# {title}\n{body}"
    names = [p.removeprefix("changes/").removesuffix(".md") for p in pages]
    rows = [f"- [{pages[f'changes/{n}.md'].splitlines()[0].lstrip('# ')}]({n}.md)" for n in names]
    tree = ["```{toctree}", ":hidden:", "", *names, "```"]
    pages["changes/index.md"] = "\n".join(["# Changes", "", *rows, "", *tree, ""])
    return pages


def _plain(text: str) -> str:
    return text.replace("<", "&lt;")


def _cell(text: str) -> str:
    return _options_as_code(" ".join(_plain(text).replace("|", "\\|").split()))


def _options_as_code(text: str) -> str:
    return re.sub(r"(?<![\w`-])(--[a-z][a-z-]*)", r"`\1`", text)
