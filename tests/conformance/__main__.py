"""`python -m tests.conformance DIR [AREA…]`: one line an area, and the first differences where there are any.

Exit code 0: all the same; 1: something differs; 2: there was nothing to compare, or an area is not known."""

import sys
from pathlib import Path

from tests.conformance.areas import AREAS, Result, VectorsError, run, vector_files

SHOWN = 5
WIDTH = 300


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        return refuse("usage: python -m tests.conformance DIR [AREA…]")
    directory, wanted = Path(arguments[0]), arguments[1:]
    try:
        found = vector_files(directory)
        unknown = sorted({*wanted, *(found if not wanted else ())} - set(AREAS))
        absent = sorted(set(wanted) - set(found) - set(unknown))
        results = [run(area, paths) for area, paths in found.items() if area in (wanted or AREAS)]
    except VectorsError as error:
        return refuse(str(error))
    for result in results:
        report(result)
    if unknown:
        return refuse(f"unknown area {', '.join(unknown)}; the areas are {', '.join(AREAS)}.")
    if absent:
        return refuse(f"{directory} has no vectors for {', '.join(absent)}.")
    return 1 if any(result.differing for result in results) else 0


def report(result: Result) -> None:
    print(result)
    for difference in result.differences[:SHOWN]:
        words = str(difference).replace("\n", " ")
        print(f"  {words if len(words) <= WIDTH else words[: WIDTH - 1] + '…'}")
    if len(result.differences) > SHOWN:
        print(f"  … and {len(result.differences) - SHOWN} more")


def refuse(sentence: str) -> int:
    print(f"conformance: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
