"""`evenkeel explain`."""

import json
from pathlib import Path

import pytest
import yaml

from evenkeel.cli.main import main

ROOT = Path(__file__).parent.parent
WEB = """\
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  initContainers:
  - {name: prepare, image: host}
  containers:
  - name: server
    image: host
    resources:
      requests: {cpu: 500m, memory: 256Mi}
      limits: {cpu: "2", memory: 512Mi}
  resources: {limits: {memory: 1Gi}}
"""
HUGE = """\
apiVersion: v1
kind: Pod
metadata: {name: huge, namespace: mine}
spec:
  containers:
  - {name: a, image: host, resources: {requests: {memory: 64Gi}}}
"""
NODE = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\nstatus: {capacity: {cpu: 4, memory: 8Gi}}\n"


@pytest.fixture
def explain(tmp_path, capsys, monkeypatch):
    """Runs the command on a text. Returns its exit code and its output."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "web.yaml").write_text(WEB)

    def run(*arguments, text=None, node="32Gi,8cpu"):
        if text is not None:
            (tmp_path / "web.yaml").write_text(text)
        size = ["--node", node] if node else []
        code = main(["explain", "-f", "web.yaml", *size, *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def files(out):
    """The files of each cgroup in the output of `-o json`, by the end of its path."""
    return {
        cgroup["path"]: {setting["file"]: setting["value"] for setting in cgroup.get("settings", ())}
        for cgroup in json.loads(out)["cgroups"]
    }


def test_the_tree_shows_the_node_every_cgroup_and_every_file_with_its_reason(explain):
    code, out, err = explain()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[:4] == [
        "node: cpu 8, memory 32Gi, ephemeral-storage 100Gi, pods 110",
        "pods may use: cpu 8, memory 31.9Gi, ephemeral-storage 90.0Gi, pods 110",
        "profile documents, cgroup v2",
        "",
    ]
    assert lines[4] == "/evenkeel"
    assert "└─ kubepods  all pods" in lines
    (pod,) = (line for line in lines if "pod default/web" in line)
    assert pod.startswith("   │  └─ pod")
    assert pod.endswith("pod default/web  Burstable")
    (high,) = (" ".join(line.split()) for line in lines if "memory.high" in line)
    assert high == "│ memory.high 429494272 C2 limit 512Mi × 0.8"
    assert any("oom_score_adj" in line and "993" in line and "A12" in line for line in lines)


def test_files_left_as_the_kernel_has_them_are_shown_only_where_asked_for(explain):
    assert "cpu.max.burst" not in explain()[1]
    assert "cpu.max.burst" in explain("--all")[1]
    assert "pids.max" in explain("-a")[1]


@pytest.mark.req("A8", "A12")
def test_json_and_yaml_say_the_same_with_classes_and_scores(explain):
    code, out, _ = explain("-o", "json")
    reported = json.loads(out)
    assert code == 0
    assert reported == yaml.safe_load(explain("-o", "yaml")[1])
    assert reported["node"]["profile"] == "documents"
    assert reported["node"]["allocatable"]["memory"] == "32668Mi"
    (pod,) = reported["pods"]
    assert (pod["name"], pod["qosClass"], pod["admitted"]) == ("web", "Burstable", True)
    assert pod["containers"][1] == {
        "name": "server",
        "memoryQosClass": "Burstable",
        "cpuQosClass": "Burstable",
        "oomScoreAdj": 993,
    }
    settings = {
        s["file"]: s
        for cgroup in reported["cgroups"]
        for s in cgroup["settings"]
        if "server" in cgroup["path"]
    }
    assert settings["memory.high"] == {
        "file": "memory.high",
        "value": "429494272",
        "rule": "C2",
        "reason": "limit 512Mi × 0.8",
    }


@pytest.mark.req("A6")
def test_a_refused_pod_is_reported_with_its_figures_and_the_others_are_explained(explain):
    code, out, _ = explain(text=f"{HUGE}---\n{WEB}")
    assert code == 1
    assert out.splitlines()[-1] == (
        "refused mine/huge: OutOfmemory: requests 64Gi of memory, 31.9Gi is free: "
        "0 of 31.9Gi allocatable is requested already"
    )
    assert "pod default/web" in out
    assert "podhuge" not in out
    reported = json.loads(explain("-o", "json", text=HUGE)[1])
    (pod,) = reported["pods"]
    assert (pod["admitted"], pod["reason"]) == (False, "OutOfmemory")
    assert "oomScoreAdj" not in pod["containers"][0]


@pytest.mark.req("B16")
def test_a_node_under_pressure_refuses(explain):
    nothing = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: a, image: host}]}\n"
    code, out, _ = explain("--pressure", "MemoryPressure", text=nothing)
    assert code == 1
    assert "refused default/x: Evicted: the node is under MemoryPressure" in out


@pytest.mark.req("B9")
def test_the_worked_example_of_reservations(explain):
    _, out, _ = explain(
        "--kube-reserved",
        "memory=2Gi",
        "--system-reserved=memory=1Gi",
        "--eviction-hard",
        "memory.available<100Mi",
    )
    assert "pods may use: cpu 8, memory 28.9Gi" in out
    assert "memory.max 31138512896 B8 capacity 32Gi − reserved 3Gi" in " ".join(out.split())


def test_a_reservation_of_more_than_the_node_has_is_refused(explain):
    code, out, err = explain("--kube-reserved", "memory=64Gi")
    assert (code, out) == (1, "")
    assert "--kube-reserved 64Gi" in err
    assert "reserve less" in err


@pytest.mark.req("D5")
@pytest.mark.parametrize(
    "kind, path, file",
    [
        ("v1", "/evenkeel/kubepods", "memory.limit_in_bytes"),
        ("v2", "/evenkeel/kubepods", "memory.max"),
        ("systemd", "/evenkeel.slice/evenkeel-kubepods.slice", "memory.max"),
    ],
)
def test_files_and_names_are_those_of_the_kind_asked_for(explain, kind, path, file):
    assert file in files(explain("--cgroup", kind, "-o", "json")[1])[path]


def test_the_configured_driver_decides_where_nothing_is_asked_for(explain):
    assert "/evenkeel.slice" in explain("--cgroup-driver", "systemd")[1]


@pytest.mark.req("D3")
def test_the_moment_of_an_init_container_can_be_shown(explain):
    def pod_memory(*arguments):
        found = files(explain("-o", "json", *arguments)[1])
        (path,) = (
            each
            for each in found
            if each.rpartition("/")[2].startswith("pod") and "/burstable/" in each and each.count("/") == 4
        )
        return found[path]["memory.max"], sorted(
            each.rpartition("/")[2] for each in found if each.startswith(f"{path}/")
        )

    assert pod_memory() == (str(2**30), ["pod.infrastructure", "server"])
    assert pod_memory("--init", "prepare") == ("max", ["pod.infrastructure", "prepare"])


def test_an_init_container_that_no_pod_has_is_refused(explain):
    code, out, err = explain("--init", "nope")
    assert (code, out) == (1, "")
    assert err == "evenkeel: --init: no pod has an init container nope\n"


@pytest.mark.req("A23")
def test_cores_of_their_own_are_shown_with_those_the_others_share(explain):
    both = "{cpu: 2, memory: 1Gi}"
    alone = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: alone, uid: alone}}
spec:
  containers: [{{name: a, image: host, resources: {{requests: {both}, limits: {both}}}}}]
"""
    found = files(explain("--cpu-manager-policy", "static", "-o", "json", text=f"{alone}---\n{WEB}")[1])
    assert found["/evenkeel/kubepods/podalone/a"]["cpuset.cpus"] == "6-7"
    (server,) = (found[path] for path in found if path.endswith("/server"))
    assert server["cpuset.cpus"] == "0-5"


def test_the_node_can_be_a_file_or_among_the_manifests(explain, tmp_path):
    (tmp_path / "node.yaml").write_text(NODE)
    assert explain(node="node.yaml")[1].startswith("node: cpu 4, memory 8Gi, pods 110\n")
    assert explain(text=f"{WEB}---\n{NODE}", node=None)[1].startswith("node: cpu 4, memory 8Gi, pods 110\n")


def test_without_a_node_it_is_this_machine(explain):
    code, out, _ = explain(node=None)
    assert code in (0, 1)
    assert out.startswith("node: cpu ")


@pytest.mark.parametrize(
    "node, words",
    [
        ("web.yaml", "--node: web.yaml must hold one Node, but holds none"),
        ("two.yaml", "--node: two.yaml must hold one Node, but holds n1, n1"),
        ("nope.yaml", "--node: there is no file nope.yaml"),
        ("32GB", "write 32G or 32Gi"),
        ("", "--node: "),
        (".", "it is not a file"),
        ("a\0b", "--node: "),
        ("small.yaml", "memory is missing"),
    ],
)
def test_a_node_that_is_none_is_refused(explain, tmp_path, capsys, node, words):
    (tmp_path / "two.yaml").write_text(f"{NODE}---\n{NODE}")
    (tmp_path / "small.yaml").write_text(
        "apiVersion: v1\nkind: Node\nmetadata: {name: n}\nstatus: {capacity: {cpu: 1}}"
    )
    assert main(["explain", "-f", "web.yaml", "--node", node]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err


def test_what_has_no_effect_is_warned_of(explain):
    code, _, err = explain(text=WEB.replace("spec:", "spec:\n  setHostnameAsFQDN: true", 1))
    assert code == 0
    assert (
        err
        == "warning: web.yaml:5: spec.setHostnameAsFQDN: true is not supported here: a pod has no domain here; write "
        "hostname instead\n"
    )


@pytest.mark.req("A3")
def test_every_mistake_of_every_file_is_reported_and_nothing_is_printed(explain, tmp_path):
    (tmp_path / "other.yaml").write_text("a: [")
    code, out, err = explain(
        "-f", "other.yaml", text=WEB.replace("host", "5").replace("name: web", "name: Web")
    )
    assert (code, out) == (1, "")
    assert [line.partition(" ")[0] for line in err.splitlines()] == [
        "web.yaml:3:",
        "web.yaml:6:",
        "web.yaml:9:",
        "other.yaml:2:",
    ]


def test_one_name_in_two_files_is_refused(explain, tmp_path):
    (tmp_path / "other.yaml").write_text(WEB)
    code, _, err = explain("-f", "other.yaml")
    assert code == 1
    assert err == (
        "evenkeel: other.yaml:1: metadata.name: default/web stands twice, first at web.yaml:1: give one another name\n"
    )


def test_a_directory_is_all_of_its_manifests(capsys):
    assert main(["explain", "-f", str(ROOT / "examples"), "--node", "32Gi,8cpu"]) == 0
    out = capsys.readouterr().out
    assert out.count("  pod default/") >= 3


@pytest.mark.parametrize("variable, value", [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_colour_is_for_terminals_that_want_it(explain, monkeypatch, variable, value):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" not in explain()[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    coloured = explain()[1]
    assert "\x1b[33mBurstable\x1b[0m" in coloured
    monkeypatch.setenv(variable, value)
    assert "\x1b[" not in explain()[1]


def test_limits_of_any_size_are_explained(explain):
    huge = (
        WEB.replace("memory: 512Mi", "memory: 1e400")
        .replace('cpu: "2"', "cpu: 1e300")
        .replace("1Gi", "1e401")
    )
    code, out, _ = explain("--all", text=huge)
    assert code == 0
    assert "limit 1e400" in out
