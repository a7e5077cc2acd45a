"""``autotune ops``: the operator library."""

from __future__ import annotations

from typing import Any

import typer

from autotune.cli import models
from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import console, print_json, table


@takes(opt.LISTED_OP, opt.LISTED_SHAPE, *opt.OF_GGUF, opt.JSON)
def ops(o: Given) -> None:
    """List the operators, or one with its parameters, defaults, layouts and dtypes; or what a model runs: its
    tasks, and its operators that have no expression.

    \b
    Examples:
      autotune ops
      autotune ops conv2d
      autotune ops net.onnx --shape batch=1
    """
    from schedules import ops as library

    if o.on_model:
        models.show_model(o)
        return
    if o.shape:
        raise typer.BadParameter("--shape goes with a model's file")
    if o.op is not None:
        library.get(o.op)  # its error names the nearest operator
    found = [d for d in library.describe() if o.op in (None, d["name"])]
    if o.json:
        print_json(found[0] if o.op is not None else {"operators": found})
    elif o.op is None:
        # spaces, so that a narrow terminal breaks between parameters
        rows = [(d["name"], d["usage"].replace(",", ", ")) for d in found]
        table(console(), ("operator", "parameters"), rows)
        console().print("more on one, with an example: autotune ops conv2d")
    else:
        _print(found[0])


def _print(d: dict[str, Any]) -> None:
    out = console()
    out.print(f"{d['name']}  {d['doc']}")
    rows = [(p["name"], _default(p), p["form"], p["doc"]) for p in d["params"]]
    rows += [(short, "shorthand", "", " and ".join(names)) for short, names in d["shorthands"].items()]
    table(out, ("parameter", "default", "kind", "meaning"), rows)
    out.print(f"example  --shape {d['example']}")
    if d["layouts"]:
        out.print(f"layouts  {', '.join(d['layouts'])}; the first is the default (torch's is NCHW)")
    out.print(f"dtypes   {', '.join(d['dtypes'])}")
    if d["typed"]:
        out.print(f"also     {', '.join(d['typed'])}: dtypes of sums and of outputs, such as out_dtype=int32")


def _default(p: dict[str, Any]) -> str:
    """What a parameter is where it is not given."""
    if p["required"]:
        return f"required, or {p['instead']}" if p["instead"] else "required"
    return "" if p["default"] is None else str(p["default"])
