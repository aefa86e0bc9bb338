"""The Python environment of the guests: on Debian's own python3, which is in the image and starts fastest there."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.machines import PROJECT, Unavailable
from tests.machines.cache import made_once

PYTHON = "/usr/bin/python3"
# What runs tests; style and type checkers stay outside.
INSTALLED = ("--editable", f"{PROJECT}[all]", "hypothesis", "pytest")


def guest_environment() -> Path:
    """A virtual environment with the project and what its tests import, in the versions of constraints.txt."""
    version = subprocess.run([PYTHON, "--version"], capture_output=True, text=True, check=True).stdout
    constraints = (PROJECT / "constraints.txt").read_text()
    # Of pyproject.toml only what is installed: the rest is the settings of tools.
    installed = repr(tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"])
    return made_once("venv", [version, *INSTALLED, installed, constraints], _make)


def _make(target: Path) -> None:
    print("making the Python environment of the virtual machines, once", file=sys.stderr)
    subprocess.run([PYTHON, "-m", "venv", str(target)], check=True)
    constrained = os.environ | {
        "PIP_CONSTRAINT": str(PROJECT / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", *INSTALLED]
    result = subprocess.run(pip, check=False, env=constrained, stderr=subprocess.PIPE, text=True)
    if result.returncode:
        said = result.stderr.strip().splitlines()
        raise Unavailable(
            f"pip cannot fill the guests' environment: {said[-1] if said else 'it did not say why'}"
        )


def compile_ahead(environment: Path, pytest_arguments: Sequence[str]) -> None:
    """Leave everything the tests import compiled, and all of the project's own: the guest is slow and writes nothing.

    For the tests it is enough to collect them here. That they can be collected is for the guest to say.
    """
    python = str(environment / "bin" / "python")
    compile_project(python)
    collect = [python, "-m", "pytest", "--collect-only", "-q", *pytest_arguments]
    subprocess.run(collect, check=False, env=_may_write(), cwd=PROJECT, capture_output=True)


def compile_project(python: str) -> None:
    """Leave the project's modules compiled by `python`, also where PYTHONDONTWRITEBYTECODE is set: agents would compile
    hundreds of modules at each start, which takes longer than the start itself."""
    subprocess.run([python, "-m", "compileall", "-q", str(PROJECT / "src")], check=False, env=_may_write())


def _may_write() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def variables(environment: Path, scratch: str) -> dict[str, str]:
    """What a job in a guest finds in its environment: our Python first, and everything it writes in `scratch`."""
    passed_on = {name: os.environ[name] for name in ("CI",) if name in os.environ}
    return passed_on | {
        "HOME": "/root",
        "HYPOTHESIS_STORAGE_DIRECTORY": f"{scratch}/hypothesis",
        "LANG": "C.UTF-8",
        "PY_COLORS": "0",
        "PATH": f"{environment / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": f"{scratch}/tmp",
    }
