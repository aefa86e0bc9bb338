"""`get` of several kinds and by labels, `delete` by labels, and the grammar of selectors."""

import json

import pytest

from evenkeel.cli.listing import label_selector
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
    assert tables == [["NAME", "pod/web", "pod/cache"], ["NAME", "service/web"], ["NAME", "job.batch/import"]]
    assert cli("get", "all", "-o", "name")[1].split() == [
        "pod/web",
        "pod/cache",
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


def test_labels_select_objects_of_every_kind(cli):
    assert cli("get", "pods,svc,cm", "-l", "app=web", "-o", "name")[1].split() == [
        "pod/web",
        "service/web",
        "configmap/settings",
    ]
    assert cli("get", "pods", "-l", "app!=web", "-o", "name")[1] == "pod/cache\n"
    assert cli("get", "pods", "-l", "app=none") == (0, "", "no pods in namespace default\n")
    lines = cli("get", "pods", "--show-labels")[1].splitlines()
    assert [line.split()[-1] for line in lines] == ["LABELS", "app=web", "app=cache"]


@pytest.mark.parametrize(
    "words, reported",
    [
        (("get", "all", "web"), "get all takes no names"),
        (("get", "pods,events"), "events cannot be listed beside other kinds"),
        (("get", "pods,nothing"), 'there is no kind "nothing"'),
        (("get", "pods,"), 'there is no kind ""'),
        (("get", "pods", "web", "-l", "app=web"), "give names or -l LABELS, not both"),
        (("get", "pods", "-l", ""), '--selector: "" cannot be read'),
        (("get", "node", "-l", "a=b"), "cannot be watched or selected"),
        (("get", "all", "-w"), "-w follows pods, or workloads of one kind"),
        (("get", "cm", "-w"), "-w follows pods, or workloads of one kind"),
        (("delete", "-l", ""), '--selector: "" cannot be read'),
        (("delete", "pod", "web", "-l", "app=web"), "by name, or by KIND with --all or -l LABELS"),
        (("delete", "node", "--all"), "can be deleted"),
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


# Templates


def test_a_template_is_applied_to_one_object_or_to_the_list(cli):
    assert cli("get", "pod", "web", "-o", "jsonpath={.metadata.name}") == (0, "web", "")
    assert cli("get", "pods", "-o", "jsonpath={.items[*].metadata.name}") == (0, "web cache", "")
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
        ["web", "host", "<none>"],
        ["cache", "host", "<none>"],
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
