"""`evenkeel apply`: gives pods, workloads and the objects that they need to the agent. The agent starts new pods and
changes pods that differ."""

import argparse
import sys
from collections.abc import Iterator

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.decode import Findings, decode
from evenkeel.api.encode import encode
from evenkeel.api.pod import Pod
from evenkeel.api.reading import Reading
from evenkeel.api.stored_objects import manifest_of
from evenkeel.cli.arguments import add_state_flag, full_name
from evenkeel.cli.client import Client, client_from
from evenkeel.cli.inputs import add_manifest_flag, manifest_directory, read_all
from evenkeel.cli.validate import once, refusals_of
from evenkeel.errors import EvenkeelError

USAGE = "-f FILE… [--state-dir PATH]"
EXAMPLES = """examples:
  evenkeel apply -f pod.yaml                       pod/web created
  evenkeel apply -f deployment.yaml                deployment.apps/web configured: its pods are replaced
  evenkeel apply -f manifests/ -f extra.json       all of them; with a mistake in one of them, none
  kustomize build . | evenkeel apply -f -
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_manifest_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    client = client_from(args)
    # The manifests are read here too, by the agent's rules, so that errors name the user's files and lines.
    config = config_of(client)
    reading = read_all(args.filename, config.rulebook).or_raise()
    # The agent takes a pod that it cannot run, as Kubernetes does, and says so in its status.
    refusals = refusals_of(reading.with_every_pod(config.rulebook), config)
    for warning in (*reading.warnings, *once(refusals)):
        print(f"warning: {warning}", file=sys.stderr)
    if not reading.pods and not reading.objects and not reading.workloads:
        names = ", ".join(args.filename)
        raise EvenkeelError(f"{names}: there is no pod, workload, ConfigMap, Secret, Service or claim in it")
    items = (
        [manifest_of(one) for one in reading.objects]
        + [
            {"apiVersion": "v1", "kind": "Pod", **pod}
            for pod in map(encode, _with_images(reading))
            if isinstance(pod, dict)
        ]
        + list(_workloads(reading))
    )
    answer = client.apply({"apiVersion": "v1", "kind": "List", "items": items})
    for applied in answer.get("objects", ()):
        print(f"{full_name(applied['kind'], applied['name'].partition('/')[2])} {applied['outcome']}")
    for applied in answer["pods"]:
        print(f"pod/{applied['pod'].partition('/')[2]} {applied['outcome']}")
    return 0


def _workloads(reading: Reading) -> Iterator[dict[str, object]]:
    from evenkeel.api.workloads import workload_object
    from evenkeel.runtime.images.relative_images import workload_with_absolute_images

    for workload, origin, _ in reading.workloads:
        yield workload_object(workload_with_absolute_images(workload, manifest_directory(origin.source)))


def _with_images(reading: Reading) -> Iterator[Pod]:
    """The pods with absolute image paths. A relative path starts at its manifest, or here for standard input."""
    from evenkeel.runtime.images.relative_images import with_absolute_images

    for pod, origin in zip(reading.pods, reading.origins, strict=True):
        yield with_absolute_images(pod, manifest_directory(origin.source))


def config_of(client: Client) -> KubeletConfiguration:
    """The agent's configuration: the rules for manifests depend on it."""
    return decode(KubeletConfiguration, client.get("/configz")["kubeletconfig"], Findings())
