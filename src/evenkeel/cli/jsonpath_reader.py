"""Reads the templates of `jsonpath`: text with paths in braces, and ranges. Pure."""

import re

from evenkeel.cli.jsonpath import (
    FEWEST,
    Below,
    Every,
    Field,
    Filter,
    JsonPathError,
    Literal,
    Path,
    Range,
    Slice,
    Step,
    Template,
    Union,
)  # fmt: skip

_END = frozenset(" \t\r\n.,[]$@{}")  # what ends a name, unless it is escaped
_SLICE = re.compile(r"(-?\d*)(:(-?\d*))?(:(-?\d*))?")
_COMPARISON = re.compile(r"([^!<>=]+)([!<>=]+)(.+)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.|$)", re.DOTALL)
_ESCAPED = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_COMPARED = frozenset(("==", "!=", "<", "<=", ">", ">="))


def parse(text: str) -> Template:
    """Reads a template. One without any brace is a path. Raises JsonPathError."""
    return _Reader(text if "{" in text or "}" in text else relaxed(text)).template()


def relaxed(path: str) -> str:
    """A path without braces or without its first dot, as columns have it."""
    inner = path[1:-1] if path.startswith("{") and path.endswith("}") else path
    if not inner or "{" in inner or "}" in inner:
        raise JsonPathError(f'"{path[:100]}" is not a path such as .metadata.name')
    return "{" + inner + "}" if inner[0] in ".[$@" else "{." + inner + "}"


class _Reader:
    """Reads one template from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def template(self) -> Template:
        blocks: list[tuple[Path, list[Path | Range]]] = [
            ((), [])
        ]  # of ranges that are open, the outermost first
        while self._at < len(self._text):
            path, word = self._part()
            if word == "range":
                blocks.append((path, []))
            elif word == "end":
                if len(blocks) == 1:
                    raise self._error("{end} has no {range …} before it")
                self._close(blocks)
            else:
                blocks[-1][1].append(path)
        while len(blocks) > 1:  # as in kubectl, a range may go on to the end
            self._close(blocks)
        return tuple(blocks[0][1])

    @staticmethod
    def _close(blocks: list[tuple[Path, list[Path | Range]]]) -> None:
        path, parts = blocks.pop()
        blocks[-1][1].append(Range(path, tuple(parts)))

    def _part(self) -> tuple[Path, str]:
        """The next text or path, and the word at its beginning: range, end or none."""
        if self._text[self._at] != "{":
            end = self._text.find("{", self._at)
            end = len(self._text) if end < 0 else end
            text, self._at = self._text[self._at : end], end
            return (Literal(text),), ""
        self._at += 1
        steps: list[Step] = []
        first = self._spaced_word()
        while self._peek() != "}":
            self._step(steps)
        self._at += 1
        return tuple(steps), first

    def _spaced_word(self) -> str:
        self._skip_spaces()
        word = re.compile(r"(range|end)\b").match(self._text, self._at)
        if word is None:
            return ""
        self._at = word.end()
        return word[1]

    def _skip_spaces(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _peek(self) -> str:
        self._skip_spaces()
        if self._at >= len(self._text):
            raise self._error("a { has no } after it")
        return self._text[self._at]

    def _step(self, steps: list[Step]) -> None:
        rest = self._text[self._at :]
        if rest.startswith("[?("):
            steps.append(self._filter())
        elif rest.startswith(".."):
            if steps and isinstance(steps[-1], Below):
                raise self._error(".. stands twice")
            self._at += 2
            steps.append(Below())
            if self._text[self._at : self._at + 1] not in _END:
                steps.append(self._field())
        elif rest[0] in "@$":
            self._at += 1
        elif rest[0] == ".":
            self._at += 1
            if self._text[self._at : self._at + 1] not in ("", " ", "}", "["):
                steps.append(self._field())
        elif rest[0] == "[":
            self._bracket(steps)
        elif rest[0] in "\"'":
            steps.append(Literal(self._quoted()))
        else:
            steps.append(self._word())

    def _field(self) -> Step:
        name = ""
        while self._at < len(self._text) and self._text[self._at] not in _END:
            self._at += self._text[self._at] == "\\"
            name += self._text[self._at : self._at + 1]
            self._at += 1
        return Every() if name == "*" else Field(name)

    def _word(self) -> Step:
        if number := _NUMBER.match(self._text, self._at):
            self._at = number.end()
            return Literal(float(number[0]) if number[1] else int(number[0]))
        begin = self._at
        while self._at < len(self._text) and self._text[self._at] not in _END:
            self._at += 1
        word = self._text[begin : self._at]
        if word in ("true", "false"):
            return Literal(word == "true")
        raise self._error(f'"{(word or self._text[begin])[:40]}" is no path: a path begins with a dot')

    def _quoted(self) -> str:
        quote, begin = self._text[self._at], self._at + 1
        self._at = begin
        while self._text[self._at : self._at + 1] != quote:
            self._at += 2 if self._text[self._at : self._at + 1] == "\\" else 1
            if self._at >= len(self._text):
                raise self._error(f"a {quote} has no {quote} after it")
        self._at += 1
        return _ESCAPE.sub(self._unescaped, self._text[begin : self._at - 1])

    def _unescaped(self, escape: re.Match[str]) -> str:
        code = escape[1]
        if code in _ESCAPED:
            return _ESCAPED[code]
        if len(code) > 1:
            return chr(int(code[1:], 16) if code[0] in "xuU" else int(code, 8))
        raise self._error(f"\\{code} is no escape: write \\n, \\t or \\\\")

    def _bracket(self, steps: list[Step]) -> None:
        end = self._text.find("]", self._at)
        if end < 0:
            raise self._error("a [ has no ] after it")
        inner, self._at = self._text[self._at + 1 : end], end + 1
        parts = inner.split(",")
        if len(parts) > 1:
            steps.append(Union(tuple(self._selected(part.strip()) for part in parts)))
        else:
            steps.extend(self._selected(inner))

    def _selected(self, inner: str) -> Path:
        """The steps of one index, slice or name in brackets."""
        if len(inner) > 1 and inner[0] == inner[-1] == "'":
            return _Reader(
                "{." + inner[1:-1] + "}"
            ).path()  # as in kubectl, a dot of the name is escaped here, too
        if inner == "*":
            return (Slice(None, None, None, is_index=False),)
        parts = _SLICE.fullmatch(inner)
        if parts is None or not inner:
            raise self._error(
                f"[{inner[:40]}] is neither a number nor a slice, and a name stands in single quotes"
            )
        first, last, step = (int(parts[group]) if parts[group] else None for group in (1, 3, 5))
        if step is not None and step < FEWEST:
            raise self._error(f"[{inner[:40]}]: the step of a slice is at least {FEWEST}")
        return (Slice(first, last, step, is_index=parts[2] is None),)

    def path(self) -> Path:
        """For a text that is one path."""
        (path,) = self.template()
        if isinstance(path, Range):
            raise self._error("a path cannot have a range in it")
        return path

    def _filter(self) -> Filter:
        begin = self._at = self._at + len("[?(")
        while self._text[self._at : self._at + 1] not in (")", ""):
            if self._text[self._at] in "\"'":
                self._quoted()
            else:
                self._at += 1
        text = self._text[begin : self._at]
        if not self._text.startswith(")]", self._at):
            raise self._error("a filter [?( has no )] after it")
        self._at += len(")]")
        comparison = _COMPARISON.fullmatch(text)
        if comparison is None:
            return Filter(_Reader("{" + text + "}").path())
        left, operator, right = comparison.groups()
        if operator not in _COMPARED:
            raise self._error(f"{operator} compares nothing: write ==, !=, <, <=, > or >=")
        return Filter(_Reader("{" + left + "}").path(), operator, _Reader("{" + right + "}").path())

    def _error(self, problem: str) -> JsonPathError:
        return JsonPathError(f'the template "{self._text[:200]}" cannot be read: {problem}')
