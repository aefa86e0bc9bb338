"""`evenkeel validate`."""

import json
import os

import pytest
import yaml

from evenkeel.cli.main import main

GOOD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: a, image: host, command: [x]}]}\n"
BAD = GOOD.replace("host", "5").replace("name: p", "name: P")
REFUSED = "valid, but the agent would refuse {} with this configuration\n"
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nstatus: {capacity: {cpu: 1, memory: 1Gi}}\n"


@pytest.fixture
def validate(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(text, *arguments):
        (tmp_path / "f.yaml").write_text(text)
        code = main(["validate", "-f", "f.yaml", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_what_is_right_is_counted(validate):
    assert validate(GOOD) == (0, "1 pod: valid\n", "")
    assert (
        validate(f"{GOOD}---\n{GOOD.replace('name: p', 'name: q')}---\n{NODE}")[1]
        == "2 pods, 1 node: valid\n"
    )
    assert validate("")[1] == "no pod: valid\n"


@pytest.mark.req("A3")
def test_every_mistake_is_reported_with_its_place_and_counted(validate):
    code, out, err = validate(BAD)
    assert (code, out) == (1, "no pod: 2 errors\n")
    first, second = err.splitlines()
    assert first.startswith("error: f.yaml:3: metadata.name: ")
    assert (
        second == 'error: f.yaml:4: spec.containers[0].image: must be a string, not 5: put it in quotes, "5"'
    )


def test_warnings_leave_a_manifest_valid(validate):
    code, out, err = validate(GOOD.replace("spec: {", "spec: {overhead: {memory: 100m}, "))
    assert (code, out) == (0, "1 pod: valid\n")
    assert (
        err
        == "warning: f.yaml:4: spec.overhead[memory]: 100m is not a whole number of bytes: m stands for thousandths\n"
    )


def test_json_and_yaml_say_the_same(validate):
    code, out, err = validate(BAD, "-o", "json")
    assert (code, err) == (1, "")
    reported = json.loads(out)
    assert reported == yaml.safe_load(validate(BAD, "-o", "yaml")[1])
    assert (reported["valid"], reported["pods"]) == (False, 0)
    assert reported["problems"][1] == {
        "field": "spec.containers[0].image",
        "message": 'must be a string, not 5: put it in quotes, "5"',
        "kind": "Decode",
        "source": "f.yaml",
        "line": 4,
    }
    assert json.loads(validate(GOOD, "-o", "json")[1]) == {
        "valid": True,
        "pods": 1,
        "refused": 0,
        "nodes": 0,
        "objects": 0,
    }


def test_the_profile_decides(validate):
    own = GOOD.replace("spec: {", "spec: {resources: {requests: {memory: 1Gi}}, ")
    assert validate(own)[0] == 1
    assert validate(own, "--profile", "kubernetes")[0] == 0


def test_the_configuration_is_validated_too(validate):
    code, out, err = validate(GOOD, "--max-pods", "many", "--profile", "other")
    assert (code, out) == (1, "")
    assert "--max-pods: must be a whole number" in err


def test_manifests_come_from_standard_input_too(capsys, monkeypatch, tmp_path):
    file = tmp_path / "in"
    file.write_text(BAD)
    with file.open("rb") as stream:
        saved = os.dup(0)
        os.dup2(stream.fileno(), 0)
        try:
            code = main(["validate", "-f", "-"])
        finally:
            os.dup2(saved, 0)
            os.close(saved)
    assert code == 1
    assert "error: standard input:3: metadata.name" in capsys.readouterr().err


def test_what_the_agent_would_refuse_is_reported_with_the_flag_that_allows_it(validate):
    asking = GOOD.replace("spec: {", "spec: {hostPID: true, ")
    code, out, err = validate(asking)
    assert (code, out) == (0, f"1 pod: {REFUSED.format('1 pod')}")
    assert err.startswith("warning: f.yaml:1: the agent would refuse it: spec.hostPID: true reaches the host")
    assert "--allowed-host-access=hostPID" in err
    assert json.loads(validate(asking, "-o", "json")[1])["refused"] == 1
    assert validate(asking, "--allowed-host-access=hostPID") == (0, "1 pod: valid\n", "")


def test_every_reason_to_refuse_a_pod_is_reported_at_once(validate):
    asking = GOOD.replace("spec: {", "spec: {hostPID: true, hostIPC: true, runtimeClassName: fast, ")
    asking = asking.replace("command: [x]", "ports: [{containerPort: 80, hostPort: 81}]")
    _, out, err = validate(asking)
    assert out == f"1 pod: {REFUSED.format('1 pod')}"
    fields = (
        "containers[0].command",
        "runtimeClassName",
        "hostPID",
        "hostIPC",
        "containers[0].ports[0].hostPort",
    )
    reported = [
        line.removeprefix("warning: f.yaml:1: the agent would refuse it: ") for line in err.splitlines()
    ]
    assert [line.partition(":")[0] for line in reported] == [f"spec.{field}" for field in fields]


def test_an_image_beside_the_manifest_is_not_refused(validate):
    assert validate(GOOD.replace("image: host", "image: ./root")) == (0, "1 pod: valid\n", "")
    beside = validate(GOOD.replace("image: host", "image: ./root"), "--runtime-endpoint=unix:///run/c.sock")[
        2
    ]
    assert "root is a directory of this machine" in beside


def test_what_is_refused_depends_on_the_runtime(validate):
    asking = GOOD.replace("image: host", "image: nginx, securityContext: {privileged: true}")
    allowed = "--allowed-host-access=privileged"
    assert "run the pod with a container runtime (--runtime-endpoint)" in validate(asking, allowed)[2]
    assert validate(asking, allowed, "--runtime-endpoint=unix:///run/containerd/containerd.sock")[2] == ""


def test_the_pods_of_a_workload_are_refused_in_one_sentence(validate):
    pod = "{metadata: {labels: {a: b}}, spec: {hostIPC: true, containers: [{name: a, image: nginx}]}}"
    spec = f"{{replicas: 3, selector: {{matchLabels: {{a: b}}}}, template: {pod}}}"
    _, out, err = validate(f"apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec: {spec}\n")
    assert out == f"3 pods: {REFUSED.format('3 pods')}"
    assert err.count("the agent would refuse it") == 1


def test_a_pod_may_have_users_of_its_own_but_only_so_many(validate):
    assert "hostUsers" not in validate(GOOD.replace("spec: {", "spec: {hostUsers: false, "))[2]
    large = "spec: {hostUsers: false, securityContext: {fsGroup: 65536}, "
    err = validate(GOOD.replace("spec: {", large))[2]
    assert "spec.securityContext.fsGroup: 65536 cannot be combined with hostUsers: false" in err
