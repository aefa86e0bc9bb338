"""Defaults of a pod."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.decode import Findings, decode
from evenkeel.api.defaults import default_pod, default_resources
from evenkeel.api.pod import Pod
from evenkeel.api.resources import ResourceList
from evenkeel.api.validation import validate_pod

PROFILES = list(Profile)


def pod(spec: dict[str, Any], **metadata: str) -> Pod:
    findings = Findings()
    read = decode(Pod, {"metadata": {"name": "p", **metadata}, "spec": spec}, findings)
    assert not findings.problems
    return read


def of(resources: dict[str, Any], **more: object) -> dict[str, Any]:
    return {"name": "c", "image": "host", "resources": resources, **more}


def spelled(resources: ResourceList) -> dict[str, str]:
    return {name: str(amount) for name, amount in resources.items()}


@pytest.mark.req("A2")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_limit_without_a_request_becomes_the_request(profile, kind):
    some = of({"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "1Gi"}})
    spec = default_pod(pod({"containers": [of({})], kind: [some]}), profile).spec
    (container,) = spec.containers if kind == "containers" else spec.init_containers
    assert spelled(container.resources.requests) == {"cpu": "100m", "memory": "1Gi"}
    assert spelled(container.resources.limits) == {"cpu": "1", "memory": "1Gi"}


@pytest.mark.req("A2")
def test_a_request_of_zero_is_a_request():
    given_zero = of({"requests": {"memory": "0"}, "limits": {"memory": "1Gi"}})
    (container,) = default_pod(pod({"containers": [given_zero]}), Profile.DOCUMENTS).spec.containers
    assert spelled(container.resources.requests) == {"memory": "0"}


@pytest.mark.req("A1")
@pytest.mark.parametrize("profile", PROFILES)
def test_amounts_are_rounded_up_to_thousandths(profile):
    spec = default_pod(
        pod(
            {
                "containers": [of({"requests": {"cpu": "0.0005"}})],
                "overhead": {"memory": "1n"},
                "resources": {"limits": {"cpu": "1.0001"}},
            }
        ),
        profile,
    ).spec
    assert spelled(spec.containers[0].resources.requests) == {"cpu": "1m"}
    assert spelled(spec.overhead) == {"memory": "1m"}
    assert spec.resources is not None
    assert spelled(spec.resources.limits) == {"cpu": "1001m"}


@pytest.mark.req("D1")
def test_nothing_is_added_at_pod_level_in_the_documents_profile():
    some = of({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}})
    resources = {"limits": {"cpu": "4"}}
    own = default_pod(pod({"containers": [some], "resources": resources}), Profile.DOCUMENTS).spec.resources
    assert own is not None
    assert (spelled(own.requests), spelled(own.limits)) == ({}, {"cpu": "4"})


def pod_level(containers: list[dict[str, Any]], own: dict[str, Any], **more: Any) -> tuple[dict, dict]:
    spec = default_pod(pod({"containers": containers, "resources": own, **more}), Profile.KUBERNETES).spec
    assert spec.resources is not None
    return spelled(spec.resources.requests), spelled(spec.resources.limits)


def test_pod_level_requests_come_from_the_containers_and_else_from_the_pods_limit():
    containers = [of({"requests": {"cpu": "1"}}), of({"requests": {"cpu": "500m"}})]
    requests, _ = pod_level(containers, {"limits": {"cpu": "4", "memory": "1Gi"}})
    assert requests == {"cpu": "1500m", "memory": "1Gi"}


def test_pod_level_limits_come_from_the_containers_only_if_all_have_them():
    limited = of({"limits": {"cpu": "1", "memory": "1Gi"}})
    assert pod_level([limited, limited], {"requests": {"cpu": "1"}})[1] == {"cpu": "2", "memory": "2Gi"}
    half = of({"limits": {"cpu": "1"}})
    assert pod_level([limited, half], {"requests": {"cpu": "1"}})[1] == {"cpu": "2"}


def test_a_pod_level_request_above_the_containers_limits_raises_the_pods_limit():
    limited = of({"limits": {"memory": "1Gi"}})
    assert pod_level([limited], {"requests": {"memory": "3Gi"}})[1] == {"memory": "3Gi"}


def test_pod_level_huge_pages_are_the_containers_even_if_only_one_has_them():
    pages = of({"limits": {"cpu": "1", "hugepages-2Mi": "4Mi"}})
    requests, limits = pod_level([pages, of({})], {"limits": {"memory": "1Gi"}})
    assert limits["hugepages-2Mi"] == requests["hugepages-2Mi"] == "4Mi"


def test_init_containers_and_sidecars_count_as_they_run():
    sidecar = of({"requests": {"cpu": "1"}}, name="s", restartPolicy="Always")
    starter = of({"requests": {"cpu": "3"}}, name="i")
    after = of({"requests": {"cpu": "1"}})
    requests, _ = pod_level([after], {"limits": {"memory": "1Gi"}}, initContainers=[sidecar, starter])
    assert requests["cpu"] == "4"
    requests, _ = pod_level([after], {"limits": {"memory": "1Gi"}}, initContainers=[starter, sidecar])
    assert requests["cpu"] == "3"


def test_static_pods_keep_their_pod_level_resources_as_written():
    spec = {"containers": [of({"limits": {"cpu": "1"}})], "resources": {"requests": {"memory": "1Gi"}}}
    own = default_pod(pod(spec), Profile.KUBERNETES, static=True).spec.resources
    assert own is not None
    assert (spelled(own.requests), spelled(own.limits)) == ({"memory": "1Gi"}, {})


@pytest.mark.parametrize("profile", PROFILES)
def test_a_pod_gets_what_a_node_needs(profile):
    probe = {"httpGet": {"port": 80}}
    bare = of({}, ports=[{"containerPort": 80}], livenessProbe=probe)
    full = default_pod(pod({"containers": [bare]}), profile)
    assert full.metadata.namespace == "default"
    assert full.spec.restart_policy == "Always"
    assert full.spec.termination_grace_period_seconds == 30
    assert full.spec.priority == 0
    (container,) = full.spec.containers
    assert container.ports[0].protocol == "TCP"
    liveness = container.liveness_probe
    assert liveness is not None
    assert (liveness.timeout_seconds, liveness.period_seconds) == (1, 10)
    assert (liveness.success_threshold, liveness.failure_threshold) == (1, 3)
    assert liveness.http_get is not None
    assert (liveness.http_get.path, liveness.http_get.scheme) == ("/", "HTTP")
    assert not list(validate_pod(full, profile))


@pytest.mark.parametrize("profile", PROFILES)
def test_written_values_are_not_replaced_by_defaults(profile):
    written = {
        "containers": [of({}, imagePullPolicy="Never", terminationMessagePolicy="FallbackToLogsOnError")],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "priority": 7,
        "priorityClassName": "system-node-critical",
    }
    full = default_pod(pod(written, namespace="mine"), profile)
    assert full.metadata.namespace == "mine"
    assert (full.spec.restart_policy, full.spec.termination_grace_period_seconds) == ("Never", 0)
    assert full.spec.priority == 7
    assert full.spec.containers[0].image_pull_policy == "Never"
    assert full.spec.containers[0].termination_message_policy == "FallbackToLogsOnError"


@pytest.mark.parametrize(
    "name, priority", [("system-node-critical", 2000001000), ("system-cluster-critical", 2000000000)]
)
def test_the_two_system_classes_carry_their_priority(name, priority):
    some = pod({"containers": [of({})], "priorityClassName": name})
    assert default_pod(some, Profile.DOCUMENTS).spec.priority == priority


@pytest.mark.parametrize(
    "image, policy",
    [
        ("nginx", "Always"),
        ("nginx:latest", "Always"),
        ("localhost:5000/nginx", "Always"),
        ("nginx:1.27", "IfNotPresent"),
        ("localhost:5000/nginx:1", "IfNotPresent"),
        ("nginx@sha256:0123", "IfNotPresent"),
    ],
)
def test_an_image_without_a_version_is_pulled_anew(image, policy):
    some = pod({"containers": [of({}, image=image)]})
    assert default_pod(some, Profile.KUBERNETES).spec.containers[0].image_pull_policy == policy


def test_resources_can_be_defaulted_alone():
    spec = default_resources(pod({"containers": [of({"limits": {"cpu": "1"}})]}).spec, Profile.DOCUMENTS)
    assert spelled(spec.containers[0].resources.requests) == {"cpu": "1"}
    assert spec.restart_policy == ""


names = st.sampled_from(["cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "example.com/gpu"])
amounts = st.sampled_from(["0", "1", "2Mi", "4Mi", "0.0005", "100m", "-1"])
lists = st.dictionaries(names, amounts)
requirements = st.fixed_dictionaries({"requests": lists, "limits": lists})
container = st.builds(
    lambda number, resources, policy: of(resources, name=f"c{number}", restartPolicy=policy),
    st.integers(0, 9),
    requirements,
    st.sampled_from([None, "Always"]),
)
pods = st.builds(
    lambda containers, init, own: pod({"containers": containers, "initContainers": init, "resources": own}),
    st.lists(container, min_size=1, max_size=3),
    st.lists(container, max_size=3),
    st.none() | requirements,
)


@given(pods, st.sampled_from(PROFILES), st.booleans())
def test_defaulting_twice_changes_nothing(some, profile, static):
    once = default_pod(some, profile, static=static)
    assert default_pod(once, profile, static=static) == once


@pytest.mark.req("A1", "A3")
@given(pods, st.sampled_from(PROFILES))
def test_after_defaulting_a_request_is_within_its_limit_or_a_problem_says_so(some, profile):
    full = default_pod(some, profile)
    within = all(
        0 <= amount.nanos <= each.resources.limits.get(name, amount).nanos
        for each in full.spec.every_container
        for name, amount in each.resources.requests.items()
    )
    if not within:
        assert any(".resources.requests" in problem.field for problem in validate_pod(full, profile))
