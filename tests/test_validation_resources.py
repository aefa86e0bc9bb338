"""Rules for requests, limits and pod-level resources: the refused values, their fields and the messages."""

from typing import Any

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.decode import Findings, decode
from evenkeel.api.defaults import default_pod
from evenkeel.api.pod import Pod
from evenkeel.api.validation import validate_pod, warnings
from evenkeel.errors import Problem

PROFILES = list(Profile)
FIRST = "spec.containers[0].resources"


def of(resources: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"name": "c", "image": "host", "resources": resources, **more}


def pod(spec: dict[str, Any]) -> Pod:
    findings = Findings()
    read = decode(Pod, {"metadata": {"name": "p"}, "spec": spec}, findings)
    assert not findings.problems
    return read


def problems(spec: dict[str, Any], profile: Profile) -> list[Problem]:
    return list(validate_pod(default_pod(pod(spec), profile), profile))


def complaints(spec: dict[str, Any], profile: Profile) -> set[tuple[str, str]]:
    return {(problem.kind, problem.field) for problem in problems(spec, profile)}


@pytest.mark.req("A1")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "resources",
    [
        {},
        {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}},
        {"requests": {"cpu": "0"}, "limits": {"memory": "0"}},
        {"requests": {"ephemeral-storage": "1Gi"}, "limits": {"ephemeral-storage": "2Gi"}},
        {"limits": {"cpu": "1", "hugepages-2Mi": "4Mi", "example.com/gpu": "2"}},
    ],
)
def test_requests_within_limits_are_fine(resources, profile):
    assert problems({"containers": [of(resources)]}, profile) == []


@pytest.mark.req("A3")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "resources, kind, field",
    [
        ({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}, "FieldValueInvalid", "requests"),
        ({"requests": {"memory": "-1"}}, "FieldValueInvalid", "requests[memory]"),
        ({"requests": {"cpus": "1"}}, "FieldValueInvalid", "requests[cpus]"),
        ({"requests": {"Memory": "1"}}, "FieldValueInvalid", "requests[Memory]"),
        ({"requests": {"pods": "1"}}, "FieldValueInvalid", "requests[pods]"),
        ({"requests": {"": "1"}}, "FieldValueInvalid", "requests[]"),
        ({"requests": {"a/b/c": "1"}}, "FieldValueInvalid", "requests[a/b/c]"),
        (
            {"requests": {"requests.example.com/x": "0"}},
            "FieldValueInvalid",
            "requests[requests.example.com/x]",
        ),
        ({"requests": {"example.com/gpu": "1"}}, "FieldValueRequired", "limits"),
        (
            {"requests": {"example.com/gpu": "1"}, "limits": {"example.com/gpu": "2"}},
            "FieldValueInvalid",
            "requests",
        ),
        ({"limits": {"example.com/gpu": "1500m"}}, "FieldValueInvalid", "limits[example.com/gpu]"),
        ({"limits": {"cpu": "1", "hugepages-2Mi": "3Mi"}}, "FieldValueInvalid", "limits[hugepages-2Mi]"),
        ({"limits": {"cpu": "1", "hugepages-0": "0"}}, "FieldValueInvalid", "limits[hugepages-0]"),
        ({"limits": {"cpu": "1", "hugepages-foo": "0"}}, "FieldValueInvalid", "limits[hugepages-foo]"),
    ],
)
def test_a_container_asking_for_the_impossible_is_refused(resources, kind, field, profile):
    assert (kind, f"{FIRST}.{field}") in complaints({"containers": [of(resources)]}, profile)


@pytest.mark.req("A3")
def test_huge_pages_cannot_stand_alone():
    spec = {"containers": [of({"limits": {"hugepages-2Mi": "2Mi"}})]}
    assert complaints(spec, Profile.DOCUMENTS) == {("FieldValueForbidden", FIRST)}


@pytest.mark.req("A3")
def test_init_containers_are_held_to_the_same():
    spec = {"containers": [of({})], "initContainers": [of({"limits": {"foo": "1"}}, name="i")]}
    path = "spec.initContainers[0].resources"
    assert complaints(spec, Profile.DOCUMENTS) == {
        ("FieldValueInvalid", f"{path}.limits[foo]"),
        ("FieldValueInvalid", f"{path}.requests[foo]"),
    }


@pytest.mark.req("A3")
def test_the_message_has_the_value_seen_and_what_to_write():
    (problem,) = problems(
        {"containers": [of({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})]}, Profile.DOCUMENTS
    )
    assert "2" in problem.message
    assert "limit 1" in problem.message
    (problem,) = problems({"containers": [of({"requests": {"CPU": "2"}})]}, Profile.DOCUMENTS)
    assert problem.message.endswith("write cpu")


@pytest.mark.req("A3")
def test_overhead_is_judged_as_limits():
    spec = {"containers": [of({})], "overhead": {"cpu": "-1", "foo": "1"}}
    assert complaints(spec, Profile.KUBERNETES) == {
        ("FieldValueInvalid", "spec.overhead.limits[cpu]"),
        ("FieldValueInvalid", "spec.overhead.limits[foo]"),
    }


@pytest.mark.req("D1")
def test_the_documents_example_is_valid():
    nginx = of(
        {"requests": {"memory": "128M", "cpu": "0.5"}, "limits": {"memory": "256M", "cpu": "1"}}, name="nginx"
    )
    spec = {
        "resources": {"limits": {"memory": "384M", "cpu": "2"}},
        "containers": [of({}, name="envoy"), nginx],
    }
    assert problems(spec, Profile.DOCUMENTS) == []


@pytest.mark.req("D1")
def test_pod_level_requests_are_refused_with_a_hint():
    spec = {"containers": [of({})], "resources": {"requests": {"cpu": "1"}}}
    (problem,) = problems(spec, Profile.DOCUMENTS)
    assert (problem.kind, problem.field) == ("FieldValueForbidden", "spec.resources.requests")
    assert "profile: kubernetes" in problem.message
    assert problems(spec, Profile.KUBERNETES) == []


@pytest.mark.req("D1")
def test_pod_level_limits_are_for_cpu_and_memory():
    own = {"limits": {"ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi", "memory": "-1"}}
    assert complaints({"containers": [of({})], "resources": own}, Profile.DOCUMENTS) == {
        ("FieldValueNotSupported", "spec.resources.limits[ephemeral-storage]"),
        ("FieldValueNotSupported", "spec.resources.limits[hugepages-2Mi]"),
        ("FieldValueInvalid", "spec.resources.limits[memory]"),
    }


@pytest.mark.req("D1")
def test_a_containers_limit_above_the_pods_names_both():
    spec = {
        "containers": [of({"requests": {"cpu": "0"}, "limits": {"cpu": "3"}})],
        "resources": {"limits": {"cpu": "2"}},
    }
    (problem,) = problems(spec, Profile.DOCUMENTS)
    assert problem.field == f"{FIRST}.limits[cpu]"
    assert "3 is above the pod's limit 2 (spec.resources.limits[cpu])" in problem.message


@pytest.mark.req("D1")
def test_containers_that_together_request_more_than_the_pods_limit_are_refused():
    each = {"requests": {"memory": "1Gi"}}
    spec = {
        "containers": [of(each), of(each, name="d")],
        "initContainers": [of(each, name="s", restartPolicy="Always")],
        "resources": {"limits": {"memory": "2Gi"}},
    }
    (problem,) = problems(spec, Profile.DOCUMENTS)
    assert problem.field == "spec.resources.limits[memory]"
    assert "2Gi is below the 3Gi" in problem.message
    spec["resources"] = {"limits": {"memory": "3Gi"}}
    assert problems(spec, Profile.DOCUMENTS) == []


@pytest.mark.req("D1", "D3")
def test_an_init_container_may_exceed_a_limit_that_holds_only_after_it():
    large = {"requests": {"memory": "4Gi"}, "limits": {"memory": "4Gi"}}
    spec = {
        "containers": [of({})],
        "initContainers": [of(large, name="i")],
        "resources": {"limits": {"memory": "2Gi"}},
    }
    assert problems(spec, Profile.DOCUMENTS) == []
    spec["initContainers"] = [of(large, name="i", restartPolicy="Always")]
    assert complaints(spec, Profile.DOCUMENTS) == {
        ("FieldValueInvalid", "spec.resources.limits[memory]"),
        ("FieldValueInvalid", "spec.initContainers[0].resources.limits[memory]"),
    }


@pytest.mark.req("D1")
def test_without_pod_level_resources_nothing_is_held_against_the_pod():
    assert problems({"containers": [of({"limits": {"cpu": "64"}})]}, Profile.DOCUMENTS) == []


def test_kubernetes_holds_pod_level_requests_against_the_containers():
    spec = {"containers": [of({"requests": {"cpu": "2"}})], "resources": {"requests": {"cpu": "1"}}}
    assert complaints(spec, Profile.KUBERNETES) == {("FieldValueInvalid", "spec.resources.requests[cpu]")}


def test_kubernetes_holds_each_containers_limit_against_the_pods():
    spec = {
        "containers": [of({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}})],
        "resources": {"limits": {"cpu": "2"}},
    }
    assert complaints(spec, Profile.KUBERNETES) == {
        ("FieldValueInvalid", "spec.resources.containers[0][cpu].limits")
    }


def test_kubernetes_wants_pod_level_huge_pages_to_cover_the_containers():
    spec = {
        "containers": [of({"limits": {"cpu": "1", "hugepages-2Mi": "8Mi"}})],
        "resources": {"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}},
    }
    assert ("FieldValueInvalid", "spec.resources.limits[hugepages-2Mi]") in complaints(
        spec, Profile.KUBERNETES
    )


@pytest.mark.parametrize(
    "own, kind",
    [
        ({"requests": {"ephemeral-storage": "1Gi"}}, "FieldValueNotSupported"),
        ({"requests": {"requests.cpu": "1"}}, "FieldValueNotSupported"),
        ({"requests": {"foo": "1"}}, "FieldValueInvalid"),
    ],
)
def test_kubernetes_reports_foreign_and_unknown_names_at_pod_level_differently(own, kind):
    (name,) = own["requests"]
    assert complaints({"containers": [of({})], "resources": own}, Profile.KUBERNETES) == {
        (kind, f"spec.resources.requests[{name}]")
    }


def test_a_fraction_of_a_byte_is_worth_a_warning():
    spec = {
        "containers": [of({"requests": {"memory": "100m"}, "limits": {"ephemeral-storage": "1.5"}})],
        "overhead": {"memory": "1m", "cpu": "1m"},
    }
    some = default_pod(pod(spec), Profile.DOCUMENTS)
    assert {warning.field for warning in warnings(some)} == {
        "spec.overhead[memory]",
        f"{FIRST}.requests[memory]",
        f"{FIRST}.limits[ephemeral-storage]",
        f"{FIRST}.requests[ephemeral-storage]",
    }
    assert list(validate_pod(some, Profile.DOCUMENTS)) == []
