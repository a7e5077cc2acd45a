"""``autotune completion``: the script by which a shell completes commands, options and their values.

The script asks ``autotune --complete LINE``, which `answer` does. It reads the commands of the application.
It parses nothing, since Typer's parser loads pydantic, which takes longer than all else. For bash the word to
complete begins behind the last ``=`` or ``:``, as in ``--shape m=512,n=``; so the part before is cut off its
completions. Behind ``n=`` no shell may put a space.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.cli import options as opt
from autotune.cli.given import Given, takes

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


@takes(opt.SHELL)
def completion(o: Given) -> None:
    """Print the script that makes a shell complete commands, options, operators and their parameters.

    \b
    Examples:
      eval "$(autotune completion bash)"         # now; and, as a line of ~/.bashrc, in every shell
      eval "$(autotune completion zsh)"          # in ~/.zshrc, after compinit
      autotune completion fish > ~/.config/fish/completions/autotune.fish
    """
    print(SCRIPTS[o.shell], end="")


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
    op, before = given[0] if given else "", ""
    if pending is None and last.startswith("--") and "=" in last:
        pending, _, last = last.partition("=")
        before = f"{pending}="
    offered = opt.offered(getattr(command.callback, "rows", ()))
    if pending is not None:
        found = [*offered[pending](op, last)] if pending in offered else []
    elif last.startswith("-"):
        found = [name for name, p in options.items() if name.startswith("--") and not p.hidden]
    elif hasattr(command, "commands"):
        found = [name for name, c in command.commands.items() if not c.hidden]
    else:
        places = [p.metavar for p in command.params if p.param_type_name == "argument"]
        place = places[len(given)] if len(given) < len(places) else ""
        found = [*offered[place](op, last)] if place in offered else []
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
