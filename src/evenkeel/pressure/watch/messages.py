"""The messages between the agent and `evenkeel-watch`: JSON objects over a Unix stream socket, each after its length.

The watch greets every client with `hello`, then repeats the reports that no agent has acknowledged, then says `ready`.

| agent says `do` | with | means |
| --- | --- | --- |
| `settings` | thresholds, settings, cpus, state | what to watch for; `state` is used only by a watch that has none |
| `targets` | targets, texts | replaces all targets; a pod's text is sent once, under a key of the agent's |
| `queues` | bytes | by UID: memory of pods in queues of sockets that no cgroup is charged for; other pods have none |
| `emptied` | uid | the pod's volumes in memory are empty |
| `heard` | number | all reports up to this number are in the journal |
| `taken` | uid | the eviction of this pod is in the journal: its intent is removed |
| `ping` | | is answered with `pong` |
| `end` | | releases all pods, and ends |

| watch says `event` | with | means |
| --- | --- | --- |
| `hello` | protocol, version, pid, throttled | the first message |
| `texts` | texts | pods of reports that this client has not sent itself |
| `found` | uid, message, at | an intent on disk for which there is no report |
| `report` | number, kind, and its fields | see `watch_listener.Outbox` |
| `ready` | | all earlier reports have been sent |
| `busy` | | another watch has this state directory; this one ends |
| `pong` | | the answer to `ping` |

`hello`, `busy` and `end` stay the same in all protocols, so that agents of any version can replace any watch.
"""

import json
from collections.abc import Mapping
from typing import Any

from evenkeel.api.pod import Pod
from evenkeel.api.scalars import Amount
from evenkeel.cgroup.tree import Version
from evenkeel.errors import EvenkeelError
from evenkeel.journal.codec import Unreadable, from_text
from evenkeel.policy.eviction.decide import decide
from evenkeel.policy.eviction.snapshot import (
    ContainerFigures,
    MemoryFigures,
    NodeFigures,
    PodFigures,
    PodSnapshot,
    Snapshot,
)
from evenkeel.pressure.eviction_steps import (
    Step,
    settings_from_plain,
    settings_plain,
    state_from,
    state_plain,
    threshold_from,
    threshold_plain,
)
from evenkeel.pressure.memory.memory_watch import WatchSettings
from evenkeel.pressure.targets import PodTarget, WatchTargets

PROTOCOL = 2
SOCKET_NAME = "watch.sock"
LOCK_NAME = "watch.lock"
INTENTS_NAME = "watch.intents"
MOST_BYTES = 16 << 20
_LENGTH_BYTES = 4

Message = dict[str, Any]

_MALFORMED = (KeyError, ValueError, TypeError, AttributeError, IndexError, EvenkeelError, Unreadable)
_encoded = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class BadMessage(Exception):
    """The received data is not a valid message. The text says why."""


def frame(message: Message) -> bytes:
    text = _encoded(message).encode("utf-8", "surrogatepass")
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


class Frames:
    """Collects what arrives, and returns the messages that are complete."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[Message]:
        """Raises BadMessage; the connection is useless then."""
        whole = self._rest + data
        messages = []
        start = 0
        while len(whole) - start >= _LENGTH_BYTES:
            length = int.from_bytes(whole[start : start + _LENGTH_BYTES], "big")
            if length > MOST_BYTES:
                raise BadMessage(f"a message of {length} bytes is longer than {MOST_BYTES}")
            end = start + _LENGTH_BYTES + length
            if len(whole) < end:
                break
            messages.append(_decoded(whole[start + _LENGTH_BYTES : end]))
            start = end
        self._rest = whole[start:]
        return messages


def _decoded(text: bytes) -> Message:
    try:
        message = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        raise BadMessage("a message is not JSON") from None
    if not isinstance(message, dict):
        raise BadMessage("a message is not an object")
    return message


def text_of(message: Message, name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str):
        raise BadMessage(f"{name} must be text")
    return value


def number_of(message: Message, name: str) -> int:
    value = message.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadMessage(f"{name} must be a whole number")
    return value


def texts_of(message: Message) -> dict[str, str]:
    """The pods' texts by their keys."""
    texts = message.get("texts")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise BadMessage("texts must be an object of texts")
    return texts


def pod_from(text: str) -> Pod:
    try:
        return from_text(Pod, text)
    except Unreadable as error:
        raise BadMessage(f"a pod cannot be read: {error}") from None


def queues_of(message: Message) -> dict[str, int]:
    """Bytes by UID."""
    queues = message.get("bytes")
    if not isinstance(queues, dict) or not all(
        isinstance(held, int) and not isinstance(held, bool) and held >= 0 for held in queues.values()
    ):
        raise BadMessage("bytes must be an object of amounts")
    return queues


# Settings


def settings_message(given: WatchSettings) -> Message:
    return {
        "thresholds": [threshold_plain(one) for one in given.thresholds],
        "settings": settings_plain(given.settings),
        "cpus": given.cpus,
    }


def settings_of(message: Message) -> WatchSettings:
    try:
        return WatchSettings(
            tuple(map(threshold_from, message["thresholds"])),
            settings_from_plain(message["settings"]),
            max(int(message["cpus"]), 1),
        )
    except _MALFORMED as error:
        raise BadMessage(f"the settings cannot be read: {error}") from None


# Targets


def targets_plain(targets: WatchTargets, key_of: dict[str, str]) -> list[object]:
    """`key_of` has the key of each pod's text, by UID."""
    pods = [
        [key_of[one.uid], one.uid, one.path, one.directory, one.containers, *one[5:]] for one in targets.pods
    ]
    return [str(targets.version), *targets[1:4], pods, *targets[5:]]


def targets_from(plain: Any, pods: dict[str, Pod]) -> tuple[WatchTargets, dict[str, str]]:  # noqa: ANN401
    """The targets, and the keys of their pods by UID. `pods` are known by their keys."""
    try:
        version, path, directory, limit, rows, unified, freezer = plain
        key_of = {str(row[1]): str(row[0]) for row in rows}
        found = tuple(_target(row, pods) for row in rows)
        targets = WatchTargets(
            Version(version), _path(path), _path(directory), int(limit), found, _path(unified), _path(freezer)
        )
    except _MALFORMED as error:
        raise BadMessage(f"the targets cannot be read: {error!r}") from None
    return targets, key_of


def _target(row: Any, pods: dict[str, Pod]) -> PodTarget:  # noqa: ANN401
    key, uid, path, directory, containers, least, request, (qos, priority), high, ends_by = row
    return PodTarget(
        str(uid),
        pods[key],
        _path(path),
        _path(directory),
        tuple((str(name), _path(place)) for name, place in containers),
        int(least),
        int(request),
        (str(qos), int(priority)),
        str(high),
        # Earlier versions say only whether it ends.
        None if ends_by is None or ends_by is False else float(ends_by),
    )


def _path(value: Any) -> str:  # noqa: ANN401
    """An absolute path in which no part leads up; or nothing."""
    if not isinstance(value, str) or (value and not value.startswith("/")) or ".." in value.split("/"):
        raise ValueError(f"{value!r} is no path of a cgroup")
    return value


# Steps: only their input is sent. The decision follows from it, for the receiver as well.


def step_plain(step: Step, key_of: Mapping[str, str]) -> Message:
    node = step.snapshot.node
    pods = []
    for seen in step.snapshot.pods:
        stats = seen.stats or PodFigures()
        parts = [[one.name, one.memory_working_set_bytes] for one in stats.containers]
        used, queues = stats.memory_working_set_bytes, stats.socket_queue_bytes
        pods.append([key_of[seen.pod.metadata.uid], used, parts, queues])
    return {
        "state": state_plain(step.state),
        "time": step.snapshot.time_seconds,
        "node": [None if one is None else list(one) for one in (node.memory, node.pods_cgroup_memory)],
        "pods": pods,
        "thresholds": [threshold_plain(one) for one in step.thresholds],
        "settings": settings_plain(step.settings),
        "isDone": step.is_done,
    }


def step_from(plain: Message, pods: dict[str, Pod]) -> Step:
    """Decides again, on the same input."""
    try:
        state = state_from(plain["state"])
        memory, in_pods = (None if one is None else _memory(one) for one in plain["node"])
        seen = tuple(_seen(pods[key], used, parts, queues) for key, used, parts, queues in plain["pods"])
        node = NodeFigures(memory=memory, pods_cgroup_memory=in_pods)
        snapshot = Snapshot(float(plain["time"]), node, seen)
        thresholds = tuple(map(threshold_from, plain["thresholds"]))
        settings = settings_from_plain(plain["settings"])
        _, decision = decide(state, snapshot, thresholds, settings)
        return Step(state, snapshot, thresholds, settings, decision, bool(plain["isDone"]))
    except _MALFORMED as error:
        raise BadMessage(f"a step cannot be read: {error!r}") from None


def _seen(pod: Pod, used: int | None, parts: Any, queues: int | None) -> PodSnapshot:  # noqa: ANN401
    containers = tuple(ContainerFigures(str(name), _amount(amount)) for name, amount in parts)
    return PodSnapshot(
        pod, PodFigures(_amount(used), containers=containers, socket_queue_bytes=_amount(queues))
    )


def _memory(pair: Any) -> MemoryFigures:  # noqa: ANN401
    available, working_set = pair
    return MemoryFigures(_amount(available), _amount(working_set))


def _amount(value: int | None) -> Amount | None:
    return None if value is None else Amount(value)
