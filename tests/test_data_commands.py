"""`apply`, `get`, `describe` and `delete` for ConfigMaps and Secrets, against a front that is served on a socket."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout

import pytest
import yaml

from evenkeel.cli.main import main
from tests.fake_front import FakeFront, served

OBJECTS = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: app, labels: {tier: front}}
data: {MODE: fast, file: "one\\ntwo\\n"}
---
apiVersion: v1
kind: Secret
metadata: {name: db}
immutable: true
stringData: {password: hunter2}
"""


@pytest.fixture
def agent(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    with served(FakeFront(), state) as agent:
        yield agent


@pytest.fixture
def cli(agent, tmp_path):
    (tmp_path / "objects.yaml").write_text(OBJECTS)

    def run(*arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([arguments[0], "--state-dir", str(agent.state_dir), *arguments[1:]])
        return code, out.getvalue(), err.getvalue()

    assert run("apply", "-f", str(tmp_path / "objects.yaml")) == (
        0,
        "configmap/app created\nsecret/db created\n",
        "",
    )
    return run


def test_tables_show_no_values(cli):
    assert cli("get", "cm")[1] == "NAME   DATA   AGE\napp    2      <unknown>\n"
    assert cli("get", "secrets", "-A")[1].splitlines()[1].split()[:4] == ["default", "db", "Opaque", "1"]
    assert cli("get", "secret", "db", "-o", "name")[1] == "secret/db\n"


def test_the_operator_may_ask_for_the_values(cli):
    assert yaml.safe_load(cli("get", "secret", "db", "-o", "yaml")[1])["data"] == {"password": "aHVudGVyMg=="}
    assert json.loads(cli("get", "cm/app", "-o", "json")[1])["data"]["MODE"] == "fast"
    listed = json.loads(cli("get", "cm", "-o", "json")[1])
    assert [one["kind"] for one in listed["items"]] == ["ConfigMap"]


def test_describe_shows_a_config_map_whole_and_of_a_secret_the_sizes(cli):
    shown = cli("describe", "cm", "app")[1]
    assert "  MODE:\n    fast\n" in shown
    assert "tier=front" in shown
    shown = cli("describe", "secret", "db")[1]
    assert "  password:  7 bytes\n" in shown
    assert "Immutable:    true\n" in shown
    assert "hunter2" not in shown
    assert "aHVudGVyMg" not in shown


def test_what_is_missing_is_reported(cli):
    code, _, err = cli("get", "secret", "none")
    assert (code, 'there is no Secret "none" in namespace default' in err) == (1, True)
    assert cli("describe", "cm", "none")[0] == 1
    assert cli("get", "cm", "-n", "other")[2] == "no configmaps in namespace other\n"


def test_objects_are_deleted_by_name_or_with_their_file(cli, tmp_path):
    assert cli("delete", "secret", "db") == (0, 'secret "db" deleted\n', "")
    code, out, err = cli("delete", "-f", str(tmp_path / "objects.yaml"))
    assert (code, out) == (1, 'configmap "app" deleted\n')
    assert "there is no Secret" in err
    assert cli("delete", "secret", "db", "--ignore-not-found")[0] == 0


def test_describe_says_which_objects_the_volumes_of_a_pod_have(cli, tmp_path):
    (tmp_path / "pod.yaml").write_text("""\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: main, image: host, command: [x]}]
  volumes:
  - {name: a, configMap: {name: app, optional: true}}
  - {name: b, secret: {secretName: db}}
  - {name: c, downwardAPI: {items: [{path: n, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: d, projected: {sources: [{secret: {name: db}}, {configMap: {name: app}}]}}
  - {name: e, emptyDir: {}}
""")
    assert cli("apply", "-f", str(tmp_path / "pod.yaml"))[0] == 0
    shown = cli("describe", "pod", "web")[1]
    assert "  a: configMap app (optional)\n  b: secret db\n  c: downwardAPI\n" in shown
    assert "  d: projected secret db, configMap app\n  e: emptyDir on disk\n" in shown
