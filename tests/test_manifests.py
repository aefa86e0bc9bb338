"""Manifests: the pods and nodes in a text, and everything wrong with it."""

import json
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.api import manifests
from evenkeel.api.config import Profile
from evenkeel.api.defaults import stable_uid
from evenkeel.api.lined_values import Document
from evenkeel.api.manifests import read_manifests
from evenkeel.api.problems import line_of
from evenkeel.api.reading import NOTHING_READ
from evenkeel.api.workload_types import MAX_REPLICAS
from evenkeel.errors import InvalidInput
from tests.strategies import plain_values

WEB = """\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  containers:
  - name: server
    image: host
    command: [serve]
    resources:
      requests: {cpu: 500m, memory: 256Mi}
      limits: {memory: 512Mi}
"""
SPEC = {"containers": [{"name": "a", "image": "host"}]}
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": SPEC}
BATCH = {"metadata": {"labels": {"app": "a"}}, "spec": {**SPEC, "restartPolicy": "Never"}}
SELECTOR = {"matchLabels": {"app": "a"}}


def read(text, profile=Profile.DOCUMENTS):
    return read_manifests(textwrap.dedent(text), "f.yaml", profile)


def read_objects(*objects):
    return read_manifests("\n---\n".join(json.dumps(each) for each in objects), "f.yaml")


def problem_lines(reading):
    return [str(problem) for problem in reading.problems]


def of_kind(kind, version, spec, name="w", **meta):
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **meta}, "spec": spec}


def a_pod(name="p", **spec):
    return of_kind("Pod", "v1", {**SPEC, **spec}, name)


def test_a_pod_is_read_with_its_defaults():
    reading = read(WEB).or_raise()
    (pod,) = reading.pods
    assert pod.key == "default/web"
    assert pod.spec.restart_policy == "Always"
    assert str(pod.spec.containers[0].resources.requests["memory"]) == "256Mi"
    assert (reading.nodes, reading.warnings) == ((), ())


def test_pods_and_nodes_of_several_documents_are_read():
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"cpu": 4}}}
    reading = read_objects(a_pod("a"), node, a_pod("b")).or_raise()
    assert [pod.metadata.name for pod in reading.pods] == ["a", "b"]
    assert [each.metadata.name for each in reading.nodes] == ["n"]
    assert [origin.source for origin in reading.origins] == ["f.yaml", "f.yaml#3"]


@pytest.mark.req("A3")
def test_every_error_of_a_text_is_reported_with_file_document_line_and_field():
    reading = read(
        """\
        apiVersion: v1
        kind: Pod
        metadata:
          name: Web
        spec:
          containers:
          - name: a
            image: host
            resources:
              requests: {memory: 2Gi}
              limits: {memory: 1Gi}
          - name: b
            imagee: host
        ---
        apiVersion: v1
        kind: Pod
        metadata: {name: second}
        spec:
          restartPolicy: Sometimes
          containers:
          - name: a
            image: 5
            resources: {requests: {cpu: -1, memory: 1GB}}
        """
    )
    assert [(problem.source, problem.line, problem.field) for problem in reading.problems] == [
        ("f.yaml", 4, "metadata.name"),
        ("f.yaml", 10, "spec.containers[0].resources.requests"),
        ("f.yaml", 12, "spec.containers[1].image"),
        ("f.yaml", 13, "spec.containers[1].imagee"),
        ("f.yaml#2", 19, "spec.restartPolicy"),
        ("f.yaml#2", 22, "spec.containers[0].image"),
        ("f.yaml#2", 23, "spec.containers[0].resources.requests[memory]"),
        ("f.yaml#2", 23, "spec.containers[0].resources.requests[cpu]"),
    ]
    assert "did you mean image?" in problem_lines(reading)[3]
    assert not reading.pods
    with pytest.raises(InvalidInput) as caught:
        reading.or_raise()
    assert caught.value.problems == reading.problems


@pytest.mark.req("A3")
def test_nothing_of_a_rejected_pod_is_left_and_the_others_stay():
    reading = read_objects(a_pod("a"), a_pod("B"), a_pod("c"))
    assert [pod.metadata.name for pod in reading.pods] == ["a", "c"]
    assert len(reading.origins) == 2


@pytest.mark.parametrize(
    "spec, fields",
    [
        ([], {"spec"}),
        ("x", {"spec"}),
        ({"containers": {}}, {"spec.containers"}),
        ({"containers": [5]}, {"spec.containers[0]"}),
        ({"containers": [{"name": 5, "image": "host"}]}, {"spec.containers[0].name"}),
        ({"containers": [{"name": "a", "image": {}}]}, {"spec.containers[0].image"}),
        (
            {"containers": [{"name": "a", "image": "host", "resources": []}], "volumes": 1},
            {"spec.containers[0].resources", "spec.volumes"},
        ),
    ],
)
def test_a_wrong_shape_is_reported_once_and_causes_no_other_problem(spec, fields):
    reading = read_objects({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    assert [problem.field for problem in reading.problems] == sorted(fields)


def test_a_wrong_shape_in_one_place_hides_nothing_in_another():
    reading = read_objects(a_pod("P", volumes=5, restartPolicy="Sometimes"))
    assert {problem.field for problem in reading.problems} == {
        "metadata.name",
        "spec.volumes",
        "spec.restartPolicy",
    }


def test_the_name_of_a_node_is_not_missed_where_its_metadata_could_not_be_read():
    node = {"apiVersion": "v1", "kind": "Node"}
    assert problem_lines(read_objects(node)) == ["f.yaml:1: metadata.name: a node needs a name"]
    for meta in (5, {"name": 5}):
        (problem,) = read_objects({**node, "metadata": meta}).problems
        assert problem.kind == "Decode"


def test_fields_without_effect_are_named_in_one_warning_a_document():
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name},
            "spec": {"podCIDR": "", "providerID": "a"},
        }
        for name in "ab"
    ]
    assert [str(warning) for warning in read_objects(*nodes).warnings] == [
        "f.yaml:1: spec.podCIDR: not honoured here, and without effect: spec.podCIDR, spec.providerID",
        "f.yaml#2:3: spec.podCIDR: not honoured here, and without effect: spec.podCIDR, spec.providerID",
    ]


def test_a_single_field_without_effect_is_named_once():
    text = (
        '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "spec": {"podCIDR": "10.0.0.0/24"}}'
    )
    (warning,) = read_manifests(text, "f.yaml").warnings
    assert str(warning) == "f.yaml:1: spec.podCIDR: not honoured here, and without effect"


def test_a_valid_pod_gets_warnings_about_unlikely_settings():
    (warning,) = read_objects(a_pod("my.pod")).or_raise().warnings
    assert (warning.field, warning.line) == ("metadata.name", 1)
    assert not read_objects(a_pod("My.pod")).warnings


def test_an_error_inside_a_field_without_effect_is_an_error():
    (problem,) = read_objects(a_pod(affinity={"podAfinity": {}})).problems
    assert problem.field == "spec.affinity.podAfinity"
    assert "did you mean podAffinity?" in problem.message


@pytest.mark.parametrize("value", ["- 1\n", "5\n", "1.5\n", "text\n", "true\n", "[[]]\n"])
def test_a_document_must_be_an_object(value):
    (problem,) = read(value).problems
    assert "must be an object with apiVersion and kind, not " in problem.message
    assert "Lined" not in problem.message
    assert "Spelled" not in problem.message


def test_apiversion_and_kind_are_missed_together():
    assert problem_lines(read("metadata: {}")) == [
        "f.yaml:1: apiVersion: is missing: write apiVersion: v1",
        "f.yaml:1: kind: is missing: write kind: Pod",
    ]
    assert len(read("apiVersion: 1\nkind: [Pod]").problems) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("resources: [a.yaml]\nnamePrefix: dev-", "it is a kustomization"),
        ("apiVersion: v2\nname: app\nversion: 0.1.0", "it describes a chart of Helm"),
        ("services: {web: {image: nginx}}", "it is a file of Docker Compose"),
        ("controller: {admin: {}}", "it has neither apiVersion nor kind"),
    ],
)
def test_a_file_of_another_program_is_named_as_one(text, words):
    (problem,) = read(text).problems
    assert problem.message.startswith(f"is no Kubernetes object: {words}")


def test_a_number_that_should_be_text_is_shown_as_it_is_written():
    (problem,) = read_objects({**a_pod(), "metadata": {"name": "p", "labels": {"build": 7}}}).problems
    assert problem.message.endswith('put it in quotes, "7"')
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {build: 007}}"
    (problem,) = read(text).problems
    assert problem.message == 'must be a string, not 007: put it in quotes, "007"'


@pytest.mark.parametrize(
    "version, kind, words",
    [
        ("v1", "pod", "did you mean Pod?"),
        ("v1", "Pods", "did you mean Pod?"),
        ("apps/v1", "Deploymet", "did you mean Deployment?"),
        ("v1", "Xyzzy", "write Pod, or one of the kinds that hold a pod template"),
        ("v1", "", "write Pod"),
    ],
)
def test_an_unknown_kind_is_reported_with_the_closest_one(version, kind, words):
    (problem,) = read_objects({"apiVersion": version, "kind": kind}).problems
    assert problem.field == "kind"
    assert words in problem.message


@pytest.mark.parametrize(
    "version, kind, right",
    [
        ("v2", "Pod", "v1"),
        ("apps/v1", "Pod", "v1"),
        ("v1", "Deployment", "apps/v1"),
        ("extensions/v1beta1", "Deployment", "apps/v1"),
        ("batch/v1beta1", "CronJob", "batch/v1"),
        ("v1beta1", "Node", "v1"),
    ],
)
def test_a_wrong_apiversion_is_reported_beside_other_errors(version, kind, right):
    reading = read_objects({"apiVersion": version, "kind": kind, "metadata": {"nmae": "x"}})
    found = {problem.field: problem.message for problem in reading.problems}
    assert f"is of apiVersion {right}, not" in found["apiVersion"]
    assert "metadata.nmae" in found


@pytest.mark.parametrize(
    "version, kind",
    [("v1", "Namespace"), ("networking.k8s.io/v1", "Ingress"), ("a.b/v1", "Own")],
)
def test_kinds_that_are_nothing_to_a_node_are_passed_over(version, kind):
    reading = read_objects(
        a_pod(), {"apiVersion": version, "kind": kind, "data": {"any": "thing"}}
    ).or_raise()
    assert len(reading.pods) == 1
    assert [str(warning) for warning in reading.warnings] == [
        f"f.yaml#2:3: kind: passed over, since it concerns a cluster and no pod of a node alone: {kind}"
    ]


def test_one_note_has_all_objects_that_are_passed_over():
    roles = [{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole"}] * 2
    reading = read_objects({"apiVersion": "v1", "kind": "Namespace"}, a_pod(), *roles).or_raise()
    (note,) = reading.warnings
    assert str(note).startswith("f.yaml:")
    assert str(note).endswith(": Namespace, ClusterRole (2)")


def test_an_object_of_another_group_with_a_name_of_ours_is_passed_over():
    reading = read_objects(
        a_pod(), {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "spec": {"x": 1}}
    )
    (note,) = reading.or_raise().warnings
    assert str(note).endswith("Service.serving.knative.dev")


def test_pull_secrets_of_an_account_reach_no_pod_and_that_is_noted():
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "imagePullSecrets": [{"name": "a"}]}
    first, _ = read_objects(a_pod(), account).or_raise().warnings
    assert "imagePullSecrets: reaches no pod" in str(first)


@pytest.mark.parametrize(
    "version, kind",
    [
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("kustomize.config.k8s.io/v1beta1", "Kustomization"),
        ("v1", "LimitRange"),
        ("v1", "ResourceQuota"),
        ("v1", "PersistentVolume"),
        ("scheduling.k8s.io/v1", "PriorityClass"),
        ("policy/v1beta1", "PodSecurityPolicy"),
    ],
)
def test_kinds_without_which_pods_are_not_what_is_written_are_refused(version, kind):
    reading = read_objects(a_pod(), {"apiVersion": version, "kind": kind})
    (problem,) = reading.problems
    assert str(problem).startswith(f"f.yaml#2:3: kind: {kind} cannot be honoured here: ")
    assert "take it out" in str(problem)


@pytest.mark.parametrize(
    "version, kind, spec",
    [
        ("apps/v1", "Deployment", {"template": TEMPLATE, "selector": SELECTOR}),
        ("apps/v1", "ReplicaSet", {"template": TEMPLATE, "selector": SELECTOR}),
        ("apps/v1", "StatefulSet", {"template": TEMPLATE, "selector": SELECTOR, "serviceName": "x"}),
        ("v1", "ReplicationController", {"template": TEMPLATE}),
        ("apps/v1", "DaemonSet", {"template": TEMPLATE, "selector": SELECTOR}),
        ("batch/v1", "Job", {"template": BATCH}),
        ("batch/v1", "CronJob", {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": BATCH}}}),
    ],
)
def test_an_object_with_a_pod_template_is_a_workload_and_stands_for_its_pod(version, kind, spec):
    reading = read_objects(of_kind(kind, version, spec, "work", namespace="mine")).or_raise()
    assert reading.pods == ()
    ((workload, origin, _),) = reading.workloads
    assert (type(workload).__name__, workload.metadata.name, origin.line) == (kind, "work", 1)
    (pod,) = reading.with_every_pod(Profile.DOCUMENTS).pods
    assert pod.key.startswith("mine/work-")
    assert pod.metadata.labels["app"] == "a"
    assert pod.metadata.uid == stable_uid("mine", pod.metadata.name)
    assert pod.spec.containers[0].name == "a"
    assert pod.metadata.owner_references[0].kind == ("Job" if kind == "CronJob" else kind)


def test_a_pod_template_by_itself_makes_no_pod_and_can_be_planned_with():
    written = json.dumps(
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t"}, "template": TEMPLATE}
    )
    reading = read_manifests(written, "f.yaml").or_raise()
    assert reading.pods == ()
    assert [str(note).rpartition(": ")[2] for note in reading.warnings] == ["PodTemplate"]
    (pod,) = read_manifests(written, "f.yaml", is_to_run=False).or_raise().pods
    assert pod.key == "default/t"


def a_deployment(name="w", **spec):
    return of_kind("Deployment", "apps/v1", {"template": TEMPLATE, "selector": SELECTOR, **spec}, name)


def a_job(name="w", **spec):
    return of_kind("Job", "batch/v1", {"template": BATCH, **spec}, name)


@pytest.mark.parametrize("make, field", [(a_deployment, "replicas"), (a_job, "parallelism")])
@pytest.mark.parametrize("count, pods", [(0, 0), (1, 1), (3, 3), (None, 1)])
def test_replicas_are_as_many_pods(make, field, count, pods):
    reading = read_objects(make(**{field: count})).or_raise().with_every_pod(Profile.DOCUMENTS)
    assert len({pod.metadata.name for pod in reading.pods}) == pods
    assert len({pod.metadata.uid for pod in reading.pods}) == pods
    assert len(reading.origins) == pods


def test_the_pods_of_workloads_stand_between_those_that_were_written():
    first = read_objects(a_pod("a"), a_deployment("w"), a_pod("b"))
    second = read_objects(a_deployment("v"), a_pod("c"))
    names = [pod.metadata.name[0] for pod in (first + second).with_every_pod(Profile.DOCUMENTS).pods]
    assert names == ["a", "w", "b", "v", "c"]


@pytest.mark.parametrize("count", [-1, MAX_REPLICAS + 1, 10**30, "3", 1.5, 2.0, True, []])
def test_a_wrong_number_of_replicas_is_reported_once(count):
    reading = read_objects(a_deployment(replicas=count))
    (problem,) = reading.problems
    assert problem.field == "spec.replicas"
    assert "number" in problem.message
    assert not reading.workloads


def test_one_text_can_ask_for_so_many_pods_and_no_more(monkeypatch):
    monkeypatch.setattr(manifests, "MAX_PODS", 5)
    reading = read_objects(a_deployment(replicas=4), a_deployment("v", replicas=4))
    assert len(reading.workloads) == 1
    (problem,) = reading.problems
    assert problem.source == "f.yaml#2"
    assert "more than 5 pods" in problem.message


def test_errors_in_a_template_are_reported_with_their_line():
    reading = read(
        """\
        apiVersion: v1
        kind: List
        items:
        - apiVersion: apps/v1
          kind: Deployment
          metadata:
            name: Web
          spec:
            replica: 3
            selector: {matchLabels: {app: "not ok"}}
            template:
              metadata:
                labels: {app: "not ok"}
              spec:
                containers:
                - name: a
        """
    )
    assert [(problem.line, problem.field) for problem in reading.problems] == [
        (7, "items[0].metadata.name"),
        (9, "items[0].spec.replica"),
        (10, "items[0].spec.selector.matchLabels"),
        (13, "items[0].spec.template.metadata.labels"),
        (16, "items[0].spec.template.spec.containers[0].image"),
    ]


@pytest.mark.parametrize(
    "change, fields",
    [
        ({"metadata": {"name": 5}}, ["metadata.name"]),
        ({"metadata": 5}, ["metadata"]),
        ({"metadata": {}}, ["metadata.name"]),
        ({"spec": {}}, ["spec.template"]),
        ({"spec": {"replica": 1}}, ["spec.replica", "spec.template"]),
        ({"spec": 5}, ["spec"]),
        ({"spec": {"template": 5, "selector": SELECTOR}}, ["spec.template"]),
        (
            {"spec": {"template": {"metadata": {"labels": {"app": "a"}}}, "selector": SELECTOR}},
            ["spec.template.spec.containers"],
        ),
        ({"spec": {"template": TEMPLATE}}, ["spec.selector"]),
    ],
)
def test_each_error_of_a_workload_is_reported_once(change, fields):
    reading = read_objects({**a_deployment(), **change})
    assert [problem.field for problem in reading.problems] == fields


def test_lists_hold_objects_of_any_kind_and_of_one():
    pods = (
        read_objects({"apiVersion": "v1", "kind": "List", "items": [a_pod("a"), a_pod("b")]}).or_raise().pods
    )
    assert [pod.metadata.name for pod in pods] == ["a", "b"]
    bare = {"metadata": {"name": "c"}, "spec": SPEC}
    (pod,) = (
        read_objects({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [bare]}).or_raise().pods
    )
    assert pod.metadata.name == "c"
    node = {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "1", "memory": "1Gi"}}}
    reading = read_objects({"apiVersion": "v1", "kind": "NodeList", "items": [node]}).or_raise()
    assert reading.nodes[0].metadata.name == "n"
    work = {"metadata": {"name": "w"}, "spec": {"template": TEMPLATE, "selector": SELECTOR}}
    reading = read_objects({"apiVersion": "apps/v1", "kind": "DeploymentList", "items": [work]}).or_raise()
    assert reading.workloads[0].workload.metadata.name == "w"


def test_lists_may_hold_lists():
    inner = {"apiVersion": "v1", "kind": "List", "items": [a_pod("a"), a_pod("B")]}
    reading = read_objects({"apiVersion": "v1", "kind": "List", "items": [inner]})
    assert [pod.metadata.name for pod in reading.pods] == ["a"]
    assert [problem.field for problem in reading.problems] == ["items[0].items[1].metadata.name"]


@pytest.mark.parametrize("items", [None, {}, "x"])
def test_a_list_needs_items(items):
    (problem,) = read_objects({"apiVersion": "v1", "kind": "PodList", "items": items}).problems
    assert problem.field == "items"


def test_the_items_of_a_list_must_be_objects():
    reading = read_objects({"apiVersion": "v1", "kind": "List", "itemz": [], "items": [5, None, a_pod()]})
    assert [problem.field for problem in reading.problems] == ["itemz", "items[0]", "items[1]"]
    assert len(reading.pods) == 1


def test_two_pods_of_one_name_are_refused_with_both_places():
    reading = read_manifests(WEB, "a.yaml") + read_manifests(f"# a remark\n{WEB}", "b.yaml")
    assert problem_lines(reading) == []
    (problem,) = reading.without_duplicates().problems
    assert (problem.source, problem.field, problem.kind) == ("b.yaml", "metadata.name", "FieldValueDuplicate")
    assert problem.message == "default/web stands twice, first at a.yaml:1: give one another name"


def test_one_name_in_two_namespaces_is_two_pods():
    other = of_kind("Pod", "v1", SPEC, "p", namespace="other")
    pods = read_objects(a_pod(), other).without_duplicates().or_raise().pods
    assert len({pod.metadata.uid for pod in pods}) == 2


def test_two_pods_of_one_uid_are_refused():
    reading = read_objects(of_kind("Pod", "v1", SPEC, "a", uid="u"), of_kind("Pod", "v1", SPEC, "b", uid="u"))
    (problem,) = reading.without_duplicates().problems
    assert problem.field == "metadata.uid"
    assert "u stands twice, first at f.yaml:1" in problem.message


def test_two_workloads_of_one_kind_and_name_are_refused_and_of_two_kinds_are_not():
    (problem,) = read_objects(a_deployment(), a_deployment()).without_duplicates().problems
    assert "Deployment/default/w stands twice" in problem.message
    reading = read_objects(a_deployment(), a_job(), a_pod("w")).without_duplicates().or_raise()
    assert len({pod.key for pod in reading.with_every_pod(Profile.DOCUMENTS).pods}) == 3


def test_an_ordinal_meets_a_pod_of_the_same_name():
    work = of_kind("StatefulSet", "apps/v1", {"template": TEMPLATE, "selector": SELECTOR, "replicas": 2}, "p")
    (problem,) = read_objects(work, a_pod("p-1")).without_duplicates().problems
    assert "default/p-1 stands twice" in problem.message


def test_a_uid_that_is_written_stays_and_one_that_is_not_is_the_same_each_time():
    written = of_kind("Pod", "v1", SPEC, "p", uid="0f3c")
    assert read_objects(written).pods[0].metadata.uid == "0f3c"
    assert read_objects(a_pod()).pods[0].metadata.uid == read_objects(a_pod()).pods[0].metadata.uid


@given(st.lists(st.tuples(st.text(max_size=8), st.text(max_size=8)), unique=True, max_size=20))
def test_uids_are_well_formed_and_distinct(names):
    names = [name for name in names if "/" not in name[0]]
    uids = {stable_uid(*name) for name in names}
    assert len(uids) == len(names)
    assert all([len(part) for part in uid.split("-")] == [8, 4, 4, 4, 12] for uid in uids)


def test_a_name_to_be_generated_is_generated_and_stays_while_the_text_does():
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "batch-"}, "spec": SPEC}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "job-"},
        "spec": {"template": BATCH},
    }

    def names():
        reading = read_objects(pod, pod, job).without_duplicates().or_raise()
        objects = (*reading.pods, reading.workloads[0].workload)
        return [each.metadata.name for each in objects]

    once = names()
    assert once == names()
    assert len(set(once)) == 3
    assert [name.rpartition("-")[0] for name in once] == ["batch", "batch", "job"]


def test_pods_before_a_broken_document_are_read():
    reading = read(WEB + "---\na: [1\n")
    assert [pod.metadata.name for pod in reading.pods] == ["web"]
    (problem,) = reading.problems
    assert problem.source == "f.yaml"
    assert problem.line == 15


def test_an_empty_text_holds_nothing():
    assert read("") == NOTHING_READ


def test_the_profile_decides_what_is_valid():
    own = a_pod(resources={"requests": {"memory": "1Gi"}})
    text = json.dumps(own)
    assert read_manifests(text, "f", Profile.DOCUMENTS).problems
    assert not read_manifests(text, "f", Profile.KUBERNETES).problems


@pytest.mark.parametrize(
    "name", ["containers[²]", "containers[99999999999999999999]", "containers[", "]", "[]", "."]
)
def test_a_field_with_brackets_in_its_name_does_not_exist(name):
    reading = read_objects(a_pod(**{name: 1}))
    assert [problem.field for problem in reading.problems] == [f"spec.{name}"]
    assert line_of(Document(5, 3), name) == 3


def test_a_file_full_of_mistakes_is_reported_as_fast_as_it_is_read():
    # Each mistake was once held against every other: this took half a minute, and ten times as many an hour.
    containers = [{"name": f"A {number}", "image": 5} for number in range(5000)]
    assert len(read_objects(of_kind("Pod", "v1", {"containers": containers})).problems) == 10_000


PIECES = [
    "\n",
    " ",
    "-",
    ":",
    "[",
    "]",
    "{",
    "}",
    "&a",
    "*a",
    "!!x",
    "<<",
    '"',
    "'",
    "#",
    "\t",
    "\0",
    "²",
    "~",
    "---\n",
]


@pytest.mark.req("A3")
@given(st.data())
def test_any_change_to_a_manifest_gives_pods_or_problems_and_never_anything_else(data):
    text = WEB
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(start + 12, len(text))))
        text = text[:start] + data.draw(st.sampled_from(PIECES) | st.text(max_size=3)) + text[end:]
    reading = read_manifests(text, "f.yaml", data.draw(st.sampled_from(list(Profile))))
    assert all("\n" not in line for line in problem_lines(reading))


_KEYS = st.sampled_from(
    [
        "apiVersion",
        "kind",
        "metadata",
        "name",
        "namespace",
        "uid",
        "spec",
        "containers",
        "initContainers",
        "image",
        "resources",
        "requests",
        "limits",
        "cpu",
        "memory",
        "template",
        "replicas",
        "items",
        "status",
        "volumes",
        "emptyDir",
        "ports",
        "env",
        "overhead",
        "restartPolicy",
        "[0]",
        "labels",
    ]
)
_VALUES = st.sampled_from(["v1", "Pod", "List", "Node", "apps/v1", "Deployment", "a", "1Gi", "host", -1, 3])
_objects = st.recursive(
    _VALUES | plain_values,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.req("A3")
@given(
    st.sampled_from(["Pod", "Node", "List", "Deployment", "CronJob", "PodList", "Job"]),
    st.dictionaries(_KEYS, _objects, max_size=4),
    st.sampled_from(list(Profile)),
)
def test_any_object_gives_pods_or_problems_and_never_anything_else(kind, fields, profile):
    text = json.dumps({"apiVersion": "v1", "kind": kind, **fields}, ensure_ascii=False)
    reading = read_manifests(text, "f.yaml", profile).without_duplicates()
    assert all(problem.message and problem.source == "f.yaml" for problem in reading.problems)
    assert len(reading.pods) == len(reading.origins)
