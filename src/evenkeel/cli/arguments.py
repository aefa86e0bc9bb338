"""Flags and arguments of the commands that ask the agent: the state directory, a namespace, kinds and names. And which
pods an argument means.

As in kubectl, a pod is given by its name, or by KIND/NAME of a workload or a Service, which stands for one of its pods.
"""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evenkeel.errors import EvenkeelError

if TYPE_CHECKING:
    from evenkeel.api.workloads import Workload
    from evenkeel.cli.client import Client

ROOT_STATE_DIRECTORY = "/var/lib/evenkeel"
VARIABLE = "EVENKEEL_STATE_DIR"
DEFAULT_NAMESPACE = "default"
PODS, NODE, EVENTS = "pods", "node", "events"
CONFIG_MAPS, SECRETS, SERVICES, CLAIMS = "configmaps", "secrets", "services", "persistentvolumeclaims"
OBJECTS = (CONFIG_MAPS, SECRETS, SERVICES, CLAIMS)
_KINDS = {
    **dict.fromkeys(("pods", "pod", "po"), PODS),
    **dict.fromkeys(("node", "nodes", "no"), NODE),
    **dict.fromkeys(("events", "event", "ev"), EVENTS),
    **dict.fromkeys(("configmaps", "configmap", "cm"), CONFIG_MAPS),
    **dict.fromkeys(("secrets", "secret"), SECRETS),
    **dict.fromkeys(("services", "service", "svc"), SERVICES),
    **dict.fromkeys(("persistentvolumeclaims", "persistentvolumeclaim", "pvc"), CLAIMS),
}
Json = dict[str, Any]
POD_HELP = "the pod; also pod/NAME, or deployment/NAME, service/NAME … for one of its pods"


def add_state_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state-dir",
        metavar="PATH",
        default=default_state_directory(),
        help=f"the agent's state directory (${VARIABLE}, else %(default)s)",
    )


def add_namespace_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n",
        "--namespace",
        metavar="NS",
        default=DEFAULT_NAMESPACE,
        help="the namespace of the pods (%(default)s)",
    )


def add_node_name_flag(parser: "argparse._ActionsContainer") -> None:
    parser.add_argument(
        "--hostname-override", metavar="NAME", default="", help="the node's name (default: this machine's)"
    )


def default_state_directory() -> str:
    """The directory in the environment variable. Without it, root has a directory of the system, and other users one
    below their home directory."""
    if given := os.environ.get(VARIABLE):
        return given
    if os.geteuid() == 0:
        return ROOT_STATE_DIRECTORY
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "evenkeel")


def grace_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 2**31:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of seconds, 0 or more')
    return seconds


def duration_seconds(text: str) -> float:
    """Reads 90, 90s or 1m30s."""
    from evenkeel.api.scalars import Duration

    try:
        seconds = Duration.parse(f"{text}s" if text[-1:].isdigit() else text).seconds
    except EvenkeelError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < 0:
        raise argparse.ArgumentTypeError(f'"{text}" is less than 0: write a time such as 30s or 5m')
    return seconds


def full_name(kind: str, name: str) -> str:
    """As kubectl prints an object of the `kind`: deployment.apps/web, service/web."""
    from evenkeel.api.workloads import KINDS

    known = KINDS.get(kind)
    return f"{kind.lower()}{f'.{known.group}' if known and known.group else ''}/{name}"


def singular(kind: str) -> str:
    """`Deployment` for `deployments`, the plural of a workload's kind."""
    from evenkeel.api.workloads import KINDS

    return next(name for name, known in KINDS.items() if known.plural == kind)


def named(words: Sequence[str], default: str = "") -> tuple[str, list[str]]:
    """The kind and the names in `words`. Without a kind, all are names of the `default` kind."""
    if not words:
        return default, []
    first, *rest = words
    if "/" in first:
        kinds, names = zip(
            *(word.split("/", 1) if "/" in word else ("", word) for word in words), strict=True
        )
        if len(set(kinds)) > 1:
            raise EvenkeelError(f"{' '.join(words)[:100]}: all names must be of one kind, each as KIND/NAME")
        kind = _kind(kinds[0])
        for word, name in zip(words, names, strict=True):
            if (
                not name or "/" in name
            ):  # without a name, the address would be that of all objects of the kind
                raise EvenkeelError(f'"{word[:100]}" is not KIND/NAME, such as pod/web')
        return kind, list(names)
    if default and (not rest or not known_kind(first)):
        if rest:
            _refuse_kind(first)
        return default, list(words)
    return _kind(first), rest


def of_several_kinds(words: Sequence[str]) -> dict[str, list[str]]:
    """The names in `words` by their kinds, if they are KIND/NAME of more than one kind; else nothing."""
    if not all("/" in word for word in words):
        return {}
    found: dict[str, list[str]] = {}
    for word in words:
        kind, (name,) = named([word])
        found.setdefault(kind, []).append(name)
    return found if len(found) > 1 else {}


def _kind(word: str) -> str:
    kind = known_kind(word)
    if not kind:
        _refuse_kind(word)
        raise EvenkeelError(
            f'there is no kind "{word[:40]}"',
            hint="there are pods, deployments, replicasets, statefulsets, daemonsets, jobs, cronjobs, services, "
            "persistentvolumeclaims, configmaps, secrets, node and events",
        )
    return kind


def _refuse_kind(word: str) -> None:
    """Raises an error if `word` is a kind of kubectl that is not here."""
    from evenkeel.cli.kubectl_words import about_kind

    if said := about_kind(word):
        raise EvenkeelError(f'there is no kind "{word}" here: {said}')


def known_kind(word: str) -> str:
    """The plural of the kind that `word` names, also with its group as `get` prints it; empty if there is none."""
    word, _, group = word.lower().partition(".")
    if not group and word in _KINDS:
        return _KINDS[word]
    from evenkeel.api.workloads import KINDS

    for name, kind in KINDS.items():
        if word in (kind.plural, name.lower(), kind.short) and group in ("", kind.group):
            return kind.plural
    return ""


def plural_of(workload: "Workload") -> str:
    from evenkeel.api.workloads import KINDS, kind_of

    return KINDS[kind_of(workload)].plural


def is_workload_kind(kind: str) -> bool:
    """Whether `kind`, a plural that `named` has returned, makes pods."""
    from evenkeel.api.workloads import KINDS

    return any(one.plural == kind for one in KINDS.values())


def pod_name(client: "Client", namespace: str, word: str) -> str:
    """The name of the pod that `word` means. The agent is asked only if it is KIND/NAME."""
    if "/" not in word:
        return word
    kind, (name,) = named([word])
    if kind == PODS:
        return name
    return str(chosen(pods_behind(client, kind, namespace, name), word)["metadata"]["name"])


def pods_behind(client: "Client", kind: str, namespace: str, name: str) -> list[Json]:
    """The pods of a workload or a Service. `kind` is a plural that `named` has returned."""
    if is_workload_kind(kind):
        client.workload(kind, namespace, name)  # a missing one is an error
        return owned_pods(client, kind, namespace, name)
    if kind == SERVICES:
        selector = client.object(kind, namespace, name).get("spec", {}).get("selector") or {}
        return [pod for pod in client.pods(namespace) if selector and _has(pod, selector)]
    raise EvenkeelError(f"{kind} have no pods", hint="name a pod, or deployment/NAME, service/NAME …")


def is_owned(pod: Json, kind: str, name: str) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    return any((owner.get("kind"), owner.get("name")) == (kind, name) for owner in owners)


def pods_owned(client: "Client", kind: str, namespace: str, name: str) -> list[str]:
    """The names of `owned_pods`."""
    return [pod["metadata"]["name"] for pod in owned_pods(client, kind, namespace, name)]


def owned_pods(client: "Client", kind: str, namespace: str, name: str) -> list[Json]:
    """The pods that belong to a workload of the `kind`, a plural; for a CronJob, those of its Jobs."""
    owner_kind = singular(kind)
    owners = [(owner_kind, name)]
    if kind == "cronjobs":
        owners = [
            ("Job", job["metadata"]["name"])
            for job in client.workloads("jobs", namespace)
            if is_owned(job, owner_kind, name)
        ]
    return [pod for pod in client.pods(namespace) if any(is_owned(pod, *owner) for owner in owners)]


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
