"""Fields of pods that Kubernetes has and the objects in `api` do not: refused, or without meaning on one node.

A field that changes the pod itself must not be ignored: without its volume or its device the pod would not work as
written. Such a field is refused, with a hint. A field for the scheduler or for other parts of a cluster is accepted
without a message. docs/pod-fields.md has all fields; a test compares it with this table."""

from collections.abc import Mapping

from evenkeel.named_tuples import NamedTuple


class FieldRule(NamedTuple):
    """`refusal` is empty for a field without meaning. `harmless` values ask for something that holds anyway."""

    refusal: str = ""
    harmless: tuple[object, ...] = ()


NO_MEANING = FieldRule()
_STORAGE = FieldRule(
    "it is storage of a cluster or of a cloud; write persistentVolumeClaim, which gets a directory of this machine, "
    "or hostPath"
)
CLUSTER_ONLY = "it comes from a cluster, and this node is in none; write a secret or configMap source"
_CLUSTER = FieldRule(CLUSTER_ONLY)
_USER = FieldRule("files belong to root here; write fsGroup in the pod's securityContext")
_STORAGES = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "csi", "fc", "flexVolume",
    "flocker", "gcePersistentDisk", "glusterfs", "iscsi", "nfs", "photonPersistentDisk", "portworxVolume",
    "quobyte", "rbd", "scaleIO", "storageos", "vsphereVolume",
)  # fmt: skip

# The node writes the status. A status in a manifest is not read.
_STATUSES = frozenset(("V1PodStatus", "V1ContainerStatus"))

FIELDS: Mapping[str, Mapping[str, FieldRule]] = {
    "V1Pod": dict.fromkeys(("apiVersion", "kind"), NO_MEANING),
    "V1ObjectMeta": dict.fromkeys(
        (
            "deletionGracePeriodSeconds", "finalizers", "managedFields",
            "resourceVersion", "selfLink",
        ),
        NO_MEANING,
    ),
    "V1PodSpec": {
        **dict.fromkeys(
            (
                "automountServiceAccountToken", "enableServiceLinks", "evictionResponders",
                "preemptionPolicy", "readinessGates", "schedulerName",
                "schedulingGroup", "serviceAccount", "topologySpreadConstraints",
            ),
            NO_MEANING,
        ),
        "os": FieldRule("this node runs Linux; write linux, or leave it out", ({"name": "linux"},)),
        "resourceClaims": FieldRule("this node gives no devices to pods; leave it out"),
        "schedulingGates": FieldRule("no one here removes a gate, so the pod would never start; leave them out"),
        "setHostnameAsFQDN": FieldRule("a pod has no domain here; write hostname instead"),
    },
    "V1Affinity": dict.fromkeys(("podAffinity", "podAntiAffinity"), NO_MEANING),
    "V1NodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": NO_MEANING},
    "V1Container": {
        "volumeDevices": FieldRule("containers get no block devices here; mount a volume instead"),
    },
    # The API server lets no ephemeral container have them.
    "V1EphemeralContainer": dict.fromkeys(
        (
            "lifecycle", "livenessProbe", "ports", "readinessProbe", "resizePolicy", "resources",
            "restartPolicy", "restartPolicyRules", "startupProbe", "volumeDevices",
        ),
        FieldRule("an ephemeral container has none; leave it out"),
    ),
    "V1Lifecycle": {"stopSignal": FieldRule("a container is stopped with SIGTERM; leave it out")},
    "V1GRPCAction": {"mode": FieldRule("the probe speaks gRPC without TLS; leave it out", ("Plaintext",))},
    "V1HTTPGetAction": {"protocol": FieldRule("requests are HTTP/1.1; leave it out", ("HTTP1", "HTTP/1.1"))},
    "V1ResourceRequirements": {"claims": FieldRule("this node gives no devices to pods; leave it out")},
    "V1PodSecurityContext": {"seLinuxChangePolicy": NO_MEANING},
    "V1Volume": {
        **dict.fromkeys(_STORAGES, _STORAGE),
        "gitRepo": FieldRule("nothing is cloned here; clone it in an init container to an emptyDir"),
        "image": FieldRule("an image cannot be mounted here; unpack it on this machine and write hostPath"),
    },
    "V1VolumeMount": {
        "bindMountOptions": FieldRule("leave it out"),
        "recursiveReadOnly": FieldRule("write Disabled, or readOnly: true alone", ("Disabled", "IfPossible")),
    },
    "V1VolumeProjection": dict.fromkeys(("clusterTrustBundle", "podCertificate"), _CLUSTER),
    "V1EmptyDirVolumeSource": {"mode": FieldRule("every user may write to an emptyDir; leave it out")},
    "V1KeyToPath": {"user": _USER},
    "V1DownwardAPIVolumeFile": {"user": _USER},
    "V1ConfigMapVolumeSource": {"defaultUser": _USER},
    "V1DownwardAPIVolumeSource": {"defaultUser": _USER},
    "V1ProjectedVolumeSource": {"defaultUser": _USER},
    "V1SecretVolumeSource": {"defaultUser": _USER},
    "V1ServiceAccountTokenProjection": {"user": _USER},
}  # fmt: skip


def rule_of(kubernetes_type: str, field: str) -> FieldRule | None:
    """The rule for a field; None if the table does not know it: it belongs to no pod."""
    if kubernetes_type in _STATUSES:
        return NO_MEANING
    return FIELDS.get(kubernetes_type, {}).get(field)


def refusal(rule: FieldRule, value: object) -> str:
    """Why the value is refused; empty if it is not. An empty or false value asks for nothing."""
    if not value or value in rule.harmless:
        return ""
    return rule.refusal
