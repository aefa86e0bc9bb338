"""`evenkeel validate`: reports every mistake in manifests and configuration at once, with its line and its mend."""

import argparse
import sys
from collections.abc import Iterable, Iterator

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.pod import Pod
from evenkeel.api.reading import Reading
from evenkeel.cli.config_flags import add_config_flags, config_from
from evenkeel.cli.inputs import add_manifest_flag, manifest_directory, read_all
from evenkeel.cli.output import STRUCTURED, paint_for, print_structured
from evenkeel.errors import NODE_RULE, Problem
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.admission import Refusal

USAGE = "-f FILE… [-o text|json|yaml] [flags]"
EXAMPLES = """examples:
  evenkeel validate -f pod.yaml
  evenkeel validate -f manifests/ --profile kubernetes
  evenkeel validate -f agent.yaml --allowed-host-access=hostPID
  kustomize build . | evenkeel validate -f -
  evenkeel validate -f pod.yaml -o json

The exit code is 1 if there is a mistake. A pod that only this configuration keeps from running is valid.
"""


class Validation(NamedTuple):
    """The output of `-o json`. A pod that is `refused` is valid, and the agent would not run it."""

    valid: bool
    pods: int
    refused: int
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
    refusals = refusals_of(reading, config)
    result = Validation(
        not reading.problems,
        len(reading.pods),
        len(refusals),
        len(reading.nodes),
        len(reading.objects),
        reading.problems,
        (*reading.warnings, *once(refusals)),
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
        if result.refused:
            link, refused = "but" if result.valid else "and", _count(result.refused, "pod")
            verdict += f", {link} the agent would refuse {refused} with this configuration"
        print(f"{read or 'no pod'}: {verdict}")
    return int(not result.valid)


def refusals_of(reading: Reading, config: KubeletConfiguration) -> list[list[Problem]]:
    """Why the agent's runtime would refuse pods with this configuration, as far as the manifest alone shows it: every
    reason, for each pod that it would refuse."""
    from evenkeel.runtime.images.relative_images import with_absolute_images

    found = (
        [
            origin._replace(message=f"the agent would refuse it: {refusal.message}", kind=NODE_RULE)
            for refusal in _refusals(with_absolute_images(pod, manifest_directory(origin.source)), config)
        ]
        for pod, origin in zip(reading.pods, reading.origins, strict=True)
    )
    return [reasons for reasons in found if reasons]


def once(refusals: Iterable[Iterable[Problem]]) -> list[Problem]:
    """Each reason once, because the pods of a workload have the same template."""
    return list(dict.fromkeys(reason for reasons in refusals for reason in reasons))


def _refusals(pod: Pod, config: KubeletConfiguration) -> Iterator[Refusal]:
    from evenkeel.host.node_labels import own_labels
    from evenkeel.policy.node_affinity import refusal_of_node
    from evenkeel.runtime.security import Granted

    if (refusal := refusal_of_node(pod, own_labels())) is not None:
        yield refusal
    granted = Granted(host_access=config.allowed_host_access)
    if config.container_runtime_endpoint:
        from evenkeel.runtime.cri import cri_refusals

        yield from cri_refusals.refusals(pod, granted)
        return
    from evenkeel.runtime.process import process_refusals

    yield from process_refusals.refusals(pod, process_refusals.Powers(uid=0, gid=0, granted=granted))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
