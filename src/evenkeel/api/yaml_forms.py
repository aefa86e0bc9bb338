"""Text that Kubernetes reads and our YAML parser does not, in a form that both read. Each line stays where it is."""

import re
from typing import Any

import yaml


def plain_yaml(text: str, loader: type[Any]) -> str:
    """The text in YAML's own form. Text with mistakes is left as it is: the parser finds them at their lines."""
    if "\\u" in text and text.lstrip()[:1] in ("{", "["):
        text = re.sub(_SURROGATES, _joined, text)
    if text.lstrip()[:1] == "{":
        text = _separated(text)
    return _with_quotes(text, loader) if "\\'" in text else text


def _separated(text: str) -> str:
    """The text with the mark of YAML between JSON objects, which stay on their lines. Other text is not changed."""
    import json  # YAML in its own form does not need it

    decoder = json.JSONDecoder()
    parts: list[str] = []
    begin = 0
    try:
        while gap := _GAP(text, decoder.raw_decode(text, text.index("{", begin))[1]):
            parts += [text[begin : gap.start()], "\n" * max(gap[0].count("\n"), 1), "--- "]
            begin = gap.end()
    except (ValueError, RecursionError):
        pass  # YAML in the form of JSON, or a mistake that the parser finds at its line
    return "".join((*parts, text[begin:]))


_GAP = re.compile(r"\s*(?=\{)").match  # between two objects


# JSON writes a character above U+FFFF as two surrogates. YAML does not have them.
_SURROGATES = r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})"


def _joined(halves: re.Match[str]) -> str:
    high, low = (int(half, 16) for half in halves.group(2, 3))
    return f"{halves[1]}{chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))}"


def _with_quotes(text: str, loader: type[Any]) -> str:
    """The text without the backslash of each `\\'` in double quotes. Kubernetes' parser takes it there. Ours does not,
    and says where such a scalar begins. Each try parses all that is before it, so there is a bound; what is left then
    is a mistake like any other."""
    for _ in range(max(1, _MOST_PARSED // len(text))):
        try:
            for _ in yaml.parse(text, Loader=loader):
                pass
        except yaml.MarkedYAMLError as error:
            quoted = _DOUBLE_QUOTED(text, error.context_mark.index) if error.context_mark else None
            plain = _ESCAPED(_without_backslash, quoted[0]) if quoted else ""
            if quoted is None or plain == quoted[0]:
                break
            text = f"{text[: quoted.start()]}{plain}{text[quoted.end() :]}"
        except (yaml.YAMLError, UnicodeEncodeError):
            break
        else:
            break
    return text


def _without_backslash(escape: re.Match[str]) -> str:
    return "'" if escape[0] == "\\'" else escape[0]


_MOST_PARSED = 10_000_000  # characters
_DOUBLE_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL).match
_ESCAPED = re.compile(r"\\.", re.DOTALL).sub
