"""OOM scores of every container on nodes of several sizes."""

from evenkeel.api.config import Profile
from evenkeel.policy.oom_score import oom_score_adj
from evenkeel.policy.qos import pod_class
from tests.conformance.common import differences, read_pod


def check(vector_input: dict, expected: dict) -> list[str]:
    pod = read_pod(vector_input["pod"])
    found = []
    if "qosClass" in expected:
        found += differences("qosClass", pod_class(pod, Profile.KUBERNETES), expected["qosClass"])
    if vector_input["fn"] == "oomScoreAdj-direct":
        capacity = int(vector_input["nodeMemory"])
        container = _container(pod, vector_input["container"])
        score = oom_score_adj(pod, container, capacity, Profile.KUBERNETES)
        return found + differences("oomScoreAdj", score, expected["oomScoreAdj"])
    for capacity, scores in expected["oomScoreAdjByNodeMemory"].items():
        ours = {
            container.name: oom_score_adj(pod, container, int(capacity), Profile.KUBERNETES)
            for container in pod.spec.every_container
        }
        found += differences(f"node of {capacity}", ours, scores)
    return found


def _container(pod, name):
    if isinstance(name, dict):
        name = name["name"]
    return next(container for container in pod.spec.every_container if container.name == name)
