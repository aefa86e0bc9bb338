"""Draws docs/rooms.svg: the rooms of `src/evenkeel`, top to bottom, and which room imports from which.

The order of the rooms is that of import-linter's contract in pyproject.toml, the imports are read from the source. An
import that pointed up would stand to the left of its room's own square, where the picture must be empty. It also looks
for modules that import each other in a circle, which import-linter does not do inside a room.

    python tools/rooms.py            says whether the picture is up to date and there is no circle (exit 1 if not)
    python tools/rooms.py --write    draws it
"""

import ast
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/evenkeel"
PICTURE = ROOT / "docs/rooms.svg"
_CELL, _NAME_WIDTH, _TOP, _MARGIN = 34, 92, 70, 14


def main() -> int:
    picture = draw(rooms_in_order(), imports())
    if "--write" in sys.argv:
        PICTURE.write_text(picture)
        return 0
    try:
        TopologicalSorter(module_imports()).prepare()
    except CycleError as error:
        print(f"modules import each other in a circle: {' -> '.join(reversed(error.args[1]))}")
        return 1
    if not PICTURE.exists() or PICTURE.read_text() != picture:
        print("docs/rooms.svg is not up to date: run `make docs`")
        return 1
    return 0


def rooms_in_order() -> list[str]:
    """From the top: a room imports only from the rooms below it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return list(next(one["layers"] for one in contracts if one.get("containers") == ["evenkeel"]))


def imports() -> set[tuple[str, str]]:
    """Each room with each other room that it imports from."""
    found = set()
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evenkeel."):
                found.add((room, (node.module or "").split(".")[1]))
    return {(room, other) for room, other in found if room != other}


def module_imports() -> dict[str, set[str]]:
    """Each module with the modules that it imports, also late and for types only."""
    paths = {_module(path): path for path in SOURCE.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for module, path in paths.items():
        names = {
            name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
            for name in [f"{node.module}.{alias.name}"]
        }
        modules = {name if name in paths else name.rpartition(".")[0] for name in names}
        found[module] = modules & paths.keys() - {module}
    return found


def _module(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def draw(rooms: list[str], found: set[tuple[str, str]]) -> str:
    width = _NAME_WIDTH + _CELL * len(rooms) + 3 * _MARGIN
    height = _TOP + _CELL * len(rooms) + _MARGIN
    parts = []
    for row, room in enumerate(rooms):
        middle = _TOP + _CELL * (row + 0.5)
        parts.append(_text(_MARGIN + _NAME_WIDTH - 8, middle + 4, room, "end"))
        for column, other in enumerate(rooms):
            left = _MARGIN + _NAME_WIDTH + _CELL * column
            parts.append(_square(left, _TOP + _CELL * row, is_own=row == column, is_below=column > row))
            if (room, other) in found:
                parts.append(f'<circle cx="{left + _CELL / 2:g}" cy="{middle:g}" r="8" fill="#58a6ff"/>')
    for column, other in enumerate(rooms):
        x, y = _MARGIN + _NAME_WIDTH + _CELL * (column + 0.5) + 4, _TOP - 8
        parts.append(f'<g transform="rotate(-45 {x:g} {y:g})">{_text(x, y, other, "start")}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        "<title>Each room imports only from the rooms below it</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>\n'
        '<g font-family="system-ui,sans-serif">\n' + "\n".join(parts) + "\n</g></svg>\n"
    )


def _square(left: float, top: float, *, is_own: bool, is_below: bool) -> str:
    fill = "#30363d" if is_own else "#161b22" if is_below else "#0d1117"
    return f'<rect x="{left + 1:g}" y="{top + 1:g}" width="{_CELL - 2}" height="{_CELL - 2}" rx="3" fill="{fill}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="#c9d1d9" font-size="13">{escape(text)}</text>'


if __name__ == "__main__":
    sys.exit(main())
