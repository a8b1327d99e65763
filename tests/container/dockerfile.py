"""Reads a Dockerfile: a list of instructions, and the stages that they form. It refuses what it does not know."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

# The instructions that our recipe may contain, with the flags that each may have.
FLAGS = {
    "FROM": set(),
    "ARG": set(),
    "ENV": set(),
    "RUN": set(),
    "COPY": {"from", "chmod", "chown"},
    "WORKDIR": set(),
    "USER": set(),
    "ENTRYPOINT": set(),
    "CMD": set(),
}
_IN_BRACKETS = {"ENTRYPOINT", "CMD"}
_ONE_WORD = {"ARG", "WORKDIR", "USER"}


class DockerfileError(ValueError):
    """A line that the reader does not understand."""


@dataclass(frozen=True)
class Instruction:
    """An instruction.

    Attributes:
        word: its name in capitals, such as COPY.
        flags: its flags without dashes, such as {"from": "build"}.
        text: the rest, with lines joined and white space reduced to single blanks.
        words: the words of the rest; for RUN, all of it as one word.
        line: the number of its first line, from 1.
    """

    word: str
    flags: dict[str, str]
    text: str
    words: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Stage:
    """A FROM and the instructions after it, up to the next FROM."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]

    def all(self, word: str) -> list[Instruction]:
        """Returns the instructions of this name, in order."""
        return [instruction for instruction in self.instructions if instruction.word == word]


def parse(text: str) -> list[Instruction]:
    """Returns the instructions of a Dockerfile.

    Raises:
        DockerfileError: an instruction or a flag is not in `FLAGS`, or its arguments are incomplete.
    """
    instructions = []
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not joined and not line.strip()):
            continue
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        instructions.append(_instruction(joined + line, first))
        joined, first = "", 0
    if joined:
        raise DockerfileError(f"line {first}: the last line ends with a backslash")
    return instructions


def _instruction(line: str, number: int) -> Instruction:
    word, _, rest = re.sub(r"\s+", " ", line.strip()).partition(" ")
    if word not in FLAGS:
        raise DockerfileError(f"line {number}: unknown instruction {word}")
    flags = {}
    while match := re.match(r"--([a-z-]+)=(\S+) ", rest):
        flags[match[1]] = match[2]
        rest = rest[match.end() :]
    if rest.startswith("--") or not flags.keys() <= FLAGS[word]:
        raise DockerfileError(f"line {number}: unknown flag of {word}: {rest.split()[0]} {sorted(flags)}")
    if not rest:
        raise DockerfileError(f"line {number}: {word} has no arguments")
    words = _words(word, rest, number)
    _check_words(word, words, number)
    return Instruction(word, flags, rest, words, number)


def _words(word: str, rest: str, number: int) -> tuple[str, ...]:
    if word == "RUN":
        return (rest,)
    try:
        return tuple(json.loads(rest)) if word in _IN_BRACKETS else tuple(shlex.split(rest))
    except ValueError as error:
        raise DockerfileError(f"line {number}: {word} {rest}: {error}") from error


def _check_words(word: str, words: Sequence[str], number: int) -> None:
    wrong = (
        (word == "FROM" and not (len(words) == 3 and words[1] == "AS"))
        or (word == "COPY" and len(words) < 2)
        or (word == "COPY" and len(words) > 2 and not words[-1].endswith("/"))
        or (word == "ENV" and any(not re.fullmatch(r"[A-Z_]+=.+", pair) for pair in words))
        or (word in _ONE_WORD and len(words) != 1)
    )
    if wrong:
        raise DockerfileError(f"line {number}: wrong arguments of {word}: {' '.join(words)}")


def stages(instructions: Sequence[Instruction]) -> dict[str, Stage]:
    """Returns the stages by name.

    Raises:
        DockerfileError: the first instruction is not FROM, or two stages have the same name.
    """
    if not instructions or instructions[0].word != "FROM":
        raise DockerfileError("the first instruction is not FROM")
    starts = [place for place, instruction in enumerate(instructions) if instruction.word == "FROM"]
    by_name: dict[str, Stage] = {}
    for start, end in zip(starts, [*starts[1:], len(instructions)], strict=True):
        base, _, name = instructions[start].words
        if name in by_name:
            raise DockerfileError(f"line {instructions[start].line}: there are two stages {name}")
        by_name[name] = Stage(name, base, tuple(instructions[start + 1 : end]))
    return by_name
