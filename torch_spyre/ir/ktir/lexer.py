"""Tokens of KTIR, made as they are asked for: a cursor over the text, with one token of look-ahead."""

from __future__ import annotations

import re

from .source import KtirError, Source

_TOKEN = re.compile(
    r"""(?:[ \t\r\n]+|//[^\n]*)*(?:
    (?P<value>%[\w$.-]+(?:\#\d+)?)
  | (?P<number>0x[0-9a-fA-F]+\b|\d+\.\d*(?:[eE][-+]?\d+)?|\d+(?:[eE][-+]?\d+)?)
  | (?P<name>[A-Za-z_][\w$.]*)
  | (?P<punct>->|==|>=|<=|::|[()\[\]{}<>,:=+\-*/?|;])
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<symbol>@(?:[\w$.-]+|"[^"\n]*"))
  | (?P<alias>\#[\w$.]+)
  | (?P<dialect_type>![\w$.]+)
  | (?P<block>\^[\w$.-]+)
  | (?P<end>\Z)
  )""",
    re.VERBOSE,
)
MOST_NESTING = 200  # regions, types and expressions inside of each other


class Cursor:
    """The next token is (kind, text) from ``start`` to ``after``."""

    def __init__(self, source: Source) -> None:
        self.source, self.text = source, source.text
        self.kind: str = ""
        self.token: str = ""
        self.start = self.after = 0
        self.depth = 0
        self.read(0)

    def read(self, position: int) -> None:
        match = _TOKEN.match(self.text, position)
        if match is None:
            skipped = re.compile(r"(?:[ \t\r\n]+|//[^\n]*)*").match(self.text, position)
            at = skipped.end() if skipped else position
            raise self.source.error(at, f"unexpected character {self.text[at]!r}")
        self.kind = match.lastgroup or ""
        self.token = match[self.kind]
        self.start, self.after = match.span(self.kind)

    def advance(self) -> str:
        token = self.token
        self.read(self.after)
        return token

    def error(self, why: str, position: int | None = None) -> KtirError:
        return self.source.error(self.start if position is None else position, why)

    def expected(self, what: str) -> KtirError:
        seen = "the end of the text" if self.kind == "end" else repr(self.token)
        return self.error(f"expected {what}, not {seen}")

    def at(self, token: str) -> bool:
        return self.token == token and self.kind not in ("string", "end")

    def accept(self, token: str) -> bool:
        if self.token == token and self.kind not in ("string", "end"):
            self.read(self.after)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.expected(f"'{token}'")

    def take(self, kind: str, what: str) -> str:
        if self.kind != kind:
            raise self.expected(what)
        return self.advance()

    def name(self, what: str = "a name") -> str:
        return self.take("name", what)

    def integer(self) -> int:
        negative = self.accept("-")
        text = self.take("number", "a whole number")
        try:
            value = int(text, 0) if text.startswith("0x") else int(text)
        except ValueError:
            raise self.error(f"expected a whole number, not {text!r}") from None
        if value >= 1 << 64:
            raise self.error("a number of more than 64 bits")
        return -value if negative else value

    def nest(self) -> None:
        self.depth += 1
        if self.depth > MOST_NESTING:
            raise self.error(f"more than {MOST_NESTING} levels of nesting")

    def leave(self) -> None:
        self.depth -= 1

    def balanced(self, open_: str = "<", close: str = ">") -> str:
        """The text from an opening bracket to the one that closes it, both included."""
        begin, depth = self.start, 0
        while True:
            if self.kind == "end":
                raise self.error(f"'{open_}' is not closed", begin)
            if self.at(open_):
                depth += 1
            elif self.at(close):
                depth -= 1
                if depth == 0:
                    end = self.after
                    self.advance()
                    return self.text[begin:end]
            self.advance()
