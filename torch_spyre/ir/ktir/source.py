"""Text with positions, and errors that tell them."""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

MOST_TEXT = 1 << 26  # characters of a file


class KtirError(ValueError):
    """What is wrong with a program: file, line, column, the op, and why."""

    def __init__(self, why: str, line: int = 0, column: int = 0, name: str = "") -> None:
        self.line, self.column = line, column
        place = f"{name}:" if name else ""
        super().__init__(f"{place}{line}:{column}: {why}" if line else f"{place} {why}".strip())


def read(path: Path) -> str:
    """The text of a file, up to one character more than is allowed."""
    with path.open("rb") as file:
        content = file.read(MOST_TEXT + 1)
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        raise KtirError("this byte is no UTF-8: the file is no text", line, column, str(path)) from None


class Source:
    """A program's text; positions in it are character offsets."""

    def __init__(self, text: str, name: str = "") -> None:
        self.text, self.name = text, name
        self._lines: list[int] | None = None

    def place(self, position: int) -> tuple[int, int]:
        """Line and column, from 1."""
        if self._lines is None:
            self._lines = [0, *(i + 1 for i, c in enumerate(self.text) if c == "\n")]
        line = bisect_right(self._lines, position)
        return line, position - self._lines[line - 1] + 1

    def error(self, position: int, why: str) -> KtirError:
        return KtirError(why, *self.place(position), self.name)


class LaunchError(KtirError):
    """A launch folder, or what it is launched with, is wrong; nothing has run."""
