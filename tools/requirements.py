"""Writes docs/requirements.md: each requirement with the modules that cite it and the tests that prove it.

Modules are found by the requirement's number in their comments and docstrings, tests by their `req` marks. Nothing in
the page is typed by hand but the titles below.

    python tools/requirements.py            says whether the page is up to date (exit 1 if not)
    python tools/requirements.py --write    writes it
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/requirements.md"
TITLES = ROOT / "docs/requirements.txt"
# From Python 3.12 on the text of an f-string is a token of its own.
_TEXT_TOKENS = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING))
_NUMBER = re.compile(r"\b([A-E][1-9][0-9]?)(?:[–-]([A-E]?)([1-9][0-9]?))?\b")


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
    modules = collect(cited_numbers(path) for path in sorted((ROOT / "src").rglob("*.py")))
    tests = collect(marked_numbers(path) for path in sorted((ROOT / "tests").rglob("test_*.py")))
    lines = [
        "# Requirements",
        "",
        "Made by `make docs` from the numbers cited in the source and the `req` marks of the tests; do not edit.",
        "",
        "| no. | requirement | done in | proven by |",
        "| --- | --- | --- | --- |",
    ]
    for number, title in titles.items():
        done = ", ".join(f"`{name}`" for name in modules.get(number, ())) or "—"
        proven = _proofs(tests.get(number, [])) or "—"
        lines.append(f"| {number} | {title} | {done} | {proven} |")
    unknown = sorted(tests.keys() - titles.keys())
    if unknown:
        sys.exit(f"tests are marked with requirements that do not exist: {', '.join(unknown)}")
    return "\n".join(lines) + "\n"


def read_titles() -> Iterator[tuple[str, str]]:
    for line in TITLES.read_text().splitlines():
        number, _, title = line.partition(" ")
        if title:
            yield number, title.strip()


def collect(found: Iterator[Iterator[tuple[str, str]]]) -> dict[str, list[str]]:
    by_number: dict[str, list[str]] = {}
    for pairs in found:
        for number, where in pairs:
            if where not in by_number.setdefault(number, []):
                by_number[number].append(where)
    return by_number


def cited_numbers(path: Path) -> Iterator[tuple[str, str]]:
    """Numbers in the comments and strings of a module: a rule beside its branch, or in a setting's own words."""
    module = ".".join(path.relative_to(ROOT / "src/evenkeel").with_suffix("").parts)
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in _TEXT_TOKENS:
                for number in numbers(token.string):
                    yield number, module


def numbers(text: str) -> Iterator[str]:
    """`A12`, and each of `B3–B7` or `C1–3`."""
    for match in _NUMBER.finditer(text):
        first, letter, last = match.groups()
        if last and letter in ("", first[0]) and int(last) > int(first[1:]):
            yield from (f"{first[0]}{index}" for index in range(int(first[1:]), int(last) + 1))
        else:
            yield first


def marked_numbers(path: Path) -> Iterator[tuple[str, str]]:
    """Numbers in `@pytest.mark.req(...)` and in a module's `pytestmark`."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                for number in _marks(decorator):
                    yield number, f"{path.relative_to(ROOT)}::{node.name}"
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        ):
            for call in ast.walk(node.value):
                for number in _marks(call):
                    yield number, str(path.relative_to(ROOT))


def _marks(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "req":
        for argument in node.args:
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value


def _proofs(tests: list[str]) -> str:
    by_file: dict[str, list[str]] = {}
    for test in tests:
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(name.removeprefix("test_").replace("_", " "))
    return "<br>".join(
        f"`{file}`: {'; '.join(name for name in names if name) or 'the whole file'}"
        for file, names in by_file.items()
    )


if __name__ == "__main__":
    sys.exit(main())
