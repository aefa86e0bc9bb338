"""The small C programs of `tests/kernel/programs/` and `tests/attacks/programs/`, compiled once and statically, so that
they run in a guest too."""

import subprocess
from pathlib import Path

from tests.machines import PROJECT
from tests.machines.cache import made_once

SOURCES = tuple(PROJECT / "tests" / place / "programs" for place in ("kernel", "attacks"))
COMPILER = ("gcc", "-O2", "-Wall", "-Wextra", "-Werror")
STATIC = ("-static",)
# Loaded in place of a loader, and so without one, and without the C library's start.
LOADED = {"exe": ("-static-pie", "-fPIE", "-nostdlib", "-ffreestanding", "-fno-stack-protector")}


def programs() -> Path:
    """A directory with every program under its source's name without `.c`."""
    files = sorted(path for directory in SOURCES for path in directory.iterdir())
    inputs = [
        *COMPILER,
        *STATIC,
        repr(LOADED),
        *(part for path in files for part in (path.name, path.read_bytes())),
    ]
    return made_once("programs", inputs, lambda target: _compile(files, target))


def _compile(files: list[Path], target: Path) -> None:
    for path in files:
        if path.suffix == ".c":
            flags = LOADED.get(path.stem, STATIC)
            subprocess.run([*COMPILER, *flags, "-o", str(target / path.stem), str(path)], check=True)
