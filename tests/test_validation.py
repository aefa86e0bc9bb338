"""The ordinary fields of a pod: names, policies, environment, volumes, probes, users, tolerations."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api.config import Profile
from evenkeel.api.decode import Findings, decode
from evenkeel.api.defaults import default_pod
from evenkeel.api.pod import Pod
from evenkeel.api.validation import validate_pod, warnings

PROFILES = list(Profile)
C = "spec.containers[0]"


def container(**fields: object) -> dict[str, Any]:
    return {"name": "c", "image": "host", **fields}


def complaints(plain: dict[str, Any], profile: Profile = Profile.DOCUMENTS) -> set[tuple[str, str]]:
    findings = Findings()
    read = decode(Pod, plain, findings)
    assert not findings.problems
    return {(problem.kind, problem.field) for problem in validate_pod(default_pod(read, profile), profile)}


def of_spec(**fields: object) -> set[tuple[str, str]]:
    return complaints({"metadata": {"name": "p"}, "spec": {"containers": [container()], **fields}})


def of_container(**fields: object) -> set[tuple[str, str]]:
    return of_spec(containers=[container(**fields)])


def of_metadata(**fields: object) -> set[tuple[str, str]]:
    return complaints({"metadata": {"name": "p", **fields}, "spec": {"containers": [container()]}})


@pytest.mark.parametrize("profile", PROFILES)
def test_the_least_pod_is_valid(profile):
    assert complaints({"metadata": {"name": "p"}, "spec": {"containers": [container()]}}, profile) == set()


@pytest.mark.req("A3")
def test_an_empty_pod_lacks_a_name_and_a_container():
    assert complaints({}) == {
        ("FieldValueRequired", "metadata.name"),
        ("FieldValueRequired", "spec.containers"),
    }


@pytest.mark.req("A3")
@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
@pytest.mark.parametrize(
    "value", ["..", "../x", "a/b", "/etc", "a b", "-a", "a-", "a\n", "é", "a" * 300, "."]
)
def test_what_becomes_a_path_cannot_leave_its_place(field, value):
    assert of_metadata(**{field: value}) == {("FieldValueInvalid", f"metadata.{field}")}


def test_good_names_pass():
    assert of_metadata(name="a.b-c", namespace="kube-system", uid="0A-f") == set()
    assert of_metadata(name="", generateName="web-") == set()
    assert (
        of_metadata(labels={"app": "", "example.com/x": "A_b.c"}, annotations={"Example.com/x": "é"}) == set()
    )


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"labels": {"a b": "x"}}, "metadata.labels"),
        ({"labels": {"/x": "x"}}, "metadata.labels"),
        ({"labels": {"x": "-"}}, "metadata.labels[x]"),
        ({"annotations": {"a/b/c": ""}}, "metadata.annotations"),
        ({"generateName": "A-"}, "metadata.generateName"),
    ],
)
def test_bad_labels_and_annotations_are_refused(fields, field):
    assert of_metadata(**fields) == {("FieldValueInvalid", field)}


def test_annotations_have_a_bound():
    assert of_metadata(annotations={"x": "é" * 200_000}) == {("FieldValueTooLong", "metadata.annotations")}


@pytest.mark.parametrize(
    "fields, kind, field",
    [
        ({"restartPolicy": "Sometimes"}, "NotSupported", "restartPolicy"),
        ({"terminationGracePeriodSeconds": -1}, "Invalid", "terminationGracePeriodSeconds"),
        ({"activeDeadlineSeconds": 0}, "Invalid", "activeDeadlineSeconds"),
        ({"priority": 2**31}, "Invalid", "priority"),
        ({"priorityClassName": "High"}, "Invalid", "priorityClassName"),
        ({"hostname": "a.b"}, "Invalid", "hostname"),
        ({"securityContext": {"runAsUser": -1}}, "Invalid", "securityContext.runAsUser"),
        ({"securityContext": {"fsGroup": 2**31}}, "Invalid", "securityContext.fsGroup"),
        (
            {"securityContext": {"supplementalGroups": [0, -5]}},
            "Invalid",
            "securityContext.supplementalGroups[1]",
        ),
        ({"tolerations": [{"operator": "Equal"}]}, "Invalid", "tolerations[0].operator"),
        ({"tolerations": [{"key": "a", "operator": "Near"}]}, "NotSupported", "tolerations[0].operator"),
        (
            {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
            "Invalid",
            "tolerations[0].operator",
        ),
        ({"tolerations": [{"key": "a", "effect": "Nope"}]}, "NotSupported", "tolerations[0].effect"),
        (
            {"tolerations": [{"key": "a", "tolerationSeconds": 1, "effect": "NoSchedule"}]},
            "Invalid",
            "tolerations[0].effect",
        ),
        ({"tolerations": [{"key": "a b"}]}, "Invalid", "tolerations[0].key"),
    ],
)
def test_a_bad_field_of_the_spec_is_refused(fields, kind, field):
    assert of_spec(**fields) == {(f"FieldValue{kind}", f"spec.{field}")}


def test_container_names_are_unique_among_init_containers_too():
    assert of_spec(containers=[container(), container()]) == {
        ("FieldValueDuplicate", "spec.containers[1].name")
    }
    assert of_spec(initContainers=[container()]) == {("FieldValueDuplicate", "spec.initContainers[0].name")}


@pytest.mark.parametrize(
    "fields, kind, field",
    [
        ({"name": ""}, "Required", "name"),
        ({"name": "envoy:latest"}, "Invalid", "name"),
        ({"name": "../x"}, "Invalid", "name"),
        ({"image": ""}, "Required", "image"),
        ({"image": " host"}, "Invalid", "image"),
        ({"imagePullPolicy": "Often"}, "NotSupported", "imagePullPolicy"),
        ({"terminationMessagePolicy": "Shout"}, "NotSupported", "terminationMessagePolicy"),
        ({"restartPolicy": "Sometimes"}, "NotSupported", "restartPolicy"),
        ({"command": ["a", "b\0c"]}, "Invalid", "command[1]"),
        ({"args": ["\ud800"]}, "Invalid", "args[0]"),
        ({"workingDir": "/\0"}, "Invalid", "workingDir"),
        ({"env": [{"value": "x"}]}, "Required", "env[0].name"),
        ({"env": [{"name": "A=B"}]}, "Invalid", "env[0].name"),
        ({"env": [{"name": "A", "value": "\0"}]}, "Invalid", "env[0].value"),
        ({"ports": [{"name": "http"}]}, "Required", "ports[0].containerPort"),
        ({"ports": [{"containerPort": 65536}]}, "Invalid", "ports[0].containerPort"),
        ({"ports": [{"containerPort": 1, "hostPort": -1}]}, "Invalid", "ports[0].hostPort"),
        ({"ports": [{"containerPort": 1, "protocol": "ICMP"}]}, "NotSupported", "ports[0].protocol"),
        ({"ports": [{"containerPort": 1, "name": "a--b"}]}, "Invalid", "ports[0].name"),
        ({"ports": [{"containerPort": 1, "name": "80"}]}, "Invalid", "ports[0].name"),
        ({"securityContext": {"runAsGroup": 2**40}}, "Invalid", "securityContext.runAsGroup"),
        (
            {"resizePolicy": [{"resourceName": "gpu", "restartPolicy": "NotRequired"}]},
            "NotSupported",
            "resizePolicy",
        ),
        ({"resizePolicy": [{"resourceName": "cpu"}]}, "Required", "resizePolicy"),
        (
            {"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2},
            "Duplicate",
            "resizePolicy[1]",
        ),
    ],
)
def test_a_bad_field_of_a_container_is_refused(fields, kind, field):
    assert of_container(**fields) == {(f"FieldValue{kind}", f"{C}.{field}")}


def test_ports_of_a_pod_do_not_collide():
    one = {"containerPort": 80, "hostPort": 8080}
    second = container(name="d", ports=[one])
    assert of_spec(containers=[container(ports=[one]), second]) == {
        ("FieldValueDuplicate", "spec.containers[1].ports[0].hostPort")
    }
    named = {"containerPort": 80, "name": "http"}
    assert of_container(ports=[named, named]) == {("FieldValueDuplicate", f"{C}.ports[1].name")}


def test_a_resize_cannot_restart_what_is_never_restarted():
    resize = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    assert of_spec(containers=[container(resizePolicy=resize)], restartPolicy="Never") == {
        ("FieldValueInvalid", f"{C}.resizePolicy")
    }


@pytest.mark.parametrize(
    "volume, kind, field",
    [
        ({"name": "", "emptyDir": {}}, "Required", "name"),
        ({"name": "A", "emptyDir": {}}, "Invalid", "name"),
        ({"name": "v", "emptyDir": {"medium": "Tape"}}, "NotSupported", "emptyDir.medium"),
        ({"name": "v", "emptyDir": {"sizeLimit": "-1"}}, "Forbidden", "emptyDir.sizeLimit"),
        ({"name": "v", "hostPath": {}}, "Required", "hostPath.path"),
        ({"name": "v", "hostPath": {"path": "data"}}, "Invalid", "hostPath.path"),
        ({"name": "v", "hostPath": {"path": "/srv/../etc"}}, "Invalid", "hostPath.path"),
        ({"name": "v", "hostPath": {"path": "/\0"}}, "Invalid", "hostPath.path"),
        ({"name": "v", "hostPath": {"path": "/srv", "type": "Tape"}}, "NotSupported", "hostPath.type"),
        ({"name": "v", "hostPath": {"path": "/srv"}, "emptyDir": {}}, "Forbidden", "hostPath"),
    ],
)
def test_a_bad_volume_is_refused(volume, kind, field):
    assert of_spec(volumes=[volume]) == {(f"FieldValue{kind}", f"spec.volumes[0].{field}")}


def test_good_volumes_pass():
    volumes = [
        {"name": "a", "emptyDir": {}},
        {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        {"name": "c", "emptyDir": {"medium": "HugePages-2Mi"}},
        {"name": "d", "hostPath": {"path": "/srv/..data", "type": "Directory"}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/{volume['name']}"} for volume in volumes]
    assert of_spec(volumes=volumes, containers=[container(volumeMounts=mounts)]) == set()


def test_a_volume_of_a_kind_we_do_not_honour_is_not_called_missing():
    assert of_spec(volumes=[{"name": "v", "configMap": {"name": "x"}}]) == set()


def test_volumes_have_different_names():
    volume = {"name": "v", "emptyDir": {}}
    assert of_spec(volumes=[volume, volume]) == {("FieldValueDuplicate", "spec.volumes[1].name")}


@pytest.mark.parametrize(
    "mounts, kind, field",
    [
        ([{"name": "w", "mountPath": "/w"}], "NotFound", "volumeMounts[0].name"),
        ([{"name": "v"}], "Required", "volumeMounts[0].mountPath"),
        ([{"name": "v", "mountPath": "/v"}] * 2, "Invalid", "volumeMounts[1].mountPath"),
        ([{"name": "v", "mountPath": "/v", "subPath": "../x"}], "Invalid", "volumeMounts[0].subPath"),
        ([{"name": "v", "mountPath": "/v", "subPath": "/x"}], "Invalid", "volumeMounts[0].subPath"),
    ],
)
def test_a_bad_mount_is_refused(mounts, kind, field):
    volumes = [{"name": "v", "emptyDir": {}}]
    assert of_spec(volumes=volumes, containers=[container(volumeMounts=mounts)]) == {
        (f"FieldValue{kind}", f"{C}.{field}")
    }


@pytest.mark.parametrize(
    "probe, kind, field",
    [
        ({}, "Required", ""),
        ({"exec": {"command": ["x"]}, "tcpSocket": {"port": 1}}, "Forbidden", ".tcpSocket"),
        ({"exec": {}}, "Required", ".exec.command"),
        ({"exec": {"command": ["\0"]}}, "Invalid", ".exec.command[0]"),
        ({"httpGet": {"port": 0}}, "Invalid", ".httpGet.port"),
        ({"httpGet": {"port": "HTTP"}}, "Invalid", ".httpGet.port"),
        ({"httpGet": {"port": 1, "scheme": "FTP"}}, "NotSupported", ".httpGet.scheme"),
        ({"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}, "Invalid", ".httpGet.httpHeaders"),
        ({"tcpSocket": {"port": 65536}}, "Invalid", ".tcpSocket.port"),
        ({"tcpSocket": {"port": 1}, "periodSeconds": -1}, "Invalid", ".periodSeconds"),
        ({"tcpSocket": {"port": 1}, "successThreshold": 2}, "Invalid", ".successThreshold"),
        (
            {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 0},
            "Invalid",
            ".terminationGracePeriodSeconds",
        ),
    ],
)
def test_a_bad_probe_is_refused(probe, kind, field):
    assert of_container(livenessProbe=probe) == {(f"FieldValue{kind}", f"{C}.livenessProbe{field}")}


def test_a_readiness_probe_may_want_more_successes_but_has_no_grace_period():
    probe = {"tcpSocket": {"port": "http"}, "successThreshold": 2}
    assert of_container(readinessProbe=probe) == set()
    assert of_container(readinessProbe={**probe, "terminationGracePeriodSeconds": 1}) == {
        ("FieldValueInvalid", f"{C}.readinessProbe.terminationGracePeriodSeconds")
    }


def test_only_sidecars_among_init_containers_have_probes():
    probed = container(name="i", startupProbe={"tcpSocket": {"port": 1}})
    assert of_spec(initContainers=[probed]) == {
        ("FieldValueForbidden", "spec.initContainers[0].startupProbe")
    }
    assert of_spec(initContainers=[{**probed, "restartPolicy": "Always"}]) == set()


@pytest.mark.req("A3")
def test_every_problem_is_reported_not_only_the_first():
    assert of_spec(containers=[container(name="A", image="")], restartPolicy="X") == {
        ("FieldValueInvalid", f"{C}.name"),
        ("FieldValueRequired", f"{C}.image"),
        ("FieldValueNotSupported", "spec.restartPolicy"),
    }


def test_a_name_that_is_no_host_name_and_a_hidden_variable_are_worth_a_warning():
    env = [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}, {"name": "A", "value": "$(A):3"}]
    plain = {"metadata": {"name": "a.b"}, "spec": {"containers": [container(env=env)]}}
    assert {warning.field for warning in warnings(decode(Pod, plain, Findings()))} == {
        "metadata.name",
        f"{C}.env[1]",
    }


odd = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["-1", "1Gi"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
amounts = st.dictionaries(
    st.sampled_from(["cpu", "memory", "hugepages-2Mi", "", "a/b/c"]) | st.text(max_size=4), odd
)
requirements = st.fixed_dictionaries({}, optional={"requests": amounts, "limits": amounts}) | odd
odd_container = (
    st.fixed_dictionaries(
        {},
        optional={
            "name": odd,
            "image": odd,
            "command": odd,
            "env": st.lists(st.fixed_dictionaries({"name": odd, "value": odd}), max_size=2) | odd,
            "resources": requirements,
            "ports": st.lists(st.fixed_dictionaries({"containerPort": odd, "name": odd}), max_size=2) | odd,
            "livenessProbe": st.fixed_dictionaries({"httpGet": st.fixed_dictionaries({"port": odd})}) | odd,
            "volumeMounts": st.lists(st.fixed_dictionaries({"name": odd, "subPath": odd}), max_size=2) | odd,
            "resizePolicy": st.lists(st.fixed_dictionaries({"resourceName": odd}), max_size=2) | odd,
            "restartPolicy": odd,
        },
    )
    | odd
)
odd_pod = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {}, optional={"name": odd, "uid": odd, "labels": odd, "annotations": odd}
        ),
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(odd_container, max_size=2) | odd},
            optional={
                "initContainers": st.lists(odd_container, max_size=2) | odd,
                "resources": requirements,
                "overhead": amounts | odd,
                "priority": odd,
                "volumes": st.lists(st.fixed_dictionaries({"name": odd, "hostPath": odd}), max_size=2) | odd,
                "tolerations": odd,
            },
        ),
    }
)


@pytest.mark.req("A3")
@given(odd_pod, st.sampled_from(PROFILES), st.booleans())
def test_validation_never_raises_and_every_problem_is_a_sentence_with_a_place(plain, profile, defaulted):
    read = decode(Pod, plain, Findings())
    some = default_pod(read, profile) if defaulted else read
    for problem in (*validate_pod(some, profile), *warnings(some)):
        assert problem.field
        assert problem.message.strip()
        assert str(problem).isprintable()
        if problem.field.isprintable():
            assert str(problem).startswith(problem.field)
