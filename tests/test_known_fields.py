"""The table of Kubernetes' fields: it is whole, its notation holds, and the walk finds what is wrong."""

import gzip
import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.api.known_fields import (
    Misshapen,
    Unknown,
    closest,
    fields_of,
    meant,
    unknown_below,
)
from evenkeel.api.known_fields_table import RELEASE, TYPES

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "src/evenkeel/api/known_fields_table.py").read_text()
SCALARS = {
    *("string", "integer", "number", "boolean"),
    *("quantity", "int-or-string", "date-time", "duration", "any"),
}


def innermost(notation):
    while notation.endswith("[]") or notation.startswith("{"):
        notation = notation[:-2] if notation.endswith("[]") else notation[1:-1]
    return notation


# The table


@pytest.mark.parametrize(
    ("type_name", "field", "notation"),
    [
        ("V1Pod", "spec", "V1PodSpec"),
        ("V1PodSpec", "containers", "V1Container[]"),
        ("V1PodSpec", "nodeSelector", "{string}"),
        ("V1PodSpec", "hostNetwork", "boolean"),
        ("V1PodSpec", "terminationGracePeriodSeconds", "integer"),
        ("V1PodSpec", "overhead", "{quantity}"),
        ("V1PodSpec", "resources", "V1ResourceRequirements"),
        ("V1PodSpec", "hostUsers", "boolean"),
        ("V1PodSpec", "schedulingGates", "V1PodSchedulingGate[]"),
        ("V1PodSpec", "hostnameOverride", "string"),
        ("V1PodSpec", "resourceClaims", "V1PodResourceClaim[]"),
        ("V1PodSpec", "setHostnameAsFQDN", "boolean"),
        ("V1PodSpec", "hostPID", "boolean"),
        ("V1Container", "resizePolicy", "V1ContainerResizePolicy[]"),
        ("V1Container", "restartPolicyRules", "V1ContainerRestartRule[]"),
        ("V1Container", "startupProbe", "V1Probe"),
        ("V1Lifecycle", "stopSignal", "string"),
        ("V1LifecycleHandler", "sleep", "V1SleepAction"),
        ("V1VolumeMount", "recursiveReadOnly", "string"),
        ("V1Volume", "image", "V1ImageVolumeSource"),
        ("V1Volume", "awsElasticBlockStore", "V1AWSElasticBlockStoreVolumeSource"),
        ("V1PodAffinityTerm", "mismatchLabelKeys", "string[]"),
        ("V1HTTPGetAction", "port", "int-or-string"),
        ("V1EmptyDirVolumeSource", "sizeLimit", "quantity"),
        ("V1ResourceRequirements", "limits", "{quantity}"),
        ("V1ResourceRequirements", "requests", "{quantity}"),
        ("V1ObjectMeta", "creationTimestamp", "date-time"),
        ("V1ObjectMeta", "managedFields", "V1ManagedFieldsEntry[]"),
        ("V1ManagedFieldsEntry", "fieldsV1", "any"),
        ("V1ContainerStatus", "allocatedResources", "{quantity}"),
        ("V1PodStatus", "qosClass", "string"),
        ("V1NodeStatus", "allocatable", "{quantity}"),
        ("V1NodeSpec", "podCIDRs", "string[]"),
        ("V1Deployment", "spec", "V1DeploymentSpec"),
        ("V1RollingUpdateDeployment", "maxSurge", "int-or-string"),
        ("V1StatefulSetSpec", "volumeClaimTemplates", "V1PersistentVolumeClaim[]"),
        ("V1DaemonSetSpec", "template", "V1PodTemplateSpec"),
        ("V1ReplicaSetSpec", "minReadySeconds", "integer"),
        ("V1ReplicationControllerSpec", "selector", "{string}"),
        ("V1JobSpec", "podReplacementPolicy", "string"),
        ("V1CronJobSpec", "timeZone", "string"),
        ("V1PodTemplate", "template", "V1PodTemplateSpec"),
        ("V1PodList", "items", "V1Pod[]"),
        ("V1NodeList", "metadata", "V1ListMeta"),
        ("V1List", "items", "any[]"),
        ("KubeletConfiguration", "cgroupsPerQOS", "boolean"),
        ("KubeletConfiguration", "evictionHard", "{string}"),
        ("KubeletConfiguration", "featureGates", "{boolean}"),
        ("KubeletConfiguration", "mergeDefaultEvictionSettings", "boolean"),
        ("KubeletConfiguration", "memoryReservationPolicy", "string"),
        ("KubeletConfiguration", "memoryThrottlingFactor", "number"),
        ("KubeletConfiguration", "failCgroupV1", "boolean"),
        ("KubeletConfiguration", "singleProcessOOMKill", "boolean"),
        ("KubeletConfiguration", "imagePullCredentialsVerificationPolicy", "string"),
        ("KubeletConfiguration", "podLogsDir", "string"),
        ("KubeletConfiguration", "syncFrequency", "duration"),
        ("KubeletConfiguration", "staticPodURLHeader", "{string[]}"),
        ("KubeletConfiguration", "registerWithTaints", "V1Taint[]"),
        ("KubeletConfiguration", "tlsCurvePreferences", "integer[]"),
        ("KubeletAuthentication", "x509", "KubeletX509Authentication"),
        ("CrashLoopBackOffConfig", "maxContainerRestartPeriod", "duration"),
        ("LoggingConfiguration", "flushFrequency", "int-or-string"),
        ("MemoryReservation", "limits", "{quantity}"),
        ("MemorySwapConfiguration", "swapBehavior", "string"),
        ("ShutdownGracePeriodByPodPriority", "shutdownGracePeriodSeconds", "integer"),
        ("TracingConfiguration", "samplingRatePerMillion", "integer"),
        ("UserNamespaces", "idsPerPod", "integer"),
    ],
)
def test_a_field_of_kubernetes_is_there_with_its_type(type_name, field, notation):
    assert fields_of(type_name)[field] == notation


def test_the_table_names_its_release():
    assert re.fullmatch(r"1\.\d+", RELEASE)


def test_every_notation_is_a_scalar_or_a_type_of_the_table():
    notations = {innermost(notation) for fields in TYPES.values() for notation in fields.values()}
    assert notations <= SCALARS | TYPES.keys()
    assert not SCALARS & TYPES.keys()


def test_every_type_can_be_reached_from_a_kind():
    used = {innermost(notation) for fields in TYPES.values() for notation in fields.values()}
    roots = TYPES.keys() - used
    assert "KubeletConfiguration" in roots
    assert all({"apiVersion", "kind"} <= TYPES[root].keys() for root in roots)


def test_no_type_holds_itself_so_the_walk_is_no_deeper_than_the_types():
    def depth(name, above):
        assert name not in above
        inner = {innermost(notation) for notation in TYPES[name].values()} & TYPES.keys()
        return 1 + max((depth(other, {*above, name}) for other in inner), default=0)

    assert max(depth(name, set()) for name in TYPES) < 20


def test_the_data_is_sorted_with_a_line_a_type_so_that_a_new_release_is_a_small_diff():
    assert list(TYPES) == sorted(TYPES)
    assert all(list(fields) == sorted(fields) for fields in TYPES.values())
    assert len(TEXT.splitlines()) == len(TYPES) + 6
    assert len(TEXT) < 60_000


# The generator


def test_the_fields_written_by_hand_in_the_generator_are_in_the_table():
    tool = runpy.run_path(str(ROOT / "tools/known_fields.py"))
    by_hand = tool["by_hand"]()
    assert by_hand == {name: TYPES[name] for name in by_hand}
    assert tool["as_text"](RELEASE, TYPES) == TEXT


def test_no_field_is_twice_in_the_generator():
    for groups in runpy.run_path(str(ROOT / "tools/known_fields.py"))["BY_HAND"].values():
        names = [name for fields in groups.values() for name in fields.split()]
        assert len(names) == len(set(names))


def test_the_generator_says_what_it_needs_where_the_client_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(SystemExit, match="`kubernetes` Python client is not installed"):
        runpy.run_path(str(ROOT / "tools/known_fields.py"), run_name="__main__")


# The data in the package


def test_the_wheel_takes_the_whole_package_and_so_the_data():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/evenkeel"]
    assert not wheel.get("exclude")


def test_nothing_of_the_table_is_imported_before_an_unknown_field_is_met():
    script = (
        "import sys\n"
        "from evenkeel.api.manifests import read_manifests\n"
        "pod = {'apiVersion': 'v1', 'kind': 'Pod', 'metadata': {'name': 'a'}, 'spec': {'containers': []}}\n"
        "read_manifests(str(pod), 'x')\n"
        "print('evenkeel.api.known_fields_table' in sys.modules)\n"
        "pod['spec']['nodeSelectr'] = {}\n"
        "read_manifests(str(pod), 'x')\n"
        "print('evenkeel.api.known_fields_table' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True"]


# The closest name


@pytest.mark.req("A3")
@pytest.mark.parametrize(
    ("type_name", "written", "real"),
    [
        ("KubeletConfiguration", "cgroupsPerQos", "cgroupsPerQOS"),
        ("KubeletConfiguration", "CGROUPSPERQOS", "cgroupsPerQOS"),
        ("KubeletConfiguration", "kube-reserved", "kubeReserved"),
        ("KubeletConfiguration", "kube_reserved_cgroup", "kubeReservedCgroup"),
        ("KubeletConfiguration", "memoryThrottleFactor", "memoryThrottlingFactor"),
        ("KubeletConfiguration", "maxPod", "maxPods"),
        ("KubeletConfiguration", "oomScore", "oomScoreAdj"),
        ("V1ResourceRequirements", "request", "requests"),
        ("V1ResourceRequirements", "limit", "limits"),
        ("V1ResourceRequirements", "Requests", "requests"),
        ("V1PodSpec", "contianers", "containers"),
        ("V1PodSpec", "initContainer", "initContainers"),
        ("V1PodSpec", "nodeSelectors", "nodeSelector"),
        ("V1PodSpec", "hostNetwrok", "hostNetwork"),
        ("V1PodSpec", "priorityClass", "priorityClassName"),
        ("V1PodSpec", "gracePeriodSeconds", "terminationGracePeriodSeconds"),
        ("V1Container", "image_pull_policy", "imagePullPolicy"),
        ("V1Container", "cmd", "command"),
        ("V1Container", "evn", "env"),
        ("V1Container", "img", "image"),
        ("V1Container", "livenesProbe", "livenessProbe"),
    ],
)
def test_the_name_that_was_meant_is_found(type_name, written, real):
    assert closest(written, fields_of(type_name)) == real


@pytest.mark.parametrize(
    "written", ["", "s", "-", "foo", "tolerations", "healthcheck", "x" * 100_000, "日本"]
)
def test_a_name_like_nothing_else_gets_no_suggestion(written):
    assert closest(written, fields_of("V1Container")) is None


def test_the_same_letters_win_over_a_mere_likeness():
    assert closest("podcidr", ["podCIDRs", "podCIDR"]) == "podCIDR"
    assert closest("podcidrs", ["podCIDRs", "podCIDR"]) == "podCIDRs"


@given(
    st.sampled_from([(t, f) for t in ("V1PodSpec", "V1Container", "KubeletConfiguration") for f in TYPES[t]])
)
def test_letter_case_and_dashes_never_hide_a_name(field):
    type_name, name = field
    kebab = re.sub(r"([a-z])([A-Z])", r"\1-\2", name)
    assert closest(kebab.lower(), fields_of(type_name)) == name
    assert closest(name.upper(), fields_of(type_name)) == name


@pytest.mark.req("A3")
@pytest.mark.parametrize(
    ("type_name", "written", "place"),
    [
        ("V1Container", "limits", "resources.limits"),
        ("V1Container", "privileged", "securityContext.privileged"),
        ("V1Pod", "containers", "spec.containers"),
        ("V1Pod", "labels", "metadata.labels"),
        ("KubeletConfiguration", "swapBehavior", "memorySwap.swapBehavior"),
        ("V1Container", "exec", None),  # in each of the probes
    ],
)
def test_a_field_that_slipped_out_of_its_parent_is_found_there(type_name, written, place):
    assert meant(written, type_name) == place


def test_fields_of_our_own_are_suggested_too():
    assert meant("profle", "KubeletConfiguration", ["profile"]) == "profile"


# The walk


@pytest.mark.req("A3")
def test_a_field_that_does_not_exist_is_found_at_any_depth_with_its_path_and_the_closest_name():
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                    {"matchExpression": [{"key": "disk", "operator": "Exists"}]},
                ]
            },
            "requiredDuringScheduling": {},
        }
    }
    terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
    assert list(unknown_below("V1Affinity", affinity, "spec.affinity")) == [
        Unknown(f"{terms}[1].matchExpression", "matchExpression", "matchExpressions"),
        Unknown(
            "spec.affinity.nodeAffinity.requiredDuringScheduling",
            "requiredDuringScheduling",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ),
    ]


def test_paths_have_indexes_for_items_and_keys_for_maps():
    tolerations = [{"key": "a"}, {"kye": "b"}]
    assert [found.path for found in unknown_below("V1Toleration[]", tolerations, "spec.tolerations")] == [
        "spec.tolerations[1].kye"
    ]
    found = unknown_below("V1ObjectMeta", {"labels": {"app.kubernetes.io/name": ["x"]}}, "metadata")
    assert [wrong.path for wrong in found] == ["metadata.labels[app.kubernetes.io/name]"]
    assert [found.path for found in unknown_below("V1Pod", {"sepc": {}}, "")] == ["sepc"]


@pytest.mark.req("A3")
@pytest.mark.parametrize(
    ("notation", "value", "due"),
    [
        ("V1Affinity", [], "a mapping"),
        ("V1Affinity", "x", "a mapping"),
        ("V1Affinity", {"nodeAffinity": 1}, "a mapping"),
        ("V1Toleration[]", {"key": "a"}, "a list"),
        ("V1Toleration[]", "a", "a list"),
        ("{string}", ["a=b"], "a mapping"),
        ("{string}", {"a": 1}, "a string"),
        ("{string}", {"a": True}, "a string"),
        ("{string[]}", {"a": "b"}, "a list"),
        ("string[]", [1], "a string"),
        ("integer", "8080", "a whole number"),
        ("integer", 1.5, "a whole number"),
        ("integer", True, "a whole number"),
        ("number", "1.5", "a number"),
        ("boolean", "yes", "true or false"),
        ("boolean", 1, "true or false"),
        ("quantity", True, "a quantity such as 500m or 1Gi"),
        ("quantity", [1], "a quantity such as 500m or 1Gi"),
        ("int-or-string", 1.5, "a whole number or a string"),
        ("date-time", 2026, "a time such as 2026-01-31T12:00:00Z"),
        ("duration", 30, "a duration such as 30s or 1m30s"),
    ],
)
def test_a_value_of_the_wrong_shape_is_reported_with_the_right_one(notation, value, due):
    [found] = unknown_below(notation, value, "spec.x")
    assert isinstance(found, Misshapen)
    assert found.path.startswith("spec.x")
    assert found.due == due


@pytest.mark.parametrize(
    ("notation", "value"),
    [
        ("V1Affinity", {}),
        ("V1Affinity", None),
        ("V1Toleration[]", []),
        ("V1Toleration[]", [None]),
        ("{string}", {"a": "b", "c": None, 1: "d"}),
        ("integer", 8080),
        ("integer", -1.0),
        ("number", 1),
        ("number", 0.8),
        ("boolean", False),
        ("quantity", "500m"),
        ("quantity", 2),
        ("quantity", 0.5),
        ("int-or-string", "http"),
        ("int-or-string", 80),
        ("date-time", "2026-01-31T12:00:00Z"),
        ("duration", "30s"),
        ("any", {"anything": [{"at": "all"}]}),
        ("any[]", [1, "a", {}]),
    ],
)
def test_a_value_of_the_right_shape_is_not_complained_about(notation, value):
    assert list(unknown_below(notation, value, "spec.x")) == []


def test_the_same_wrong_scalar_is_reported_each_time():
    found = list(unknown_below("V1Toleration[]", ["NoSchedule", "NoSchedule"], "spec.tolerations"))
    assert [wrong.path for wrong in found] == ["spec.tolerations[0]", "spec.tolerations[1]"]


def test_a_key_that_yaml_does_not_take_for_text_is_named_as_json_would():
    found = unknown_below("V1Toleration", {True: 1, None: 2, 3: 4}, "t")
    assert [unknown.path for unknown in found] == ["t.true", "t.null", "t.3"]


def test_a_value_that_holds_itself_ends():
    endless: list[object] = []
    endless.append(endless)
    assert [found.path for found in unknown_below("V1Toleration[]", endless, "t")] == ["t[0]"]
    pod: dict[str, object] = {}
    pod.update(spec=pod, metadata=pod)
    assert {found.path for found in unknown_below("V1Pod", pod, "")} == {
        "spec.spec",
        "spec.metadata",
        "metadata.spec",
        "metadata.metadata",
    }


def test_a_value_that_many_aliases_share_is_checked_once():
    shared: list[object] = [{"kye": "a"}] * 1000
    terms = [{"matchExpressions": shared}] * 1000
    spec = {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"preference": t} for t in terms]
        }
    }
    [found] = unknown_below("V1Affinity", spec, "a")
    assert found == Unknown(
        "a.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].kye",
        "kye",
        "key",
    )


def test_thousands_of_unknown_fields_are_all_reported_but_only_the_first_with_a_suggestion():
    found = list(unknown_below("V1PodSpec", {f"container{number}": 1 for number in range(5000)}, "spec"))
    assert len(found) == 5000
    assert found[0].closest == "containers"
    assert found[-1].closest is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(sorted(TYPES["V1PodSpec"] | TYPES["V1Container"])), inner, max_size=4
        )
    ),
    max_leaves=20,
)


@settings(max_examples=50)
@given(st.sampled_from(sorted(TYPES)), JSON_VALUES)
def test_no_value_breaks_the_walk(type_name, value):
    for found in unknown_below(type_name, value, "x"):
        assert found.path.startswith("x")


def pods_in(value):
    if isinstance(value, dict) and "containers" in (value.get("spec") or {}):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from pods_in(inner)


def vectors(area):
    return json.loads(gzip.decompress((ROOT / f"tests/vectors/{area}.json.gz").read_bytes()))


@pytest.mark.parametrize("area", ["cgroup", "eviction", "oom", "podresources", "qos", "scheduler"])
def test_the_pods_of_the_vectors_have_only_fields_of_kubernetes(area):
    pods = [pod for vector in vectors(area) for pod in pods_in(vector["input"])]
    assert pods
    assert [found for pod in pods for found in unknown_below("V1Pod", pod, "")] == []


def test_a_shape_we_call_wrong_is_one_the_api_server_cannot_decode():
    seen = 0
    for vector in vectors("validation"):
        for found in unknown_below("V1Pod", vector["input"]["pod"], ""):
            if isinstance(found, Misshapen):
                seen += 1
                assert vector["expected"].get("decodeError"), (vector["id"], found)
    assert seen > 0


def test_the_kubelet_configurations_of_the_vectors_have_only_fields_of_the_kubelet():
    read = [one for one in vectors("kubeletconfig") if not one["expected"].get("decodeError")]
    assert read
    configs = [one["input"]["config"] for one in read]
    assert [found for config in configs for found in unknown_below("KubeletConfiguration", config, "")] == []
