"""``autotune completion``: the script by which a shell completes commands, options and their values.

The script asks ``autotune --complete LINE``, which `answer` does. It reads the commands of the application.
It parses nothing, since Typer's parser loads pydantic, which takes longer than all else. For bash the word to
complete begins behind the last ``=`` or ``:``, as in ``--shape m=512,n=``; so the part before is cut off its
completions. Behind ``n=`` no shell may put a space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from autotune.settings import LOG_LEVELS

BASH = r"""
_autotune_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" breaks="${COMP_WORDBREAKS//[^=:]/}" cut="" value
    local word="${line##*[[:space:]]}"
    [[ -n $breaks ]] && cut="${word%"${word##*[$breaks]}"}"
    COMPREPLY=()
    while IFS= read -r value; do
        COMPREPLY+=("${value#"$cut"}")
    done < <("$1" --complete "$line" 2>/dev/null)
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -o default -F _autotune_completion autotune
"""
ZSH = r"""
#compdef autotune
_autotune_completion() {
    local -a found=("${(@f)$(${words[1]} --complete "${words[1,CURRENT]}" 2>/dev/null)}")
    local -a ends=(${found:#*=}) goes_on=(${(M)found:#*=})
    (( $#ends + $#goes_on )) || { _files; return }
    compadd -a ends
    compadd -S '' -a goes_on
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then  # a file of fpath, at its first use
    _autotune_completion "$@"
else
    compdef _autotune_completion autotune
fi
"""
FISH = r"""
function __autotune_completion
    set -l found (autotune --complete (commandline -cp) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command autotune --no-files --arguments "(__autotune_completion)"
"""
SCRIPTS = {"bash": BASH.lstrip(), "zsh": ZSH.lstrip(), "fish": FISH.lstrip()}


def completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help=f"One of {', '.join(SCRIPTS)}.")],
) -> None:
    """Print the script that makes a shell complete commands, options, operators and their parameters.

    \b
    Examples:
      eval "$(autotune completion bash)"         # now; and, as a line of ~/.bashrc, in every shell
      eval "$(autotune completion zsh)"          # in ~/.zshrc, after compinit
      autotune completion fish > ~/.config/fish/completions/autotune.fish
    """
    from autotune.cli.options import one_of

    one_of("SHELL", shell, tuple(SCRIPTS))
    print(SCRIPTS[shell], end="")


def answer(command: Any, line: str) -> list[str]:
    """Completions of the last word of a line, which is empty behind a space. ``command``: that of the whole
    application."""
    *words, last = line.split(" ")
    words = [w for w in words[1:] if w]
    while words and hasattr(command, "commands"):
        word = words.pop(0)
        if not word.startswith("-"):
            command = command.commands.get(word)
        elif words and any(word in p.opts and not getattr(p, "is_flag", True) for p in command.params):
            words.pop(0)  # its value
    if command is None:
        return []
    options = {name: p for p in command.params for name in p.opts if name.startswith("-")}
    given, pending = _positional(words, options)
    before = ""
    if pending is None and last.startswith("--") and "=" in last:
        pending, _, last = last.partition("=")
        before = f"{pending}="
    if pending is not None:
        found = _values(VALUES.get(pending), given, last)
    elif last.startswith("-"):
        found = [name for name, p in options.items() if name.startswith("--") and not p.hidden]
    elif hasattr(command, "commands"):
        found = [name for name, c in command.commands.items() if not c.hidden]
    else:
        places = [p.metavar for p in command.params if p.param_type_name == "argument"]
        found = _values(VALUES.get(places[len(given)]), given, last) if len(given) < len(places) else []
    return [before + x for x in found if x.startswith(last)]


def _positional(words: Sequence[str], options: dict[str, Any]) -> tuple[list[str], str | None]:
    """Of words: those that are no options nor their values, and the option whose value is still to come."""
    given: list[str] = []
    pending: str | None = None
    for word in words:
        if pending is not None:
            pending = None
        elif word in options:
            pending = None if options[word].is_flag else word
        elif not word.startswith("-"):
            given.append(word)
    return given, pending


def _values(values: Callable[[str, str], Iterable[str]] | None, given: Sequence[str], last: str) -> list[str]:
    return [] if values is None else list(values(given[0] if given else "", last))


def _operators(op: str, last: str) -> Iterable[str]:
    from schedules.ops import REGISTRY

    return REGISTRY


def _shape(op: str, last: str) -> Iterable[str]:
    """``NAME=`` for each parameter that ``--shape`` does not give yet."""
    from schedules.ops import REGISTRY

    if op not in REGISTRY:
        return
    found = REGISTRY[op]
    *before, name = last.split(",")
    if "=" in name and not name.endswith("="):  # its value stands there: the next one
        before.append(name)
    start = "".join(f"{item}," for item in before)
    given = {item.partition("=")[0] for item in before}
    taken = {*given}
    for p in found.params:  # shape=2x3 stands for m=2 and n=3
        if p.instead:
            taken |= {p.instead} if p.name in given else {p.name} if p.instead in given else set()
    for short, names in found.shorthands:  # k=3 is kh=3 and kw=3
        taken |= {*names} if short in taken else {short} if taken & {*names} else set()
    yield from (f"{start}{x}=" for x in found.keywords() if x not in taken)


def _dtypes(op: str, last: str) -> Iterable[str]:
    from schedules.dtypes import DTYPES
    from schedules.ops import REGISTRY

    return REGISTRY[op].dtypes if op in REGISTRY else DTYPES


def _layouts(op: str, last: str) -> Iterable[str]:
    from schedules.ops import OPERATORS, REGISTRY

    some = (REGISTRY[op],) if op in REGISTRY else OPERATORS
    return dict.fromkeys(name for o in some for name in o.layouts)


def _targets(op: str, last: str) -> Iterable[str]:
    from autotune import backends
    from autotune.targets.names import described

    return dict.fromkeys([*backends.kinds(), *described()])


def _peers(op: str, last: str) -> Iterable[str]:
    """Those that the list does not have yet."""
    from autotune.measure.compare.peers import PEERS

    before, comma, _ = last.rpartition(",")
    return [f"{before}{comma}{name}" for name in PEERS if name not in before.split(",")]


def _searches(op: str, last: str) -> Iterable[str]:
    from autotune.search.policies import POLICIES

    return POLICIES


def _models(op: str, last: str) -> Iterable[str]:
    from cost_model.models import MODELS

    return MODELS


# What an option or an argument takes, of the operator and the word so far. Others take numbers, or files,
# which the shell completes.
VALUES: dict[str, Callable[[str, str], Iterable[str]]] = {
    "OP": _operators,
    "SHELL": lambda op, last: SCRIPTS,
    "--shape": _shape,
    "--dtype": _dtypes,
    "--layout": _layouts,
    "--target": _targets,
    "--against": _peers,
    "--must-beat": _peers,
    "--search": _searches,
    "--model": _models,
    "--cost-model": _models,
    "--log-level": lambda op, last: LOG_LEVELS,
}
