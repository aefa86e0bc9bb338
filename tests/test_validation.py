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
from evenkeel.errors import NODE_RULE

PROFILES = list(Profile)
C = "spec.containers[0]"
MIRROR = "metadata.annotations[kubernetes.io/config.mirror]"
DELETION_COST = "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]"


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
def test_names_that_become_paths_cannot_leave_their_directory(field, value):
    kind = NODE_RULE if field == "uid" else "FieldValueInvalid"
    assert of_metadata(**{field: value}) == {(kind, f"metadata.{field}")}


def test_good_names_pass():
    assert of_metadata(name="a.b-c", namespace="kube-system", uid="0A-f") == set()
    assert of_metadata(name="", generateName="web-") == set()
    assert (
        of_metadata(generateName="A-") == set()
    )  # the last two characters are not looked at where one is a -
    assert of_metadata(annotations={"controller.kubernetes.io/pod-deletion-cost": "-12"}) == set()
    assert (
        of_metadata(labels={"app": "", "example.com/x": "A_b.c"}, annotations={"Example.com/x": "é"}) == set()
    )


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"labels": {"a b": "x"}}, "metadata.labels"),
        ({"labels": {"/x": "x"}}, "metadata.labels"),
        ({"labels": {"x": "-"}}, "metadata.labels"),
        ({"annotations": {"a/b/c": ""}}, "metadata.annotations"),
        ({"generateName": "A.-b"}, "metadata.generateName"),
        ({"annotations": {"kubernetes.io/config.mirror": ""}}, MIRROR),
        ({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "1.5"}}, DELETION_COST),
        ({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "+1"}}, DELETION_COST),
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
        ({"activeDeadlineSeconds": 0}, "Invalid", "activeDeadlineSeconds"),
        ({"priorityClassName": "High"}, "Invalid", "priorityClassName"),
        ({"hostname": "a.b"}, "Invalid", "hostname"),
        ({"hostnameOverride": ""}, "Invalid", "hostnameOverride"),
        ({"hostnameOverride": "A"}, "Invalid", "hostnameOverride"),
        ({"hostnameOverride": "a" * 65}, "TooLong", "hostnameOverride"),
        ({"hostnameOverride": "a.b", "hostNetwork": True}, "Forbidden", "hostnameOverride"),
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


def test_a_negative_grace_period_is_a_second():
    plain = {"spec": {"containers": [container()], "terminationGracePeriodSeconds": -5}}
    pod = default_pod(decode(Pod, plain, Findings()), Profile.KUBERNETES)
    assert pod.spec.termination_grace_period_seconds == 1


def test_a_mirror_pod_names_its_node():
    plain = {
        "metadata": {"name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}},
        "spec": {"containers": [container()], "nodeName": "n"},
    }
    assert complaints(plain) == set()


def test_a_name_that_is_made_of_a_bad_prefix_is_bad_as_well():
    assert of_metadata(name="", generateName="A") == {
        ("FieldValueInvalid", "metadata.generateName"),
        ("FieldValueInvalid", "metadata.name"),
    }


def test_names_are_compared_even_where_they_are_wrong():
    assert of_spec(containers=[container(name="A"), container(name="A")]) == {
        ("FieldValueInvalid", "spec.containers[0].name"),
        ("FieldValueInvalid", "spec.containers[1].name"),
        ("FieldValueDuplicate", "spec.containers[1].name"),
    }


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
        ({"env": [{"value": "x"}]}, "Required", "env[0].name"),
        ({"env": [{"name": "A=B"}]}, "Invalid", "env[0].name"),
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


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"command": ["a", "b\0c"]}, "command[1]"),
        ({"args": ["\ud800"]}, "args[0]"),
        ({"workingDir": "/\0"}, "workingDir"),
        ({"env": [{"name": "A", "value": "\0"}]}, "env[0].value"),
        ({"livenessProbe": {"exec": {"command": ["\0"]}}}, "livenessProbe.exec.command[0]"),
    ],
)
def test_texts_that_the_kernel_does_not_accept_are_refused_by_a_rule_of_the_node(fields, field):
    assert of_container(**fields) == {(NODE_RULE, f"{C}.{field}")}


@pytest.mark.parametrize(
    "volume, field",
    [
        ({"name": "v", "emptyDir": {"medium": "Tape"}}, "emptyDir.medium"),
        ({"name": "v", "hostPath": {"path": "data"}}, "hostPath.path"),
        ({"name": "v", "hostPath": {"path": "/\0"}}, "hostPath.path"),
    ],
)
def test_a_volume_that_cannot_be_had_here_is_refused_by_a_rule_of_our_own(volume, field):
    mount = [{"name": "v", "mountPath": "/v"}]
    found = of_spec(volumes=[volume], containers=[container(volumeMounts=mount)])
    assert found == {(NODE_RULE, f"spec.volumes[0].{field}")}  # and the mount is not called wrong for it


def test_a_wrong_volume_cannot_be_mounted():
    volume = {"name": "v", "emptyDir": {"sizeLimit": "-1"}}
    mount = [{"name": "v", "mountPath": "/v"}]
    assert of_spec(volumes=[volume], containers=[container(volumeMounts=mount)]) == {
        ("FieldValueForbidden", "spec.volumes[0].emptyDir.sizeLimit"),
        ("FieldValueNotFound", f"{C}.volumeMounts[0].name"),
    }


def from_field(path, **fields):
    return {"fieldRef": {"fieldPath": path, **fields}}


VOLUMES = [{"name": "made", "emptyDir": {}}, {"name": "on-host", "hostPath": {"path": "/srv"}}]


def from_file(volume="made", path="app.env", key="A"):
    return {"fileKeyRef": {"volumeName": volume, "path": path, "key": key}}


def from_resource(name, **fields):
    return {"resourceFieldRef": {"resource": name, **fields}}


@pytest.mark.parametrize(
    "source, kind, field",
    [
        ({}, "Invalid", ""),
        (from_file(volume="none"), "NotFound", ".fileKeyRef.volumeName"),
        (from_file(volume="on-host"), "Invalid", ".fileKeyRef.volumeName"),
        (from_file(volume="A"), "Invalid", ".fileKeyRef.volumeName"),
        (from_file(volume=""), "Required", ".fileKeyRef.volumeName"),
        (from_file(path=""), "Required", ".fileKeyRef.path"),
        (from_file(path="/app.env"), "Invalid", ".fileKeyRef.path"),
        (from_file(path="a/../app.env"), "Invalid", ".fileKeyRef.path"),
        (from_file(path="..app.env"), "Invalid", ".fileKeyRef.path"),
        (from_file(key=""), "Required", ".fileKeyRef.key"),
        (from_file(key="a=b"), "Invalid", ".fileKeyRef.key"),
        ({**from_file(), **from_field("metadata.name")}, "Invalid", ""),
        ({"secretKeyRef": {"name": "s"}}, "Required", ".secretKeyRef.key"),
        ({"configMapKeyRef": {"key": "k"}}, "Invalid", ".configMapKeyRef.name"),
        ({"configMapKeyRef": {"name": "s", "key": "a/b"}}, "Invalid", ".configMapKeyRef.key"),
        ({**from_field("metadata.name"), **from_resource("limits.cpu")}, "Invalid", ""),
        (from_field(""), "Required", ".fieldRef.fieldPath"),
        (from_field("metadata.nmae"), "Invalid", ".fieldRef.fieldPath"),
        (from_field("metadata.labels"), "NotSupported", ".fieldRef.fieldPath"),
        (from_field("spec.restartPolicy"), "NotSupported", ".fieldRef.fieldPath"),
        (from_field("metadata.name", apiVersion="v2"), "Invalid", ".fieldRef.fieldPath"),
        (from_field("metadata.name['x']"), "Invalid", ".fieldRef.fieldPath"),
        (from_field("metadata.labels['A B']"), "Invalid", ".fieldRef"),
        (from_field("metadata.labels['Example.com/x']"), "Invalid", ".fieldRef"),
        (from_resource(""), "Required", ".resourceFieldRef.resource"),
        (from_resource("limits.gpu"), "NotSupported", ".resourceFieldRef.resource"),
        (from_resource("limits.cpu", divisor="2"), "Invalid", ".resourceFieldRef.divisor"),
        (from_resource("requests.memory", divisor="1m"), "Invalid", ".resourceFieldRef.divisor"),
        (from_resource("limits.hugepages-2Mi", divisor="2Mi"), "Invalid", ".resourceFieldRef.divisor"),
    ],
)
def test_a_variable_has_one_source_that_can_be_had(source, kind, field):
    env = [{"name": "A", "valueFrom": source}]
    assert of_spec(containers=[container(env=env)], volumes=VOLUMES) == {
        (f"FieldValue{kind}", f"{C}.env[0].valueFrom{field}")
    }


@pytest.mark.parametrize(
    "source",
    [
        from_field("metadata.name", apiVersion="v1"),
        from_field("status.podIP"),
        from_field("metadata.annotations['Example.com/x']"),
        from_resource("limits.cpu", divisor="1m"),
        from_resource("limits.memory", divisor="1Mi", containerName="c"),
        from_resource("limits.memory", divisor="0"),
        from_resource("requests.hugepages-2Mi"),
        from_file(),
        from_file(path="of/app.env", key="any key"),
    ],
)
def test_a_good_source_of_a_variable_passes_and_leaves_no_room_for_a_value(source):
    assert of_spec(containers=[container(env=[{"name": "A", "valueFrom": source}])], volumes=VOLUMES) == set()
    env = [{"name": "A", "value": "1", "valueFrom": source}]
    assert of_spec(containers=[container(env=env)], volumes=VOLUMES) == {
        ("FieldValueInvalid", f"{C}.env[0].valueFrom")
    }


def test_an_init_container_that_ends_is_not_restarted_to_be_resized():
    resize = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    one = container(name="i", resizePolicy=resize)
    assert of_spec(initContainers=[one]) == {
        ("FieldValueInvalid", "spec.initContainers[0].resizePolicy[0].restartPolicy")
    }
    assert of_spec(initContainers=[{**one, "restartPolicy": "Always"}]) == set()


def test_host_ports_of_an_init_container_are_reported_with_the_path_of_kubernetes():
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 8080}]
    init = [container(name="i"), container(name="j", ports=ports)]
    assert of_spec(initContainers=init) == {
        ("FieldValueDuplicate", "spec.initContainers[0].ports[1].hostPort")
    }


def test_ports_of_a_pod_do_not_collide():
    one = {"containerPort": 80, "hostPort": 8080}
    second = container(name="d", ports=[one])
    assert of_spec(containers=[container(ports=[one]), second]) == {
        ("FieldValueDuplicate", "spec.containers[1].ports[0].hostPort")
    }
    named = {"containerPort": 80, "name": "http"}
    assert of_container(ports=[named, named]) == {("FieldValueDuplicate", f"{C}.ports[1].name")}


def test_a_resize_cannot_restart_a_pod_that_is_never_restarted():
    resize = [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]
    assert of_spec(containers=[container(resizePolicy=resize)], restartPolicy="Never") == {
        ("FieldValueInvalid", f"{C}.resizePolicy")
    }


@pytest.mark.parametrize(
    "volume, kind, field",
    [
        ({"name": "", "emptyDir": {}}, "Required", "name"),
        ({"name": "A", "emptyDir": {}}, "Invalid", "name"),
        ({"name": "v", "emptyDir": {"sizeLimit": "-1"}}, "Forbidden", "emptyDir.sizeLimit"),
        ({"name": "v", "hostPath": {}}, "Required", "hostPath.path"),
        ({"name": "v", "hostPath": {"path": "/srv/../etc"}}, "Invalid", "hostPath.path"),
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
    "source, kind, field",
    [
        ({}, "Required", ""),
        ({"volumeClaimTemplate": {}}, "Required", ""),
        (
            {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}},
            "Required",
            ".spec.resources.requests.storage",
        ),
    ],
)
def test_an_ephemeral_volume_has_a_whole_template(source, kind, field):
    volumes = [{"name": "v", "ephemeral": source}]
    assert of_spec(volumes=volumes) == {
        (f"FieldValue{kind}", f"spec.volumes[0].ephemeral.volumeClaimTemplate{field}")
    }


@pytest.mark.parametrize(
    "mounts, kind, field",
    [
        ([{"name": "w", "mountPath": "/w"}], "NotFound", "volumeMounts[0].name"),
        ([{"name": "v"}], "Required", "volumeMounts[0].mountPath"),
        ([{"name": "v", "mountPath": "/v"}] * 2, "Invalid", "volumeMounts[1].mountPath"),
        ([{"name": "v", "mountPath": "/v", "subPath": "../x"}], "Invalid", "volumeMounts.subPath"),
        ([{"name": "v", "mountPath": "/v", "subPath": "/x"}], "Invalid", "volumeMounts.subPath"),
        (
            [{"name": "v", "mountPath": "/v", "mountPropagation": "Shared"}],
            "NotSupported",
            "volumeMounts[0].mountPropagation",
        ),
        (
            [{"name": "v", "mountPath": "/v", "mountPropagation": "Bidirectional"}],
            "Forbidden",
            "volumeMounts[0].mountPropagation",
        ),
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
        ({"httpGet": {"port": 0}}, "Invalid", ".httpGet.port"),
        ({"httpGet": {"port": "HTTP"}}, "Invalid", ".httpGet.port"),
        ({"httpGet": {"port": 1, "scheme": "FTP"}}, "NotSupported", ".httpGet.scheme"),
        ({"httpGet": {"port": 1, "httpHeaders": [{"name": "a b"}]}}, "Invalid", ".httpGet.httpHeaders"),
        ({"tcpSocket": {"port": 65536}}, "Invalid", ".tcpSocket.port"),
        ({"grpc": {"port": 0}}, "Invalid", ".grpc.port"),
        ({"grpc": {"port": 1}, "tcpSocket": {"port": 1}}, "Forbidden", ".grpc"),
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
    env = [
        {"name": "A", "value": "1"},
        {"name": "A", "value": "2"},
        {"name": "A", "value": "$(A):3"},
        {"name": "A", "value": "$(A)"},
        {"name": "A", "value": "$(A)x", "valueFrom": from_field("metadata.name")},
    ]
    plain = {"metadata": {"name": "a.b"}, "spec": {"containers": [container(env=env)]}}
    assert {warning.field for warning in warnings(decode(Pod, plain, Findings()))} == {
        "metadata.name",
        f"{C}.env[1]",
        f"{C}.env[3]",
        f"{C}.env[4]",
    }


def port(number=80, **fields):
    return {"containerPort": number, "protocol": "TCP", **fields}


@pytest.mark.parametrize(
    "ports, warned",
    [
        ([port(), port(81)], []),
        ([port(hostIP="127.0.0.1")], [0]),
        ([port(), port()], [1]),
        ([port(), port(protocol="UDP")], []),
        ([port(), port(hostPort=80)], [1]),
        ([port(hostPort=80), port(hostPort=80, hostIP="::1")], [1]),
        ([port(hostPort=80, hostIP="127.0.0.1"), port(hostPort=80, hostIP="::1")], []),
        ([port(hostPort=80), port(hostPort=81)], []),
        ([port(name="a"), port(81, name="a")], [1]),
        ([port(name="a"), port(name="a")], [1, 1]),
    ],
)
def test_ports_that_collide_lead_to_a_warning(ports, warned):
    plain = {"metadata": {"name": "p"}, "spec": {"containers": [container(ports=ports)]}}
    found = [warning.field for warning in warnings(decode(Pod, plain, Findings()))]
    assert found == [f"{C}.ports[{index}]" for index in warned]


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


@pytest.mark.parametrize(
    "hook, kind, field",
    [
        ({}, "FieldValueRequired", ""),
        ({"exec": {}}, "FieldValueRequired", ".exec.command"),
        ({"sleep": {"seconds": -1}}, "FieldValueInvalid", ".sleep"),
        ({"sleep": {"seconds": 31}}, "FieldValueInvalid", ".sleep"),
        ({"tcpSocket": {"port": 80}}, NODE_RULE, ".tcpSocket"),
        ({"exec": {"command": ["x"]}, "sleep": {"seconds": 1}}, "FieldValueForbidden", ".sleep"),
        ({"httpGet": {"port": 0}}, "FieldValueInvalid", ".httpGet.port"),
    ],
)
def test_a_hook_has_one_handler_that_can_be_run(hook, kind, field):
    for name in ("postStart", "preStop"):
        assert of_container(lifecycle={name: hook}) == {(kind, f"{C}.lifecycle.{name}{field}")}


def test_hooks_that_can_be_run_are_taken():
    for hook in ({"exec": {"command": ["x"]}}, {"sleep": {"seconds": 30}}, {"httpGet": {"port": 80}}):
        assert not of_container(lifecycle={"preStop": hook, "postStart": hook})


@pytest.mark.parametrize(
    "rule, field",
    [
        ({"action": "Stop", "exitCodes": {"operator": "In", "values": [1]}}, ".action"),
        ({"action": "Restart"}, ".exitCodes"),
        ({"action": "Restart", "exitCodes": {"operator": "Is", "values": [1]}}, ".exitCodes.operator"),
    ],
)
def test_a_restart_rule_says_what_it_does_and_after_which_codes(rule, field):
    found = of_container(restartPolicy="Never", restartPolicyRules=[rule])
    assert {one for _, one in found} == {f"{C}.restartPolicyRules[0]{field}"}


def test_restart_rules_need_a_restart_policy():
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}
    assert of_container(restartPolicyRules=[rule]) == {("FieldValueRequired", f"{C}.restartPolicy")}
    for action in ("Restart", "RestartAllContainers"):
        assert not of_container(restartPolicyRules=[{**rule, "action": action}], restartPolicy="Never")


@pytest.mark.parametrize(
    "fields, field",
    [
        ({"hostAliases": [{"ip": "host", "hostnames": ["a"]}]}, "hostAliases[0].ip"),
        ({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a b"]}]}, "hostAliases[0].hostnames[0]"),
        ({"hostAliases": [{"ip": "10.0.0.1\n1.1.1.1 x", "hostnames": []}]}, "hostAliases[0].ip"),
        ({"dnsPolicy": "Other"}, "dnsPolicy"),
        ({"dnsPolicy": "None"}, "dnsConfig"),
        ({"dnsPolicy": "None", "dnsConfig": {}}, "dnsConfig.nameservers"),
        ({"hostAliases": [{"ip": "10.0.0.01", "hostnames": ["a"]}]}, "hostAliases[0].ip"),
        ({"hostAliases": [{"ip": "::ffff:10.0.0.1", "hostnames": ["a"]}]}, "hostAliases[0].ip"),
        ({"dnsConfig": {"nameservers": ["a"]}}, "dnsConfig.nameservers[0]"),
        (
            {"dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]}},
            "dnsConfig.nameservers",
        ),
        ({"dnsConfig": {"searches": ["a\nnameserver 1.1.1.1"]}}, "dnsConfig.searches[0]"),
        ({"dnsConfig": {"options": [{"value": "1"}]}}, "dnsConfig.options[0]"),
        ({"dnsConfig": {"options": [{"name": "a", "value": "1\nx"}]}}, "dnsConfig.options[0]"),
    ],
)
def test_names_and_addresses_to_look_up_are_checked(fields, field):
    found = of_spec(containers=[container()], **fields)
    assert {one for _, one in found} == {f"spec.{field}"}


def test_names_and_addresses_that_can_be_looked_up_are_taken():
    config = {
        "nameservers": ["fd00::53"],
        "searches": ["a.example.", "."],
        "options": [{"name": "ndots", "value": "2"}],
    }
    aliases = [{"ip": "fd00::1", "hostnames": ["a.example"]}]
    assert not of_spec(containers=[container()], dnsPolicy="None", dnsConfig=config, hostAliases=aliases)
