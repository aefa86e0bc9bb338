"""The small C programs of `tests/kernel/programs/`, compiled once and statically, so that they run in a guest too."""

import subprocess
from pathlib import Path

from tests.machines import PROJECT
from tests.machines.cache import made_once

SOURCES = PROJECT / "tests" / "kernel" / "programs"
COMPILER = ("gcc", "-static", "-O2", "-Wall", "-Wextra", "-Werror")


def programs() -> Path:
    """A directory with every program under its source's name without `.c`."""
    files = sorted(SOURCES.iterdir())
    inputs = [*COMPILER, *(part for path in files for part in (path.name, path.read_bytes()))]
    return made_once("programs", inputs, lambda target: _compile(files, target))


def _compile(files: list[Path], target: Path) -> None:
    for path in files:
        if path.suffix == ".c":
            subprocess.run([*COMPILER, "-o", str(target / path.stem), str(path)], check=True)
