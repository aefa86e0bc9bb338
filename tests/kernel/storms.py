"""Storms: random pods that use memory in every way there is, around pods that keep to their requests.

A storm is made from a seed alone, so that one that went wrong can be made again:
`EVENKEEL_SEED=17 python -m tests.machines test host -- -s tests/kernel/test_storms.py`.
"""

import os
import random
from typing import Any, NamedTuple

from tests.kernel.agents import MIB, pod
from tests.machines.programs import programs

NODE_MIB = 320
THRESHOLD_MIB = 48
_QUIET_MIB = 150  # what the pods that keep to their requests request together, at most
_MOUNT = "/load"


class Storm(NamedTuple):
    seed: int
    quiet: tuple[dict[str, Any], ...]  # use no more than they requested
    loads: tuple[dict[str, Any], ...]
    quiet_bytes: int  # what the quiet ones use together
    has_cache: bool  # some of the loads write files

    def __str__(self) -> str:
        return f"storm {self.seed}: {', '.join(_described(one) for one in (*self.quiet, *self.loads))}"


def seeds(default: int) -> list[int]:
    """`EVENKEEL_SEED` names one or, with commas, several, which `EVENKEEL_STORMS` repeats so often: a race is not lost
    each time. Without a name that says how many new ones; without either they are the same `default` ones each time."""
    names, many = os.environ.get("EVENKEEL_SEED"), os.environ.get("EVENKEEL_STORMS")
    if names:
        return [int(name) for name in names.split(",")] * int(many or 1)
    if many:
        return [random.SystemRandom().randrange(10**6) for _ in range(int(many))]
    return list(range(1, default + 1))


def storm(seed: int) -> Storm:
    chance = random.Random(seed)
    quiet, requested, used = [], 0, 0
    for number in range(chance.randint(1, 3)):
        request = chance.randint(20, 60)
        if requested + request > _QUIET_MIB:
            break
        usage = int(request * chance.uniform(0.3, 0.75))
        requested, used = requested + request, used + usage
        is_guaranteed = chance.random() < 0.5
        quiet.append(
            _pod(f"quiet{number}", "anon", usage, 0, request, limit_mib=request if is_guaranteed else 0)
        )
    loads, has_cache = [], False
    for number in range(chance.randint(2, 5)):
        kind = chance.choice(("anon", "anon", "small", "tree", "map", "file", "tmpfs"))
        rate = chance.choice((0, 0, 60, 150, 400))
        request = chance.choice((0, 0, 4, 8, 16))
        # A slow one that would go on for long only takes time.
        most = 600 if rate in (0, 400) else 5 * rate
        has_cache |= kind == "file"
        loads.append(_pod(f"load{number}", kind, chance.randint(40, most), rate, request))
    return Storm(seed, tuple(quiet), tuple(loads), used * MIB, has_cache)


def _pod(
    name: str, kind: str, mib: int, rate_mib: int, request_mib: int, limit_mib: int = 0
) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if request_mib:
        resources["requests"] = {"memory": f"{request_mib}Mi", **({"cpu": "10m"} if limit_mib else {})}
    if limit_mib:
        resources["limits"] = {"memory": f"{limit_mib}Mi", "cpu": "10m"}
    way = "file" if kind == "tmpfs" else kind
    command = [str(programs() / "grow"), way, str(mib * MIB), str(rate_mib * MIB), f"{_MOUNT}/data"]
    container: dict[str, Any] = {"resources": resources}
    spec: dict[str, Any] = {"restartPolicy": "Never"}
    if way == "file":
        container["volumeMounts"] = [{"name": "load", "mountPath": _MOUNT}]
        spec["volumes"] = [{"name": "load", "emptyDir": {"medium": "Memory"} if kind == "tmpfs" else {}}]
    made = pod(name, command, container=container, **spec)
    made["metadata"]["annotations"] = {
        "storm": f"{kind} {mib}Mi at {rate_mib or 'full'}, requested {request_mib}Mi"
    }
    return made


def _described(one: dict[str, Any]) -> str:
    return f"{one['metadata']['name']} ({one['metadata']['annotations']['storm']})"
