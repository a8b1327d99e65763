"""Scripts by which a shell completes the commands and options of `nightrank`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SHELLS = ("bash", "zsh")

_SCRIPT = """\
_nightrank() {{
    local words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _nightrank nightrank
"""
_ZSH = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def completion(shell: str, options: Mapping[str, Sequence[str]]) -> str:
    """Returns the script for a shell. Where no option fits, file names are completed.

    Args:
        shell: one of SHELLS. zsh runs the script for bash.
        options: maps each command to its options.
    """
    cases = "\n".join(
        f'            {command}) words="{" ".join(words)}" ;;' for command, words in sorted(options.items())
    )
    script = _SCRIPT.format(commands=" ".join(sorted(options)), cases=cases)
    return _ZSH + script if shell == "zsh" else script
