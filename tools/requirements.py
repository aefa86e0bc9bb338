"""Writes docs/requirements.md: each requirement with the modules that cite it and the test files that prove it.

A module cites a requirement by its number in a comment or a string, a test by its `req` mark. Only the titles in
docs/requirements.txt are typed by hand.

    python tools/requirements.py            exit code 1 if the page is not up to date
    python tools/requirements.py --write    writes the page
"""

import ast
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/requirements.md"
TITLES = ROOT / "docs/requirements.txt"
MOST_NAMED = 3  # a row fits on two lines of a screen
# From Python 3.12 on the text of an f-string is a token of its own.
_TEXT_TOKENS = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
_NUMBER = re.compile(r"\b([A-E][1-9][0-9]?)(?:[–-]([A-E]?)([1-9][0-9]?))?\b")
_INTRODUCTION = f"""# Requirements

`make docs` writes this page from the numbers that the source cites and from the `req` marks of the tests. Do not edit
it. The number in brackets is the count of tests. A row names the modules and the test files with the most marks, at
most {MOST_NAMED} of each; `grep -rnw A12 src tests` finds all of them.

| no. | requirement | done in | proven by |
| --- | --- | --- | --- |
"""


def main() -> int:
    page = render()
    if "--write" in sys.argv:
        PAGE.write_text(page)
        return 0
    if not PAGE.exists() or PAGE.read_text() != page:
        print("docs/requirements.md is not up to date: run `make docs`")
        return 1
    return 0


def render() -> str:
    titles = dict(read_titles())
    modules = _count(
        (number, path) for path in sorted((ROOT / "src").rglob("*.py")) for number in cited_numbers(path)
    )
    tests = _count(
        (number, path)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for number in marked_numbers(path)
    )
    unknown = sorted(tests.keys() - titles.keys())
    if unknown:
        sys.exit(f"tests are marked with requirements that do not exist: {', '.join(unknown)}")
    rows = [
        f"| {number} | {title} | {_modules(modules.get(number))} | {_tests(tests.get(number))} |\n"
        for number, title in titles.items()
    ]
    named = {path for counts in tests.values() for path, _ in _ranked(counts)[:MOST_NAMED]}
    links = [f"[{_test(path)}]: ../{path.relative_to(ROOT)}\n" for path in sorted(named)]
    return "".join((_INTRODUCTION, *rows, "\n", *links))


def read_titles() -> Iterator[tuple[str, str]]:
    for line in TITLES.read_text().splitlines():
        number, _, title = line.partition(" ")
        if title:
            yield number, title.strip()


def cited_numbers(path: Path) -> Iterator[str]:
    """Numbers in the comments and strings of a module."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in _TEXT_TOKENS:
                yield from numbers(token.string)


def numbers(text: str) -> Iterator[str]:
    """`A12`, and each of `B3–B7` or `C1–3`."""
    for match in _NUMBER.finditer(text):
        first, letter, last = match.groups()
        if last and letter in ("", first[0]) and int(last) > int(first[1:]):
            yield from (f"{first[0]}{index}" for index in range(int(first[1:]), int(last) + 1))
        else:
            yield first


def marked_numbers(path: Path) -> Iterator[str]:
    """The number of each `@pytest.mark.req(...)`, once for every test that carries it. A `pytestmark` of a module marks
    all of its tests."""
    tree = ast.parse(path.read_text())
    tests = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            tests += node.name.startswith("test_")
            for decorator in node.decorator_list:
                yield from _marks(decorator)
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        ):
            for call in ast.walk(node.value):
                for number in _marks(call):
                    yield from [number] * tests


def _marks(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "req":
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def _count(found: Iterable[tuple[str, Path]]) -> dict[str, Counter[Path]]:
    by_number: dict[str, Counter[Path]] = {}
    for number, path in found:
        by_number.setdefault(number, Counter())[path] += 1
    return by_number


def _modules(counts: Counter[Path] | None) -> str:
    return _listed(counts, lambda path, _: f"`{_module(path)}`")


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT / "src/evenkeel").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _tests(counts: Counter[Path] | None) -> str:
    return _listed(counts, lambda path, tests: f"[{_test(path)}] ({tests})")


def _test(path: Path) -> str:
    return str(path.relative_to(ROOT / "tests").with_suffix("")).replace("test_", "")


def _listed(counts: Counter[Path] | None, name: Callable[[Path, int], str]) -> str:
    if not counts:
        return "—"
    named = [name(path, count) for path, count in _ranked(counts)[:MOST_NAMED]]
    more = len(counts) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _ranked(counts: Counter[Path]) -> list[tuple[Path, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


if __name__ == "__main__":
    sys.exit(main())
