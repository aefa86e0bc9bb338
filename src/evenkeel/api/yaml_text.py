"""YAML text (and JSON, which is YAML) as plain values that know their lines.

The values are built from the events of the C parser with a stack of our own. Deep nesting, aliases and duplicate keys
lead to a message and never to a crash or to unlimited memory. Scalars are read as Kubernetes reads them (with the words
of YAML 1.1 for true and false), but dates stay text, and a number with a fraction keeps its text for exact quantities.
"""

import re
from collections.abc import Iterator

import yaml

from evenkeel.api.lined_values import Document, LinedDict, LinedList, SpelledFloat, SpelledInt
from evenkeel.api.yaml_forms import plain_yaml
from evenkeel.errors import Problem
from evenkeel.named_tuples import NamedTuple

MAX_DEPTH = 100
MAX_VALUES = 200_000  # in one document
MAX_DOCUMENTS = 100_000  # empty ones too: each takes the parser a while


def documents(text: str, problems: list[Problem]) -> Iterator[Document]:
    """Each document of `text` that is not empty. Errors in the text are added to `problems`. JSON objects one after the
    other are documents, as for kubectl."""
    if (value := _json_of_one_line(text)) is not None:
        yield Document(value, 1)
        return
    loader = yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader
    builder = _Builder()
    text = plain_yaml(text, loader)
    try:
        for event in yaml.parse(text, Loader=loader):
            document = builder.take(event)
            if document is not None and document.value is not None:
                yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        line = mark.line + 1 if mark else 0
        if mark and _line_of(text, line)[mark.column : mark.column + 1] == "\t":
            what = "holds a tab where a line begins: indent it with spaces"
        if mark and (escape := _ESCAPE(text, mark.index)) and "escape" in (error.problem or ""):
            what = f"{escape[0]} is no escape in double quotes: write \\{escape[0]}, or use single quotes"
        hint = _hint(text, line) or _hint(text, error.context_mark.line + 1 if error.context_mark else 0)
        problems.append(Problem("", f"is not YAML: {what}{hint}", "Decode", line=line))
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        message = f"is not YAML: holds the character {error.character:#04x}, which it does not allow"
        problems.append(Problem("", message, "Decode", line=line))
    except yaml.YAMLError as error:
        problems.append(Problem("", f"is not YAML: {' '.join(str(error).split())}", "Decode"))
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        problems.append(Problem("", "is not YAML: holds half of a surrogate pair", "Decode", line=line))
    except _Refused as error:
        problems.append(Problem("", f"{error.message}{_hint(text, error.line)}", "Decode", line=error.line))


# In such a text JSON and YAML have the same values. Escapes of characters can be halves of surrogate pairs, which YAML
# does not have, and it takes no long keys. A value has two characters at least, its comma included.
_LONGEST_JSON = 2 * MAX_VALUES
_LONGEST_JSON_KEY = 128
_BRACKETS = re.compile(r"[\[{][^\[\]{}]*[\]}]").sub
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*"').sub


def _json_of_one_line(text: str) -> LinedDict | None:
    """The object, if the text is one in JSON on one line, as our own client sends it. Returns None for any other text,
    with mistakes or without: the parser of YAML reads it, and takes several times as long."""
    text = text.rstrip("\n")
    if not (text[:1] == "{" and len(text) <= _LONGEST_JSON and text.isascii() and text.isprintable()):
        return None
    if "\\u" in text or _is_deep(text):
        return None
    import json  # YAML in its own form does not need it

    try:
        value = json.loads(
            text,
            object_pairs_hook=_json_object,
            parse_int=_number,
            parse_float=_number,
            parse_constant=_no_json,
        )
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, LinedDict) else None


def _json_object(pairs: list[tuple[str, object]]) -> LinedDict:
    value = LinedDict()
    value.update(pairs)
    if len(value) != len(pairs) or max(map(len, value), default=0) > _LONGEST_JSON_KEY:
        raise ValueError
    value.lines = dict.fromkeys(value, 1)
    return value


def _no_json(text: str) -> object:
    """NaN and Infinity are in no standard."""
    raise ValueError(text)


def _is_deep(text: str) -> bool:
    """Whether collections of a text in JSON are nested too deep: each round takes the innermost ones away."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    text = _STRINGS("", text)
    for _ in range(MAX_DEPTH):
        text, found = _BRACKETS("", text), text
        if text == found:
            return False
    return "{" in text or "[" in text


_ESCAPE = re.compile(r"\\[!-~]").match


def _line_of(text: str, line: int) -> str:
    return next(iter(text.split("\n", line)[line - 1 : line]), "") if line else ""


def _hint(text: str, line: int) -> str:
    """What to do about a line of a template that was not rendered."""
    if "{{" not in _line_of(text, line):
        return ""
    return "; {{ is of a template, such as Helm's: hand in what it becomes (helm template)"


class _Refused(Exception):
    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class _Merge:
    """The merge key `<<` of YAML, if it is not a text in quotes."""


_MERGE = _Merge()


class _Open(NamedTuple):
    """A collection whose end event has not come yet."""

    value: LinedDict | LinedList
    key: list[str | _Merge]  # the key of a mapping that waits for its value: empty or one item
    merges: list[object]
    anchor: str | None
    values_before: int
    line: int


class _Builder:
    """Builds one document after the other from parser events."""

    def __init__(self) -> None:
        self._documents = 0
        self._start()

    def _start(self, line: int = 1) -> None:
        self._line = line
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[object, int]] = {}
        self._values = 0
        self._root: object = None

    def take(self, event: yaml.Event) -> Document | None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._close(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > MAX_DOCUMENTS:
                raise _Refused(f"holds more than {MAX_DOCUMENTS} documents: split it", _line(event))
            self._start(_line(event))
        elif isinstance(event, yaml.DocumentEndEvent):
            return Document(self._root, self._line)
        return None

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        line = _line(event)
        if self._expects_key() and event.tag in (
            None,
            "!",
            "tag:yaml.org,2002:str",
            "tag:yaml.org,2002:merge",
        ):
            if event.anchor:
                self._anchors[event.anchor] = (event.value, 1)
            is_merge = event.value == "<<" and (event.implicit[0] or event.tag == "tag:yaml.org,2002:merge")
            self._key(_MERGE if is_merge else event.value, line)
            return
        value = _scalar(event, line)
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)
        self._put(value, line)

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        line = _line(event)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", "tag:yaml.org,2002:map" if is_mapping else "tag:yaml.org,2002:seq"):
            raise _Refused(f"the tag {_tag(event.tag)} is not supported: leave it out", line)
        if len(self._stack) >= MAX_DEPTH:
            raise _Refused(f"is nested more than {MAX_DEPTH} deep", line)
        if self._expects_key():
            raise _Refused("a key must be a single word, not a list or mapping", line)
        value: LinedDict | LinedList = LinedDict() if is_mapping else LinedList()
        self._stack.append(_Open(value, [], [], event.anchor, self._values, line))
        self._count(1, line)

    def _close(self, event: yaml.MappingEndEvent | yaml.SequenceEndEvent) -> None:
        closed = self._stack.pop()
        if isinstance(closed.value, LinedDict):
            for merged in closed.merges:
                _merge(merged, closed.value, _line(event))
        if closed.anchor:
            self._anchors[closed.anchor] = (closed.value, self._values - closed.values_before)
        self._put(closed.value, closed.line, counted=True)

    def _alias(self, event: yaml.AliasEvent) -> None:
        line = _line(event)
        if event.anchor not in self._anchors:
            raise _Refused(f"*{event.anchor} refers to no finished &{event.anchor} above it", line)
        value, values = self._anchors[event.anchor]
        if self._expects_key():
            raise _Refused("a key must be a single word, not an alias", line)
        # The value of an alias counts each time. Otherwise a few lines could become billions of values.
        self._count(values, line)
        self._put(value, line, counted=True)

    def _expects_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].value, LinedDict) and not self._stack[-1].key

    def _key(self, key: str | _Merge, line: int) -> None:
        mapping = self._stack[-1].value
        assert isinstance(mapping, LinedDict)
        if isinstance(key, str):
            if key in mapping.lines:
                raise _Refused(f'the key "{key[:60]}" stands twice, first on line {mapping.lines[key]}', line)
            mapping.lines[key] = line
        self._stack[-1].key.append(key)

    def _put(self, value: object, line: int, *, counted: bool = False) -> None:
        if not counted:
            self._count(1, line)
        if not self._stack:
            self._root = value
            return
        top = self._stack[-1]
        if isinstance(top.value, LinedList):
            top.value.append(value)
            top.value.lines.append(line)
            return
        if not top.key:
            raise _Refused("a key must be plain text", line)
        key = top.key.pop()
        if isinstance(key, str):
            top.value[key] = value
        else:
            top.merges.append(value)

    def _count(self, values: int, line: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise _Refused(f"holds more than {MAX_VALUES} values in one document", line)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0


def _merge(merged: object, into: LinedDict, line: int) -> None:
    """The merge key `<<`: the keys of the mapping itself win, then earlier sources over later ones."""
    for source in merged if isinstance(merged, LinedList) else [merged]:
        if not isinstance(source, LinedDict):
            raise _Refused("<< must be followed by a mapping or a list of mappings", line)
        for key, value in source.items():
            if key not in into:
                into[key] = value
                into.lines[key] = source.lines[key]


_NULL = {"", "~", "null", "Null", "NULL"}
_TRUTH = {
    word: truth
    for truth, words in ((True, ("true", "yes", "on")), (False, ("false", "no", "off")))
    for spelled in words
    for word in (spelled, spelled.capitalize(), spelled.upper())
}
# Without the underscores that YAML 1.1 allows in numbers.
_INTEGER = re.compile(r"[-+]?(?:0b[01]+|0o?[0-7]+|0x[0-9a-fA-F]+|0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z")
_LONGEST_NUMBER = 400


def _scalar(event: yaml.ScalarEvent, line: int) -> object:
    text: str = event.value
    tag = event.tag
    if tag in ("!", "tag:yaml.org,2002:str") or (tag is None and not event.implicit[0]):
        return text
    if tag not in (
        None,
        *(f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "timestamp")),
    ):
        raise _Refused(f"the tag {_tag(tag)} is not supported: leave it out", line)
    if text in _NULL:
        return None
    if text in _TRUTH:
        return _TRUTH[text]
    return _number(text) if text[0] in "-+.0123456789" else text


def _number(text: str) -> object:
    """The number in the text; the text itself if it is none."""
    if len(text) < _LONGEST_NUMBER:
        plain = text.replace("_", "")
        if _INTEGER.match(plain):
            number = _integer(plain)
            return number if str(number) == text else SpelledInt(number, text)
        if _FLOAT.match(plain):
            return SpelledFloat(plain)
        if _NOT_FINITE.match(text):
            return SpelledFloat(text.replace(".", "", 1))
    return text


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    is_octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    number = int(f"0o{digits}" if is_octal else digits, 0)
    return -number if text[0] == "-" else number


def _tag(tag: str | None) -> str:
    return (tag or "!").replace("tag:yaml.org,2002:", "!!")
