"""A pod on one line, as in kubectl: containers that are ready, a word for the status, restarts, age.

It reads the agent's JSON without decoding it, because a listing of many pods should be fast.
"""

from typing import Any

from evenkeel.api.decode import Findings, decode
from evenkeel.api.pod import Pod
from evenkeel.api.resources import CPU, MEMORY
from evenkeel.cli.output import age_of, seconds_of
from evenkeel.named_tuples import NamedTuple
from evenkeel.policy.amounts import resource_text
from evenkeel.policy.pod_resources import pod_limits, pod_requests
from evenkeel.quantity import Quantity

Json = dict[str, Any]
_ENDED = ("Succeeded", "Failed")


class Summary(NamedTuple):
    ready: int
    total: int
    status: str
    restarts: int
    last_restart: str | None  # when the last attempt before this one ended

    @property
    def ready_text(self) -> str:
        return f"{self.ready}/{self.total}"

    def restarts_text(self, now: float | None = None) -> str:
        if self.restarts and self.last_restart:
            return f"{self.restarts} ({age_of(self.last_restart, now)} ago)"
        return str(self.restarts)


def summary(pod: Json) -> Summary:
    spec, status = pod.get("spec", {}), pod.get("status", {})
    phase = status.get("phase", "Unknown")
    word = status.get("reason") or phase
    init_specs = {container["name"]: container for container in spec.get("initContainers", ())}
    sidecars = {name for name, container in init_specs.items() if container.get("restartPolicy") == "Always"}
    inits, mains = status.get("initContainerStatuses", ()), status.get("containerStatuses", ())
    ready = 0
    init_word = ""
    counted = []  # the containers whose restarts count: init containers while they run
    for index, container in enumerate(inits):
        counted.append(container)
        state = container.get("state", {})
        ended = state.get("terminated")
        if ended is not None and not ended.get("exitCode"):
            continue
        if container["name"] in sidecars and container.get("started"):
            ready += bool(container.get("ready"))
            continue
        init_word = _init_word(state, index, len(init_specs))
        break
    if init_word and not _is_true(status, "Initialized"):
        word = init_word
    else:
        counted = [*(c for c in inits if c["name"] in sidecars), *mains]
        words, running = _main_words(mains)
        ready += running
        # The word of the first container counts. A pod that ended for a reason of its own (Evicted, DeadlineExceeded,
        # OutOfmemory) shows that reason, and not the signal that killed its containers.
        if words and not (phase == "Failed" and status.get("reason")):
            word = words[0]
        if word == "Completed" and running:
            word = "Running" if _is_true(status, "Ready") else "NotReady"
    if pod.get("metadata", {}).get("deletionTimestamp") and phase not in _ENDED:
        word = "Terminating"
    return Summary(ready, len(spec.get("containers", ())) + len(sidecars), word, *_restarts(counted))


def _init_word(state: Json, index: int, total: int) -> str:
    ended, waiting = state.get("terminated"), state.get("waiting", {})
    if ended is not None:
        return f"Init:{_end_word(ended)}"
    reason = waiting.get("reason", "")
    return f"Init:{reason}" if reason not in ("", "PodInitializing") else f"Init:{index}/{total}"


def _main_words(statuses: list[Json]) -> tuple[list[str], int]:
    """The words of containers that do not run, and how many containers are ready."""
    words, running = [], 0
    for container in statuses:
        state = container.get("state", {})
        if reason := state.get("waiting", {}).get("reason"):
            words.append(reason)
        elif (ended := state.get("terminated")) is not None:
            words.append(_end_word(ended))
        elif "running" in state and container.get("ready"):
            running += 1
    return words, running


def _end_word(ended: Json) -> str:
    if reason := ended.get("reason"):
        return str(reason)
    return f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"


def _restarts(statuses: list[Json]) -> tuple[int, str | None]:
    ends = (c.get("lastState", {}).get("terminated", {}).get("finishedAt") for c in statuses)
    last = max((end for end in ends if end), key=lambda end: seconds_of(end) or 0.0, default=None)
    return sum(c.get("restartCount", 0) for c in statuses), last


def _is_true(status: Json, condition: str) -> bool:
    return any(c.get("type") == condition and c.get("status") == "True" for c in status.get("conditions", ()))


def typed(pod: dict[str, Any]) -> Pod:
    """The agent's JSON as a pod."""
    plain = {name: value for name, value in pod.items() if name not in ("apiVersion", "kind")}
    return decode(Pod, plain, Findings())


def request_and_limit(pod: dict[str, Any]) -> tuple[str, str]:
    """Request and limit of cpu and memory: `500m/2` and `256Mi/512Mi`."""
    read = typed(pod)
    requests, limits = pod_requests(read), pod_limits(read)
    cpu, memory = (
        f"{amount_text(name, requests.get(name))}/{amount_text(name, limits.get(name))}"
        for name in (CPU, MEMORY)
    )
    return cpu, memory


def given_text(name: str, amounts: Json) -> str:
    """The amount of a resource that the agent's JSON has; `-` for none."""
    return resource_text(name, Quantity(amounts[name])) if name in amounts else "-"


def amount_text(name: str, amount: Quantity | None) -> str:
    """The amount of a resource in short form; `-` for none."""
    return resource_text(name, amount) if amount else "-"
