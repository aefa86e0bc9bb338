"""Services and PersistentVolumeClaims in manifests: what is taken, what is noted, and what is refused."""

import json
from typing import Any

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.manifests import read_manifests
from evenkeel.api.reading import Reading
from evenkeel.api.stored_objects import key_of_object, manifest_of

CLAIM: dict[str, object] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}


def read(kind: str, spec: dict[str, object], name: str = "it") -> Reading:
    one = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    return read_manifests(json.dumps(one), "f.yaml")


def service(**spec: Any) -> Reading:
    return read("Service", {"selector": {"app": "web"}, "ports": [{"port": 80}], **spec})


def test_a_service_is_read_and_written_again():
    (one,) = service(type="ClusterIP", sessionAffinity="ClientIP").or_raise().objects
    assert str(key_of_object(one)) == "Service default/it"
    again = read_manifests(json.dumps(manifest_of(one)), "again").or_raise()
    assert again.objects == (one,)
    assert not again.warnings


def test_a_claim_is_read_and_shown_as_bound():
    (one,) = read("PersistentVolumeClaim", {**CLAIM, "storageClassName": "fast"}).or_raise().objects
    assert manifest_of(one)["status"] == {
        "phase": "Bound",
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "2Gi"},
    }


def test_a_claim_and_a_claim_template_say_that_their_size_is_not_enforced():
    (note,) = read("PersistentVolumeClaim", CLAIM).or_raise().warnings
    assert str(note).endswith(
        "spec.resources.requests.storage: 2Gi is not enforced: the claim may take all the room of its disk"
    )
    assert not read("PersistentVolumeClaim", {**CLAIM, "resources": {}}).warnings, (
        "it is an error without a size"
    )
    (note,) = stateful_set().or_raise().warnings
    assert "spec.volumeClaimTemplates[0].spec.resources.requests.storage: 2Gi is not enforced" in str(note)


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"ports": [{"port": 80, "targetPort": 8080}]}, "clients must use port 8080 and not 80"),
        (
            {"ports": [{"port": 80, "targetPort": "http"}]},
            'clients must use port "http" of the pods, which need not be 80',
        ),
        ({"type": "LoadBalancer"}, "no port of the host is opened for type LoadBalancer"),
        ({"selector": {}}, "leads to no pod of this node"),
    ],
)
def test_what_is_not_as_in_a_cluster_is_noted(spec, words):
    (note,) = service(**spec).or_raise().warnings
    assert words in str(note)


@pytest.mark.parametrize(
    "spec",
    [
        {"ports": [{"port": 80, "targetPort": 80}]},
        {"clusterIP": "None", "ports": [{"port": 80, "targetPort": "http"}]},
        {"clusterIP": "None", "ports": [{"port": 80, "targetPort": 8080}]},
        {"clusterIP": "None", "ports": []},
    ],
)
def test_a_service_that_is_as_in_a_cluster_is_taken_in_silence(spec):
    assert not service(**spec).or_raise().warnings


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"type": "ExternalName", "externalName": "db.example.com"}, "hostAliases"),
        ({"type": "Nodeport"}, "is not one of ClusterIP"),
        ({"ports": []}, "needs a port"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port: must be a number from 1 to 65535"),
        ({"ports": [{"port": 1, "nodePort": 308080}]}, "spec.ports[0].nodePort: must be a number from 1 to"),
        ({"clusterIP": "CLUSTER_DNS_IP"}, 'spec.clusterIP: "CLUSTER_DNS_IP" must be None, an IP address'),
        ({"clusterIPs": ["10.0.0.1", "x"]}, "spec.clusterIPs[1]"),
        ({"ports": [{"port": 1}, {"port": 2}]}, "each of several ports needs a name"),
        ({"ports": [{"port": 80, "protocol": "HTTP"}]}, "is not one of TCP"),
        ({"selector": {"a b": "c"}}, "spec.selector"),
        ({"selectors": {}}, "did you mean selector?"),
    ],
)
def test_a_wrong_service_is_refused(spec, words):
    assert words in str(service(**spec).problems[0])


def test_the_name_of_a_service_is_a_host_name():
    assert "metadata.name" in str(read("Service", {"ports": [{"port": 80}]}, "a.b").problems[0])


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"accessModes": []}, "at least one"),
        ({"accessModes": ["RWO"]}, "is not one of ReadWriteOnce"),
        ({"accessModes": ["ReadWriteOncePod"]}, "write ReadWriteOnce"),
        ({"resources": {}}, "needs a size"),
        ({"resources": {"requests": {"storage": "0"}}}, "more than 0"),
        ({"volumeMode": "Block"}, "a claim is a directory"),
        ({"volumeName": "pv0001"}, "write hostPath in the pod"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "spec.selector"),
        ({"dataSource": {"kind": "VolumeSnapshot", "name": "s"}}, "begins empty"),
    ],
)
def test_a_claim_for_particular_storage_or_a_wrong_one_is_refused(spec, words):
    assert words in str(read("PersistentVolumeClaim", {**CLAIM, **spec}).problems[0])


def stateful_set(**spec: Any) -> Reading:
    template = {
        "metadata": {"labels": {"app": "db"}},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "host",
                    "command": ["x"],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ]
        },
    }
    one = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {
            "selector": {"matchLabels": {"app": "db"}},
            "serviceName": "db",
            "template": template,
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": CLAIM}],
            **spec,
        },
    }
    return read_manifests(json.dumps(one), "f.yaml")


def test_pods_of_a_stateful_set_have_a_volume_for_each_claim_template():
    reading = stateful_set(replicas=2).or_raise()
    pods = reading.with_every_pod(Profile.DOCUMENTS)
    names = [volume.persistent_volume_claim.claim_name for pod in pods.pods for volume in pod.spec.volumes]
    assert names == ["data-db-0", "data-db-1"]
    assert {pod.spec.subdomain for pod in pods.pods} == {"db"}


def test_a_claim_template_may_have_what_kubernetes_writes_into_it():
    written = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "status": {"phase": "Pending"}}
    meta = {"name": "data", "creationTimestamp": None}
    reading = stateful_set(volumeClaimTemplates=[{**written, "metadata": meta, "spec": CLAIM}]).or_raise()
    assert not [note for note in reading.warnings if "not honoured" in str(note)]
    assert reading.workloads[0].workload == stateful_set().workloads[0].workload


def test_a_service_name_that_is_no_host_name_names_no_pod():
    reading = stateful_set(serviceName="db\n192.0.2.1 bank.example").or_raise()
    assert {pod.spec.subdomain for pod in reading.with_every_pod(Profile.DOCUMENTS).pods} == {""}


@pytest.mark.parametrize(
    "spec, words",
    [
        ({"volumeClaimTemplates": []}, 'no valid volume is called "data"'),
        (
            {"volumeClaimTemplates": [{"metadata": {"name": "data"}}]},
            "spec.volumeClaimTemplates[0].spec.accessModes",
        ),
        ({"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"}}, "write Retain"),
    ],
)
def test_a_wrong_claim_template_is_refused(spec, words):
    assert words in str(stateful_set(**spec).problems[0])
