"""`evenkeel validate`: reports every mistake in manifests and configuration at once, with its line and its mend."""

import argparse
import sys
from typing import NamedTuple

from evenkeel.cli.config_flags import add_config_flags, config_from
from evenkeel.cli.inputs import add_manifest_flag, read_all
from evenkeel.cli.output import STRUCTURED, paint_for, print_structured
from evenkeel.errors import Problem

USAGE = "-f FILE… [-o text|json|yaml] [flags]"
EXAMPLES = """examples:
  evenkeel validate -f pod.yaml
  evenkeel validate -f manifests/ --profile kubernetes
  kustomize build . | evenkeel validate -f -
  evenkeel validate -f pod.yaml -o json
"""


class Validation(NamedTuple):
    """The output of `-o json`."""

    valid: bool
    pods: int
    nodes: int
    objects: int  # ConfigMaps and Secrets
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_manifest_flag(parser)
    parser.add_argument("-o", "--output", choices=("text", *STRUCTURED), default="text", help="default: text")
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    config = config_from(args)
    reading = read_all(args.filename, config.rulebook).with_every_pod(config.rulebook)
    result = Validation(
        not reading.problems,
        len(reading.pods),
        len(reading.nodes),
        len(reading.objects),
        reading.problems,
        reading.warnings,
    )
    if args.output in STRUCTURED:
        print_structured(result, args.output)
    else:
        paint = paint_for(sys.stderr)
        for problem in result.problems:
            print(f"{paint('red', 'error')}: {problem}", file=sys.stderr)
        for warning in result.warnings:
            print(f"{paint('yellow', 'warning')}: {warning}", file=sys.stderr)
        read = ", ".join(
            _count(number, word)
            for number, word in ((result.pods, "pod"), (result.nodes, "node"), (result.objects, "object"))
            if number
        )
        verdict = "valid" if result.valid else _count(len(result.problems), "error")
        print(f"{read or 'no pod'}: {verdict}")
    return int(not result.valid)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
