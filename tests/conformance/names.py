"""Names of pod and QoS cgroups, as cgroupfs paths and systemd slices."""

import posixpath

from evenkeel.cgroup import names
from evenkeel.errors import EvenkeelError
from evenkeel.policy.qos import QoSClass
from tests.conformance.common import differences

_SLICE = ".slice"


def check(vector_input: dict, expected: dict) -> list[str]:
    kind = vector_input["fn"]
    try:
        ours = _CHECKS[kind](vector_input)
    except EvenkeelError:
        ours = {"panics": True}
    if kind == "newCgroupNameComponent":
        return differences(kind, ours["panics"], expected.get("panics", False))
    return differences(kind, ours, expected)


def _pod_cgroup(vector_input: dict) -> dict:
    root = names.pods_root(vector_input["cgroupRoot"])
    name = names.pod_cgroup(root, QoSClass(vector_input["qosClass"]), vector_input["uid"])
    burstable, best_effort = (names.branch(root, qos) for qos in (QoSClass.BURSTABLE, QoSClass.BEST_EFFORT))
    cgroupfs, systemd = names.to_cgroupfs(name), names.to_systemd(name)
    return {
        "components": list(name),
        "cgroupfs": cgroupfs,
        "systemd": systemd,
        "kubepodsCgroupfs": names.to_cgroupfs(root),
        "kubepodsSystemd": names.to_systemd(root),
        "burstableCgroupfs": names.to_cgroupfs(burstable),
        "burstableSystemd": names.to_systemd(burstable),
        "besteffortCgroupfs": names.to_cgroupfs(best_effort),
        "besteffortSystemd": names.to_systemd(best_effort),
        "isPodCgroupCgroupfs": _uid(_pod_uid(names.parse_cgroupfs(cgroupfs), root)),
        "isPodCgroupSystemd": _uid(_pod_uid(_parse_systemd(systemd), root)),
    }


def _pod_uid(name: names.CgroupName, root: names.CgroupName) -> str | None:
    for qos in QoSClass:
        if len(name) == len(names.branch(root, qos)) + 1 and name[-1].startswith(names.POD_PREFIX):
            parts = name[-1].split(names.POD_PREFIX)
            return parts[1] if len(parts) == 2 else None
    return None


def _parse_systemd(path: str) -> names.CgroupName:
    """The name of a slice from its last component, which holds all of it."""
    last = posixpath.basename(path.rstrip("/")) or ("/" if path else ".")
    return tuple(part.replace("_", "-") for part in last.removesuffix(_SLICE).split("-"))


def _uid(uid: str | None) -> dict:
    return {"ok": uid is not None, "uid": uid or ""}


def _cgroup_name(vector_input: dict) -> dict:
    name = tuple(vector_input["components"])
    return {"cgroupfs": names.to_cgroupfs(name), "systemd": names.to_systemd(name)}


def _parse(vector_input: dict) -> dict:
    path = vector_input["name"]
    return {
        "fromCgroupfs": list(names.parse_cgroupfs(path)),
        "fromSystemd": list(_parse_systemd(path)),
        "isSystemdStyle": path.endswith(_SLICE),
    }


def _root(vector_input: dict) -> dict:
    root = names.pods_root(vector_input["cgroupRoot"], per_qos=vector_input["cgroupsPerQOS"])
    return {"cgroupfs": names.to_cgroupfs(root), "systemd": names.to_systemd(root)}


def _component(vector_input: dict) -> dict:
    names.child((), vector_input["component"])
    return {"panics": False}


_CHECKS = {
    "podCgroup": _pod_cgroup,
    "cgroupName": _cgroup_name,
    "parseCgroupName": _parse,
    "nodeAllocatableRoot": _root,
    "newCgroupNameComponent": _component,
}
