"""`evenkeel validate`: reports every mistake in manifests and configuration at once, with its line and its mend."""

import argparse
import sys
from typing import NamedTuple

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.api.reading import Reading
from evenkeel.cli.config_flags import add_config_flags, config_from
from evenkeel.cli.inputs import add_manifest_flag, read_all
from evenkeel.cli.output import STRUCTURED, paint_for, print_structured
from evenkeel.errors import NODE_RULE, Problem
from evenkeel.policy.admission import Refusal

USAGE = "-f FILE… [-o text|json|yaml] [flags]"
EXAMPLES = """examples:
  evenkeel validate -f pod.yaml
  evenkeel validate -f manifests/ --profile kubernetes
  evenkeel validate -f agent.yaml --allowed-host-access=hostPID
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
        (*reading.warnings, *_refusals(reading, config)),
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


def _refusals(reading: Reading, config: KubeletConfiguration) -> tuple[Problem, ...]:
    """What the agent's runtime would refuse with this configuration, as far as the manifest alone shows it. The pods of
    a workload have one template, so each refusal is reported once."""
    found: dict[Problem, None] = {}
    for pod, origin in zip(reading.pods, reading.origins, strict=True):
        refusal = _refusal(pod, config)
        if refusal is not None:
            message = f"the agent would refuse it: {refusal.message}"
            found.setdefault(origin._replace(message=message, kind=NODE_RULE))
    return tuple(found)


def _refusal(pod: Pod, config: KubeletConfiguration) -> Refusal | None:
    from evenkeel.runtime.security import Granted

    granted = Granted(host_access=config.allowed_host_access)
    if config.container_runtime_endpoint:
        from evenkeel.runtime.cri import cri_refusals

        return cri_refusals.refusal(pod, granted)
    from evenkeel.runtime.process import process_refusals

    return process_refusals.refusal(pod, process_refusals.Powers(uid=0, gid=0, granted=granted))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
