"""`evenkeel rollout`: replaces the pods of a workload one after another, or waits until a rollout is complete."""

import argparse
import math
import queue
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from evenkeel.cli.arguments import (
    add_namespace_flag,
    add_state_flag,
    duration_seconds,
    full_name,
    is_workload_kind,
    named,
    singular,
)
from evenkeel.cli.client import Client, client_from
from evenkeel.errors import EvenkeelError

USAGE = "restart|status KIND/NAME… [-n NS] [--timeout 5m] [--state-dir PATH]"
EXAMPLES = """examples:
  evenkeel rollout restart deployment/web      new pods with the same template, one after another
  evenkeel rollout status deployment/web       wait until every pod is new and available
"""
Json = dict[str, Any]
_ANNOTATION = "kubectl.kubernetes.io/restartedAt"
_KINDS = ("deployments", "statefulsets", "daemonsets")
_LOOK_SECONDS = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("restart", "status"))
    parser.add_argument("kind", metavar="KIND", help="deployment, statefulset or daemonset; also KIND/NAME")
    parser.add_argument("pods", nargs="*", metavar="NAME", help="names of workloads")
    parser.add_argument(
        "--timeout",
        type=duration_seconds,
        default=0.0,
        metavar="5m",
        help="give up after that long (default: never)",
    )
    add_namespace_flag(parser)
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    kind, names = named([args.kind, *args.pods])
    if not is_workload_kind(kind) or kind not in _KINDS or not names:
        raise EvenkeelError(
            "rollout is for deployments, statefulsets and daemonsets",
            hint=f"evenkeel rollout {args.action} deployment/NAME",
        )
    client = client_from(args)
    for name in names:
        if args.action == "restart":
            _restart(client, kind, args.namespace, name)
        else:
            _wait(client, kind, args.namespace, name, args.timeout)
    return 0


def _restart(client: Client, kind: str, namespace: str, name: str) -> None:
    """As kubectl: an annotation of the template changes, and with it the template."""
    workload = client.workload(kind, namespace, name)
    metadata = workload["spec"].setdefault("template", {}).setdefault("metadata", {})
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    metadata.setdefault("annotations", {})[_ANNOTATION] = now
    client.apply(workload)
    print(f"{full_name(singular(kind), name)} restarted")


def _wait(client: Client, kind: str, namespace: str, name: str, timeout_seconds: float) -> None:
    deadline = time.monotonic() + timeout_seconds if timeout_seconds else math.inf
    # Every change of a pod may bring the rollout forward. The watch begins first, so that no change is missed.
    changes = queued_changes(client.lines("/watch", namespace=namespace))
    last = ""
    while True:
        line, is_done = progress(kind, client.workload(kind, namespace, name))
        if line != last:
            print(line, flush=True)
            last = line
        if is_done:
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise EvenkeelError(
                f"{full_name(singular(kind), name)} was not rolled out in {timeout_seconds:g} s"
            )
        next_change(changes, left, "the agent ended before the rollout")


def next_change(changes: "queue.Queue[Json | None]", seconds: float, ended: str) -> None:
    """Waits for a change, a moment at most: a deadline may pass without a change of a pod. Raises an error with the
    text `ended` if the agent has ended."""
    try:
        if changes.get(timeout=min(seconds, _LOOK_SECONDS)) is None:
            raise EvenkeelError(ended)
    except queue.Empty:
        pass


def queued_changes(changes: Iterator[Json]) -> "queue.Queue[Json | None]":
    """A queue of the items, with None at the end. A reader of a queue can stop waiting after a time."""
    queued: queue.Queue[Json | None] = queue.Queue()

    def read() -> None:
        for change in changes:
            queued.put(change)
        queued.put(None)

    threading.Thread(target=read, daemon=True).start()
    return queued


def progress(kind: str, workload: Json) -> tuple[str, bool]:
    """A line as kubectl's, and whether the rollout is complete. Raises EvenkeelError if it has failed."""
    name, spec, status = workload["metadata"]["name"], workload["spec"], workload.get("status", {})
    word = kind.removesuffix("s")
    if status.get("observedGeneration", 0) < workload["metadata"].get("generation", 1):
        return f"Waiting for {word} spec update to be observed...", False
    if kind == "daemonsets":
        wanted = status.get("desiredNumberScheduled", 0)
        updated, available = status.get("updatedNumberScheduled", 0), status.get("numberAvailable", 0)
        total = updated
    else:
        wanted = spec.get("replicas", 1)
        updated, total = status.get("updatedReplicas", 0), status.get("replicas", 0)
        available = status.get("availableReplicas", 0)
        rolling = spec.get("updateStrategy", {}).get("rollingUpdate") or {}
        wanted_new = max(wanted - rolling.get("partition", 0), 0) if kind == "statefulsets" else wanted
        if kind == "statefulsets" and updated >= wanted_new and available >= wanted and total <= wanted:
            return (
                f"statefulset rolling update complete {updated} pods at revision {status.get('updateRevision')}...",
                True,
            )
    for condition in status.get("conditions", ()):
        if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            raise EvenkeelError(f'{word} "{name}" exceeded its progress deadline')
    waiting = f'Waiting for {word} "{name}" rollout to finish: '
    if updated < wanted:
        return f"{waiting}{updated} out of {wanted} new replicas have been updated...", False
    if total > updated:
        return f"{waiting}{total - updated} old replicas are pending termination...", False
    if available < updated:
        return f"{waiting}{available} of {updated} updated replicas are available...", False
    return f'{word} "{name}" successfully rolled out', True
