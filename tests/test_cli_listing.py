"""`get` of several kinds and by labels, `delete` by labels, and the grammar of selectors."""

import json
from typing import Any

import pytest

from evenkeel.cli.listing import label_selector
from evenkeel.cli.wait import condition
from evenkeel.errors import EvenkeelError
from tests.fake_front import FakeFront, run_command, served

WEB = {"app": "web", "tier": "front", "env": "prod"}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("app=web", True),
        ("app==web", True),
        ("app = web", True),
        ("app=shop", False),
        ("app!=shop", True),
        ("app!=web", False),
        ("zone!=north", True),  # an absent label differs
        ("app", True),
        ("zone", False),
        ("!zone", True),
        ("! app", False),
        ("env in (prod, test)", True),
        ("env in (test)", False),
        ("env notin (test)", True),
        ("env notin (prod,test)", False),
        ("zone notin (north)", True),
        ("app=web,tier=front,env in (prod),!zone", True),
        ("app=web,tier=back", False),
        ("zone=", False),  # an empty value is not an absent label
        ("example.com/app!=x", True),
    ],
)
def test_labels_are_selected_as_kubectl_does(text, expected):
    assert label_selector(text)(WEB) is expected


@pytest.mark.parametrize(
    "text, part",
    [
        ("", ""),
        (" ", ""),
        (",", ","),
        ("app=web,", "app=web,"),
        ("app=web,,tier", ",tier"),
        ("app=a b", "app=a b"),
        ("app in prod", "app in prod"),
        ("app in (prod", "app in (prod"),
        ("=web", "=web"),
        ("a/b/c=d", "a/b/c"),
        ("app=-web", "-web"),
        ("app in (web,-x)", "-x"),
        ("app>1", "app>1"),
    ],
)
def test_a_wrong_selector_is_reported_with_the_part_that_is_wrong(text, part):
    with pytest.raises(EvenkeelError) as raised:
        label_selector(text)
    assert f'"{text}" cannot be read at "{part}"' in str(raised.value)


@pytest.fixture
def cli(tmp_path):
    manifests = tmp_path / "all.yaml"
    manifests.write_text(
        """\
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {containers: [{name: a, image: host, command: [sleep, "60"]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: cache, labels: {app: cache}}
spec: {containers: [{name: a, image: host, command: [sleep, "60"]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, labels: {app: web}}
spec: {clusterIP: None, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {app: web}}
data: {MODE: fast}
---
apiVersion: batch/v1
kind: Job
metadata: {name: import, labels: {app: import}}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: a, image: host, command: [sleep, "60"]}]}
"""
    )
    with served(FakeFront(), tmp_path) as agent:

        def command(*words):
            return run_command(*words, state_dir=agent.state_dir)

        assert command("apply", "-f", str(manifests))[0] == 0
        yield command


def test_all_shows_pods_services_and_workloads_with_their_kinds(cli):
    code, out, err = cli("get", "all")
    assert (code, err) == (0, "")
    tables = [[line.split()[0] for line in table.splitlines()] for table in out.split("\n\n")]
    assert tables == [["NAME", "pod/cache", "pod/web"], ["NAME", "service/web"], ["NAME", "job.batch/import"]]
    assert cli("get", "all", "-o", "name")[1].split() == [
        "pod/cache",
        "pod/web",
        "service/web",
        "job.batch/import",
    ]
    listed = json.loads(cli("get", "all", "-o", "json")[1])
    assert [one["kind"] for one in listed["items"]] == ["Pod", "Pod", "Service", "Job"]


def test_several_kinds_are_named_with_commas(cli):
    assert cli("get", "svc,cm", "-o", "name")[1].split() == ["service/web", "configmap/settings"]
    assert cli("get", "pods,services", "web", "-o", "name")[1].split() == ["pod/web", "service/web"]
    code, out, err = cli("get", "pods,services", "cache", "-o", "name")
    assert (code, out) == (1, "pod/cache\n")
    assert "cache" in err


def test_names_may_be_of_several_kinds(cli):
    assert cli("get", "svc/web", "pod/web", "pod/cache", "-o", "name")[1].split() == [
        "service/web",
        "pod/web",
        "pod/cache",
    ]
    listed = json.loads(cli("get", "pod/web", "service/web", "-o", "json")[1])
    assert [one["kind"] for one in listed["items"]] == ["Pod", "Service"]
    code, out, err = cli("get", "pod/none", "svc/web")
    assert (code, out.split()[-5]) == (1, "service/web")
    assert "none" in err
    deleted = cli("delete", "service/web", "pod/web", "--wait=false")
    assert deleted == (0, 'pod "web" deleted\nservice "web" deleted\n', "")
    assert cli("get", "all", "-o", "name")[1].split() == ["pod/cache", "job.batch/import"]


def test_labels_select_objects_of_every_kind(cli):
    assert cli("get", "pods,svc,cm", "-l", "app=web", "-o", "name")[1].split() == [
        "pod/web",
        "service/web",
        "configmap/settings",
    ]
    assert cli("get", "pods", "-l", "app!=web", "-o", "name")[1] == "pod/cache\n"
    assert cli("get", "pods", "-l", "app=none") == (0, "", "no pods in namespace default\n")
    lines = cli("get", "pods", "--show-labels")[1].splitlines()
    assert [line.split()[-1] for line in lines] == ["LABELS", "app=cache", "app=web"]


@pytest.mark.parametrize(
    "words, reported",
    [
        (("get", "all", "web"), "get all takes no names"),
        (("get", "pods,events"), "events cannot be listed beside other kinds"),
        (("get", "pods,nothing"), 'there is no kind "nothing"'),
        (("get", "pods,"), 'there is no kind ""'),
        (
            ("get", "pods", "web", "-l", "app=web"),
            "give names or -l LABELS or --field-selector FIELDS, not both",
        ),
        (("get", "pods", "--field-selector", "phase"), "is not PATH=VALUE or PATH!=VALUE"),
        (("get", "events", "--field-selector", "type=Warning"), "get events takes no --field-selector"),
        (("get", "node", "--field-selector", "a=b"), "cannot be watched or selected"),
        (("get", "pods", "--sort-by", ".a["), ""),
        (("get", "ns"), 'there is no kind "ns" here: a namespace is part of a name'),
        (("get", "ingress"), 'there is no kind "ingress" here'),
        (("delete", "ns", "web"), 'there is no kind "ns" here'),
        (("delete", "pods"), "delete pods: name them, or give --all"),
        (("delete", "pod", "web", "--now", "--force"), "--now contradicts --grace-period and --force"),
        (("delete", "pod", "web", "--grace-period", "5", "--force"), "--grace-period must be 0 with it"),
        (("describe", "pod", "web", "-l", "app=web"), "give names or -l LABELS, not both"),
        (("wait", "--for=condition=Ready"), "wait needs pods, workloads or other objects"),
        (("wait", "--for=condition=Ready", "pods", "-l", "app=none"), "there are no such pods"),
        (("wait", "--for=condition=Ready", "pod/none"), '"none"'),
        (
            ("wait", "--for=condition=Later", "pod/web", "--timeout=0"),
            "pod/web: timed out waiting for condition=Later",
        ),
        (("get", "pods", "-l", ""), '--selector: "" cannot be read'),
        (("get", "node", "-l", "a=b"), "cannot be watched or selected"),
        (("get", "all", "-w"), "-w follows pods, or workloads of one kind"),
        (("get", "cm", "-w"), "-w follows pods, or workloads of one kind"),
        (("delete", "-l", ""), '--selector: "" cannot be read'),
        (("delete", "pod", "web", "-l", "app=web"), "by name, or by KIND with --all or -l LABELS"),
        (("delete", "node", "--all"), "can be deleted"),
        (("delete", "pod/web", "node/here"), "can be deleted"),
        (("delete", "pod/web", "svc/web", "--all"), "by name, or by KIND with --all or -l LABELS"),
        (("get", "pod/web", "node/here"), "node cannot be listed beside other kinds"),
        (("get", "pod/web", "svc/web", "-w"), "-w follows pods, or workloads of one kind"),
        (("get", "pod/web", "svc/web", "-A"), "a name belongs to one namespace"),
        (("delete", "-f", "x.yaml", "--all"), "delete needs names, or -f FILE"),
        (("delete",), "delete needs names, or -f FILE"),
    ],
)
def test_what_cannot_be_listed_or_deleted_is_reported_and_nothing_is_deleted(cli, words, reported):
    code, out, err = cli(*words)
    assert code == 1
    assert reported in err
    assert out == ""
    assert len(cli("get", "all", "-o", "name")[1].split()) == 4


def test_delete_takes_those_with_the_labels_and_no_others(cli):
    assert cli("delete", "pods", "-l", "app=web", "--wait=false")[1] == 'pod "web" deleted\n'
    assert cli("delete", "svc", "--all")[1] == 'service "web" deleted\n'
    assert cli("delete", "configmaps", "-l", "app=other")[:2] == (0, "")
    assert cli("get", "cm,svc", "-o", "name")[1] == "configmap/settings\n"


def test_delete_takes_several_kinds_or_all_of_them(cli):
    assert cli("delete", "svc,cm", "-l", "app=web")[1].split("\n")[:2] == [
        'service "web" deleted',
        'configmap "settings" deleted',
    ]
    code, out, _ = cli("delete", "all", "--all", "--wait=false", "--force")
    assert (code, sorted(out.splitlines())) == (
        0,
        ['job "import" deleted', 'pod "cache" deleted', 'pod "web" deleted'],
    )
    assert cli("get", "all", "-o", "name")[1] == ""


def test_objects_are_chosen_and_ordered_by_their_fields(cli):
    def names(*words):
        return [line.partition("/")[2] for line in cli("get", "pods", *words, "-o", "name")[1].splitlines()]

    assert names() == ["cache", "web"], "by name, as kubectl lists them"
    assert names("--sort-by", ".metadata.labels.tier") == ["cache", "web"]
    assert names("--sort-by", "{.spec.containers[0].command[1]}") == ["cache", "web"]
    assert names("--field-selector", "metadata.name=web") == ["web"]
    assert names("--field-selector", "metadata.name!=web,status.phase==Running") == ["cache"]
    assert names("--field-selector", "spec.none.of=it") == []
    assert names("-l", "app=web", "--field-selector", "status.phase=Failed") == []


def test_columns_of_labels_and_a_table_without_heads(cli):
    lines = cli("get", "pods", "-L", "app,example.com/tier")[1].splitlines()
    assert [line.split()[5:] for line in lines] == [["APP", "TIER"], ["cache", "<none>"], ["web", "<none>"]]
    assert [line.split()[0] for line in cli("get", "pods", "--no-headers")[1].splitlines()] == [
        "cache",
        "web",
    ]
    assert cli("get", "pods", "--no-headers", "-o", "custom-columns=N:.metadata.name")[1] == "cache\nweb\n"
    assert cli("get", "node", "--no-headers")[1].split()[0] == "here"


def test_describe_takes_a_kind_or_labels(cli):
    assert cli("describe", "pods", "-l", "app=web")[1].count("Name:  ") == 1
    assert cli("describe", "pods")[1].count("Namespace:  ") == 2
    assert "settings" in cli("describe", "configmaps")[1]
    assert cli("describe", "pvc") == (0, "", "no persistentvolumeclaims in namespace default\n")


@pytest.mark.parametrize(
    ("what", "words", "told"),
    [
        ("delete", ("pod/none",), 'pod "none" is gone\n'),
        (
            "jsonpath={.status.phase}=Running",
            ("pods", "--all"),
            "pod/cache condition met\npod/web condition met\n",
        ),
        ("jsonpath=.status.phase=Running", ("pod", "web"), "pod/web condition met\n"),
        ("jsonpath={.metadata.labels}", ("-l", "app=web", "pods"), "pod/web condition met\n"),
    ],
)
def test_wait_returns_when_what_is_waited_for_is_so(cli, what, words, told):
    assert cli("wait", f"--for={what}", *words)[:2] == (0, told)


def test_a_condition_has_a_name_and_a_value_whatever_their_case():
    one: dict[str, Any] = {
        "metadata": {"generation": 2},
        "status": {"observedGeneration": 2, "conditions": [{"type": "Ready", "status": "False"}]},
    }
    assert condition("condition=ready=false")(one)
    assert not condition("condition=Ready")(one)
    one["metadata"]["generation"] = 3
    assert not condition("condition=ready=false")(one), "it is that of the former one"


# Templates


def test_a_template_is_applied_to_one_object_or_to_the_list(cli):
    assert cli("get", "pod", "web", "-o", "jsonpath={.metadata.name}") == (0, "web", "")
    assert cli("get", "pods", "-o", "jsonpath={.items[*].metadata.name}") == (0, "cache web", "")
    assert cli("get", "pods,svc", "-o", 'jsonpath={range .items[*]}{.kind}{"\\n"}{end}')[1].split() == [
        "Pod",
        "Pod",
        "Service",
    ]
    assert cli("get", "job", "import", "-o", "jsonpath=.spec.template.spec.containers[0].image")[1] == "host"
    assert cli("get", "cm", "settings", "-o", "jsonpath={.data.MODE}")[1] == "fast"
    assert cli("get", "node", "-o", "jsonpath={.status.capacity.cpu}")[1] == "8"
    assert cli("get", "events", "-o", "jsonpath={.kind}")[1] == "List"


def test_columns_are_those_that_are_asked_for(cli):
    columns = "custom-columns=NAME:.metadata.name,IMAGE:spec.containers[*].image,NOTHING:.a"
    assert [line.split() for line in cli("get", "pods", "-o", columns)[1].splitlines()] == [
        ["NAME", "IMAGE", "NOTHING"],
        ["cache", "host", "<none>"],
        ["web", "host", "<none>"],
    ]
    assert cli("get", "node", "-o", "custom-columns=CPU:.status.capacity.cpu")[1].split() == ["CPU", "8"]
    reasons = cli("get", "events", "-o", "custom-columns=WHY:.reason")
    assert reasons[0] == 0


@pytest.mark.parametrize(
    "form, problem",
    [
        ("jsonpath={.a", "a { has no } after it"),
        ("custom-columns=NAME", '"NAME" is no column: write HEAD:PATH'),
        ("custom-columns=A:.a,", '"" is no column'),
        ("table", '"table" is not one of wide, name, json, yaml, jsonpath=TEMPLATE and custom-columns'),
    ],
)
def test_a_wrong_form_is_named_before_the_agent_is_asked(cli, form, problem):
    code, out, err = cli("get", "pods", "-o", form)
    assert (code, out) == (2, "")
    assert problem in err


def test_a_template_that_does_not_fit_is_a_sentence(cli):
    code, out, err = cli("get", "pod", "web", "-o", "jsonpath={.spec.containers[3].name}")
    assert (code, out) == (1, "")
    assert "[3] is outside a list of 1" in err
