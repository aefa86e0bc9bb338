"""What a pod asks of the labels of its node."""

import json
from typing import Any

import pytest

from evenkeel.api.manifests import read_manifests
from evenkeel.host.node_labels import own_labels
from evenkeel.policy.node_affinity import refusal_of_node

AMD = {
    "kubernetes.io/arch": "amd64",
    "kubernetes.io/os": "linux",
    "kubernetes.io/hostname": "one",
    "cores": "8",
}


def read(**spec: Any):
    container = {"name": "main", "image": "host", "command": ["x"]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}}
    return read_manifests(json.dumps({**pod, "spec": {"containers": [container], **spec}}), "pod.yaml")


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def wants(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def expressions(*every: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": list(every)}


@pytest.mark.parametrize(
    "spec, reason, words",
    [
        (
            {"nodeSelector": {"kubernetes.io/arch": "arm64"}},
            "NodeAffinity",
            "asks for kubernetes.io/arch=arm64, and this node has amd64",
        ),
        (
            {"nodeSelector": {"kubernetes.io/os": "windows"}},
            "PodOSSelectorNodeLabelDoesNotMatch",
            "and this node has linux",
        ),
        ({"nodeSelector": {"kubernetes.io/hostname": "two"}}, "NodeAffinity", "this node has one"),
        (
            {"affinity": affinity(expressions(wants("kubernetes.io/arch", "In", "arm64", "s390x")))},
            "NodeAffinity",
            "kubernetes.io/arch In arm64, s390x, and this node has amd64",
        ),
        (
            {"affinity": affinity(expressions(wants("kubernetes.io/os", "NotIn", "linux")))},
            "NodeAffinity",
            "linux",
        ),
        (
            {"affinity": affinity(expressions(wants("kubernetes.io/os", "DoesNotExist")))},
            "NodeAffinity",
            "linux",
        ),
        ({"affinity": affinity(expressions(wants("cores", "Gt", "8")))}, "NodeAffinity", "cores Gt 8"),
        ({"affinity": affinity({})}, "NodeAffinity", "no node meets"),
        (
            {"affinity": affinity({"matchFields": [wants("metadata.name", "In", "two")]})},
            "NodeAffinity",
            "this node has one",
        ),
    ],
)
def test_a_pod_for_other_nodes_is_refused_with_the_reason_of_kubelet(spec: Any, reason: str, words: str):
    (pod,) = read(**spec).pods
    refusal = refusal_of_node(pod, AMD)
    assert refusal is not None
    assert refusal.reason == reason
    assert words in refusal.message


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}},
        {"nodeSelector": {"disktype": "ssd"}},
        {"affinity": affinity(expressions(wants("zone", "In", "a")))},
        {"affinity": affinity(expressions(wants("kubernetes.io/os", "Exists"), wants("cores", "Lt", "9")))},
        {
            "affinity": affinity(
                expressions(wants("kubernetes.io/arch", "In", "arm64")),
                expressions(wants("kubernetes.io/arch", "In", "amd64")),
            )
        },
        {"affinity": affinity({"matchFields": [wants("metadata.name", "In", "one")]})},
        {"affinity": {"podAntiAffinity": {}, "nodeAffinity": {}}},
    ],
)
def test_a_pod_for_this_node_or_for_labels_that_it_does_not_know_is_taken(spec: Any):
    (pod,) = read(**spec).pods
    assert refusal_of_node(pod, AMD) is None


def test_a_label_that_a_node_alone_does_not_have_is_passed_over_with_a_warning():
    reading = read(
        nodeSelector={"disktype": "ssd", "kubernetes.io/os": "linux"},
        affinity=affinity(expressions(wants("gpu", "Exists"), wants("spot", "DoesNotExist"))),
    )
    fields = [one.field for one in reading.warnings]
    term = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
    assert fields == ["spec.nodeSelector[disktype]", f"{term}.matchExpressions[0].key"]
    assert "is passed over: without a cluster the labels of this node are" in reading.warnings[0].message


@pytest.mark.parametrize(
    "terms, field",
    [
        ((), "nodeSelectorTerms"),
        ((expressions(wants("a", "Is", "b")),), "nodeSelectorTerms[0].matchExpressions[0].operator"),
        ((expressions(wants("a", "In")),), "nodeSelectorTerms[0].matchExpressions[0].values"),
        ((expressions(wants("a", "Exists", "b")),), "nodeSelectorTerms[0].matchExpressions[0].values"),
        ((expressions(wants("a", "Gt", "1", "2")),), "nodeSelectorTerms[0].matchExpressions[0].values"),
        ((expressions(wants("", "Exists")),), "nodeSelectorTerms[0].matchExpressions[0].key"),
        (({"matchFields": [wants("spec.x", "In", "b")]},), "nodeSelectorTerms[0].matchFields[0].key"),
        (
            ({"matchFields": [wants("metadata.name", "In", "a", "b")]},),
            "nodeSelectorTerms[0].matchFields[0].values",
        ),
    ],
)
def test_a_mistake_in_what_is_required_of_the_node_is_an_error_at_its_field(terms: Any, field: str):
    (problem,) = read(affinity=affinity(*terms)).problems
    assert problem.field.endswith(f"requiredDuringSchedulingIgnoredDuringExecution.{field}")


def test_the_labels_of_a_node_are_those_of_its_name_and_its_operator():
    labels = own_labels("two", {"zone": "a"})
    assert labels["kubernetes.io/hostname"] == "two"
    assert labels["zone"] == "a"
    assert labels["kubernetes.io/arch"] == labels["beta.kubernetes.io/arch"]
