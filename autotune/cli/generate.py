"""``autotune generate``: tokens of a language model after those of a prompt."""

from __future__ import annotations

import sys
import time

from autotune.cli import models
from autotune.cli import options as opt
from autotune.cli.given import Given, takes
from autotune.cli.output import print_json


@takes(
    *(opt.GGUF, opt.TOKENS, opt.MADE, opt.STOP, opt.GGUF_SHAPE, *opt.OF_GGUF, opt.TUNED_THREADS),
    *(opt.FALLBACK, opt.DB, opt.JSON),
)
def generate(o: Given) -> None:
    """Print the tokens that a language model makes after a prompt, each when it is made: the likeliest ones.

    Tokens are numbers: a tokenizer, which is another program, makes them of text, and text of them. Sampling
    is in Python: autotune.generate(..., choose=). Exit status 1: the model is not tuned.

    \b
    Examples:
      autotune generate x.gguf --tokens 1,306,4658 --n 32
      autotune generate x.gguf --tokens 1,306,4658 --stop 2 --threads 1 --json
      echo 1 306 4658 | autotune generate x.gguf --tokens - --fallback
    """
    import typer

    from autotune.models.generation import room_for, stream_tokens
    from autotune.models.token_calls import known_tokens

    if not o.on_gguf:
        raise typer.BadParameter(
            f"{o.op} is no language model in a file of GGUF; give the path of one, which ends in .gguf"
        )
    text = sys.stdin.read().replace(",", " ").strip() if o.tokens == "-" else o.tokens
    prompt = opt.whole_numbers(",".join(text.split()) if o.tokens == "-" else text, "--tokens")
    model = models.model_of(o)
    words = max((t.shape[-1] for t in model.outputs if t.shape), default=0)
    known_tokens(prompt, "--tokens", words, model.name)  # before kernels are compiled, which takes longer
    room_for(o.n, len(prompt), models.context_of(model), model.name)
    remedy = "; or allow kernels that are not tuned: --fallback"
    net = models.compiled(o, model, remedy, fallback=o.fallback)
    made: list[int] = []
    times = [time.perf_counter()]
    for token in stream_tokens(net, prompt, o.n, stop=o.stop or ()):
        times.append(time.perf_counter())
        made.append(token)
        if not o.json:
            print(token, flush=True)
    if o.json:
        took = times[-1] - times[1]
        print_json(
            {
                "model": net.name,
                "threads": net.target.threads,
                "prompt": list(prompt),
                "tokens": made,
                "first_s": times[1] - times[0],
                "tokens_a_second": (len(made) - 1) / took if took else None,
            }
        )
