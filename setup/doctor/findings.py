"""The results of checks: something is fine, should be looked at, or must be corrected."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

_WIDTH = 110


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        subject: the checked part of the node, in one to three words.
        text: the result of the check.
        remedy: how to correct the node; None if nothing need be done.
        is_warning: whether the jobs run even without the remedy.
    """

    subject: str
    text: str
    remedy: str | None = None
    is_warning: bool = False

    @property
    def fine(self) -> bool:
        """Returns whether the jobs run on this node as it is."""
        return self.remedy is None or self.is_warning


Check = Callable[[], Iterable[Finding]]


def findings_of(checks: Sequence[tuple[str, Check]]) -> list[Finding]:
    """Returns the findings of all checks. An unexpected error of a check becomes a finding of its subject."""
    found: list[Finding] = []
    for subject, check in checks:
        try:
            found += check()
        except Exception as error:  # one broken check must not hide the others
            problem = f"the check itself failed: {type(error).__name__}: {error}"
            found.append(Finding(subject, problem, "correct what the message names, and check again"))
    return found


def shown(findings: Sequence[Finding]) -> str:
    """Returns the findings as text: a line for each, its remedy below it, and the result at the end."""
    wide = max((len(finding.subject) for finding in findings), default=0)
    indent = " " * (wide + 7)
    lines: list[str] = []
    for finding in findings:
        mark = "WARN " if finding.is_warning else "ok   " if finding.fine else "FIX  "
        lines += _wrapped(f"{mark}{finding.subject:<{wide}}  ", finding.text, indent)
        if finding.remedy is not None:
            lines += _wrapped(f"{indent}→ ", finding.remedy, indent)
    wrong = sum(not finding.fine for finding in findings)
    many = "1 thing" if wrong == 1 else f"{wrong} things"
    lines.append(f"{many} to correct" if wrong else "this node can run the jobs of the profile")
    return "\n".join(lines)


def _wrapped(first: str, text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
