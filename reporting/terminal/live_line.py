"""A line on a terminal that is redrawn while a job runs."""

from __future__ import annotations

import os
from shutil import get_terminal_size
from typing import TextIO


class LiveLine:
    """A line that each call of draw() replaces.

    If the stream is not a terminal, or one without control sequences (TERM=dumb), nothing is drawn.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawn = False
        self.is_terminal = stream.isatty() and os.environ.get("TERM") != "dumb"

    def draw(self, text: str) -> None:
        """Replaces the text of the line. A terminal would break a longer line, and could not erase it."""
        if self.is_terminal:
            text = text[: get_terminal_size().columns - 1]
            self._write(f"\r\x1b[K{text}")
            self._drawn = True

    def erase(self) -> None:
        """Removes the line, so that the next text appears in its place."""
        if self._drawn:
            self._write("\r\x1b[K")
        self._drawn = False

    def end(self) -> None:
        """Ends the line and keeps its text. The next text begins on a new line."""
        if self._drawn:
            self._write("\n")
        self._drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
