"""Checks that every file that the documents name exists.

It looks at README.md, CONTRIBUTING.md and docs/*.md for files (`pressure/memory/freezer.py`, also without the first
folders) and for links to other files. It looks there and in the source for modules (`policy.oom_score`).

    python tools/doc_names.py prints each name without a file (exit 1 if there is one)"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = "src/evenkeel"
_FOLDERS = ("bench", "docs", "examples", "src", "tests", "tools")
_FILE = re.compile(r"`(\w[\w.-]*(?:/[\w.-]+)*\.(?:py|md|sh|svg))`")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
_MODULE = re.compile(r"`([a-z]\w*(?:\.\w+)+)`")
_NO_MODULE = re.compile(r"agent\.sock|cgroup\.(?:event_control|events|freeze|kill|procs|subtree_control)")


def main() -> int:
    files = _files()
    pages = [name for name in files if re.fullmatch(r"(?:docs/)?[^/]+\.md", name)]
    sources = [name for name in files if name.startswith(f"{SOURCE}/") and name.endswith(".py")]
    wrong = [*_wrong_files(pages, files), *_wrong_modules([*pages, *sources], sources)]
    print("\n".join(wrong), end="\n" if wrong else "")
    return int(bool(wrong))


def _files() -> list[str]:
    found = [*ROOT.glob("*.*"), *(path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.*"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.is_file())


def _wrong_files(pages: list[str], files: list[str]) -> Iterator[str]:
    known = {name[at:] for name in files for at in (0, *(one.end() for one in re.finditer("/", name)))}
    for page, number, line in _lines(pages):
        for name in _FILE.findall(line):
            if name not in known:
                yield f"{page}:{number}: there is no file {name}"
        for name in _LINK.findall(line):
            if not (ROOT / page).parent.joinpath(name).exists():
                yield f"{page}:{number}: the link to {name} leads nowhere"


def _wrong_modules(names: list[str], sources: list[str]) -> Iterator[str]:
    """A module may have the name of one of its members behind it."""
    modules = {name.removeprefix(f"{SOURCE}/").removesuffix(".py").replace("/", ".") for name in sources}
    modules |= {name.removesuffix(".__init__") for name in modules}
    rooms = {name.partition(".")[0] for name in modules if "." in name}
    for page, number, line in _lines(names):
        for name in _MODULE.findall(line):
            words = name.split(".")
            if words[0] not in rooms or _NO_MODULE.fullmatch(name):
                continue
            if not {name, ".".join(words[:-1])} & (modules - rooms):
                yield f"{page}:{number}: there is no module {name}"


def _lines(names: list[str]) -> Iterator[tuple[str, int, str]]:
    for name in names:
        for number, line in enumerate((ROOT / name).read_text().splitlines(), start=1):
            yield name, number, line


if __name__ == "__main__":
    sys.exit(main())
