"""Finds the vectors of each area, runs its checker over them and counts what differs."""

import gzip
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

AREAS = (
    "quantity",
    "qos",
    "oom",
    "podresources",
    "cgroup",
    "validation",
    "eviction",
    "allocatable",
    "names",
    "scheduler",
    "kubeletconfig",
)

Check = Callable[[dict[str, Any], dict[str, Any]], list[str]]


class VectorsError(Exception):
    """A directory or file that holds no vectors; the message is a sentence."""


class Difference(NamedTuple):
    vector: str
    words: str

    def __str__(self) -> str:
        return f"{self.vector}: {self.words}"


class Result(NamedTuple):
    area: str
    total: int
    differing: int
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        return f"{self.area}: {self.total - self.differing}/{self.total}"


def vector_files(directory: Path) -> dict[str, list[Path]]:
    """The files of each area named in `directory`, in the order of AREAS, then those of no known area."""
    if not directory.is_dir():
        raise VectorsError(
            f"{directory} is not a directory; name one that holds <area>.json.gz or <area>.json files."
        )
    found: dict[str, list[Path]] = {}
    for path in sorted((*directory.glob("*.json.gz"), *directory.glob("*.json"))):
        found.setdefault(path.name.split(".json")[0], []).append(path)
    if not found:
        raise VectorsError(f"{directory} holds no vectors; <area>.json.gz or <area>.json files belong there.")
    order = {area: place for place, area in enumerate(AREAS)}
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))


def run(area: str, paths: list[Path]) -> Result:
    check = checker(area)
    total, differing = 0, 0
    differences: list[Difference] = []
    for path in paths:
        for vector in vectors(path):
            total += 1
            found = answers(check, vector)
            differing += bool(found)
            differences += (Difference(str(vector["id"]), words) for words in found)
    return Result(area, total, differing, tuple(differences))


def vectors(path: Path) -> Iterator[dict[str, Any]]:
    read = gzip.open if path.suffix == ".gz" else open
    try:
        with read(path, "rt", encoding="utf-8") as file:
            listed = json.load(file)
    except (OSError, EOFError, ValueError) as error:
        raise VectorsError(f"{path} cannot be read as JSON: {error}.") from error
    for vector in listed if isinstance(listed, list) else [None]:
        if not (isinstance(vector, dict) and {"id", "input", "expected"} <= vector.keys()):
            raise VectorsError(f'{path} must be a list of {{"id", "input", "expected"}}.')
        yield vector


def checker(area: str) -> Check:
    name = f"{__package__}.{area}"
    try:
        check: Check = importlib.import_module(name).check
    except Exception as error:  # noqa: BLE001 - one broken checker must not hide the answers of the other areas
        words = f"{name} cannot check it: {type(error).__name__}: {error}"
        return lambda _input, _expected: [words]
    return check


def answers(check: Check, vector: dict[str, Any]) -> list[str]:
    try:
        return check(vector["input"], vector["expected"])
    except Exception as error:  # noqa: BLE001 - whatever a checker stumbles over is a difference, with its name
        return [f"{type(error).__name__}: {error}"]
