"""`python -m bench [--rounds N] [NAME…]`: runs bench/bench_NAME.py (all of them without a name), one line a figure.

A module yields its figures from `figures()`. They are kept in bench/results.json by module; running some of
the modules renews only theirs. `--rounds` is how often `eviction` evicts in each of its phases.
Exit code 1: something could not be measured; a missed target is only marked.
"""

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.figure import Figure, failed

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--rounds", type=at_least_two, help="evictions in each phase of `eviction`")
    given = parser.parse_args(arguments)
    names = given.names
    if given.rounds is not None:
        os.environ["EVENKEEL_ROUNDS"] = str(given.rounds)  # the modules are imported later
    known = [path.stem.removeprefix("bench_") for path in sorted(HERE.glob("bench_*.py"))]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"bench: there is no {', '.join(unknown)}; there are {', '.join(known)}.", file=sys.stderr)
        return 2
    results = kept(known)
    broken = False
    for name in names or known:
        results[name] = []
        for figure in measured(name):
            print(figure, flush=True)
            results[name].append(as_json(figure))
            broken |= bool(figure.failure)
    machine = {"python": platform.python_version(), "kernel": platform.release(), "cpus": os.cpu_count()}
    RESULTS.write_text(
        json.dumps({"machine": machine, "figures": results}, indent=2, ensure_ascii=False) + "\n"
    )
    return 1 if broken else 0


def at_least_two(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 2")
    return int(text)


def measured(name: str) -> Iterator[Figure]:
    try:
        yield from importlib.import_module(f"bench.bench_{name}").figures()
    except Exception as error:  # noqa: BLE001 - one broken benchmark must not hide the figures of the others
        yield failed(name, f"{type(error).__name__}: {error}", None)


def kept(known: list[str]) -> dict[str, list[dict[str, Any]]]:
    """What earlier runs measured, of the modules that still exist."""
    try:
        figures = json.loads(RESULTS.read_text())["figures"]
    except (OSError, ValueError, KeyError):
        return {}
    return {name: figures[name] for name in known if name in figures}


def as_json(figure: Figure) -> dict[str, Any]:
    target = str(figure.target) if figure.target else None
    return {**figure._asdict(), "target": target, "met": figure.met}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
