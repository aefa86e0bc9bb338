"""`evenkeel images`: the images on this machine, and those that are being pulled."""

import argparse
import sys

from evenkeel.cli.arguments import add_state_flag
from evenkeel.cli.client import client_from
from evenkeel.cli.output import STRUCTURED, print_structured, print_table
from evenkeel.policy.amounts import bytes_text

USAGE = "[-o json|yaml]"
EXAMPLES = """examples:
  evenkeel images              names, sizes, and whether a container uses them
  evenkeel images -o json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", choices=STRUCTURED, help="print this form and not a table")
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    found = client_from(args).get("/images")
    if args.output:
        print_structured(found, args.output)
        return 0
    rows = [
        (
            name,
            image["id"].removeprefix("sha256:")[:12],
            bytes_text(image["sizeBytes"]),
            _use(image["isInUse"]),
        )
        for image in found["images"]
        for name in image["names"] or ["<none>"]
    ]
    rows += [
        (pull["image"], "", bytes_text(pull["receivedBytes"]), f"pulling for {pull['seconds']:.0f} s")
        for pull in found["pulls"]
    ]
    if not rows:
        print("no images", file=sys.stderr)
        return 0
    print_table([("IMAGE", "ID", "SIZE", "STATE"), *sorted(rows)])
    return 0


def _use(is_in_use: bool) -> str:  # noqa: FBT001
    return "in use" if is_in_use else "unused"
