"""Which pod a word of the command line means. As in kubectl it is the name of a pod, or KIND/NAME of a workload or a
Service, which stands for one of its pods."""

from typing import Any

from evenkeel.cli.arguments import PODS, SERVICES, is_workload_kind, named
from evenkeel.cli.client import Client
from evenkeel.errors import EvenkeelError

Json = dict[str, Any]
HELP = "the pod; also pod/NAME, or deployment/NAME, service/NAME … for one of its pods"


def pod_name(client: Client, namespace: str, word: str) -> str:
    """The name of the pod that `word` means. The agent is asked only if it is KIND/NAME."""
    if "/" not in word:
        return word
    kind, (name,) = named([word])
    if kind == PODS:
        return name
    return str(chosen(pods_behind(client, kind, namespace, name), word)["metadata"]["name"])


def pods_behind(client: Client, kind: str, namespace: str, name: str) -> list[Json]:
    """The pods of a workload or a Service. `kind` is a plural that `named` has returned."""
    if is_workload_kind(kind):
        from evenkeel.cli.workload_text import owned_pods

        client.workload(kind, namespace, name)  # a missing one is an error
        return owned_pods(client, kind, namespace, name)
    if kind == SERVICES:
        selector = client.object(kind, namespace, name).get("spec", {}).get("selector") or {}
        return [pod for pod in client.pods(namespace) if selector and _has(pod, selector)]
    raise EvenkeelError(f"{kind} have no pods", hint="name a pod, or deployment/NAME, service/NAME …")


def chosen(pods: list[Json], word: str) -> Json:
    """The first pod that is ready; else the first that runs; else the first."""
    if not pods:
        raise EvenkeelError(f"{word[:100]} has no pod", hint="evenkeel get all shows what there is")
    return min(pods, key=lambda pod: (not _is_ready(pod), pod.get("status", {}).get("phase") != "Running"))


def _has(pod: Json, labels: Json) -> bool:
    own = pod["metadata"].get("labels") or {}
    return all(own.get(key) == value for key, value in labels.items())


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)
