"""Asks the person who runs `init` what the first rows of a log do not show, or records the questions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TextIO


@dataclass
class Questions:
    """Answers questions. The first of the possible answers is the most likely.

    Attributes:
        ask: whether a person answers. Otherwise the first answer is taken.
        open: the questions that no person answered, with the answer that was taken.
    """

    ask: bool
    open: list[str] = field(default_factory=list)
    _input: TextIO = field(default_factory=lambda: sys.stdin)
    _output: TextIO = field(default_factory=lambda: sys.stderr)

    def choose(self, question: str, answers: Sequence[str]) -> str:
        """Returns one of the answers. Does not ask if there is only one answer."""
        if len(answers) == 1:
            return answers[0]
        if not self.ask:
            others = ", ".join(answers[1:4])
            self.open.append(f"{question} {answers[0]} was taken; other possible answers: {others}")
            return answers[0]
        listed = "\n".join(f"  {number}  {answer}" for number, answer in enumerate(answers, 1))
        while True:
            self._output.write(f"{question}\n{listed}\n[1] ")
            self._output.flush()
            line = self._input.readline()
            answer = line.strip() or "1"
            if answer in answers:
                return answer
            if answer.isdigit() and 1 <= int(answer) <= len(answers):
                return answers[int(answer) - 1]
            if not line:  # the input has ended
                return answers[0]
            self._output.write(f"Type a number from 1 to {len(answers)}, or nothing for 1.\n")
