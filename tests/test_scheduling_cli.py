"""`evenkeel schedule`: what it reads, says and exits with."""

import builtins
import json
from pathlib import Path

import pytest
import yaml

from evenkeel.cli.main import main
from evenkeel.simulate import scheduler

CLUSTER = Path(__file__).parent.parent / "examples" / "cluster"
PODS, NODES = str(CLUSTER / "pods.yaml"), str(CLUSTER / "nodes.yaml")


def schedule(capsys, *arguments):
    code: int | str | None
    try:
        code = main(["schedule", *map(str, arguments)])
    except SystemExit as left:
        code = left.code
    said = capsys.readouterr()
    return code, said.out, said.err


def data(capsys, *arguments):
    code, out, _ = schedule(capsys, *arguments, "-o", "json")
    return code, json.loads(out)


def manifest(directory, *objects, name="manifest.yaml"):
    path = directory / name
    path.write_text(yaml.safe_dump_all(objects))
    return path


def a_pod(name="p", requests=None, **spec):
    container = {"name": "c", "image": "i", "resources": {"requests": requests or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **spec},
    }


def a_node(name="n", spec=None, **allocatable):
    status = {"allocatable": {"cpu": "4", "memory": "8Gi"} | allocatable}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": spec or {},
        "status": status,
    }


def nodes_of(shown):
    return {pod["name"]: pod.get("node") for pod in shown["pods"]}


@pytest.mark.req("A9", "A10")
def test_the_example_shows_the_node_of_each_pod_and_why_one_has_none(capsys):
    code, out, err = schedule(capsys, "-f", PODS, "--nodes", NODES, "--load")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0].split() == ["POD", "NODE", "SCORE"]
    assert lines[1].split() == ["default/database", "worker-2", "already", "there"]
    assert lines[6].split()[:2] == ["default/training", "gpu-1"]
    assert lines[7].split() == ["default/analytics", "none"]
    assert "gpu-1     1 of 110  4 of 16 (25%)  16Gi of 64Gi (25%)" in lines
    assert lines[-1] == (
        "default/analytics: none of 4 nodes takes it: "
        "2 lack memory (it requests 24Gi, at most 12Gi is free); 1 lacks cpu (it requests 6, 2 is free); "
        "1 has the taint example.com/gpu:NoSchedule; "
        "1 has the taint node.kubernetes.io/unschedulable:NoSchedule"
    )


@pytest.mark.req("A9")
def test_json_and_yaml_hold_the_same_figures(capsys):
    code, shown = data(capsys, "-f", PODS, "--nodes", NODES)
    _, out, _ = schedule(capsys, "-f", PODS, "--nodes", NODES, "-o", "yaml")
    assert (code, yaml.safe_load(out)) == (1, shown)
    assert shown["strategy"] == "LeastAllocated"
    assert shown["pods"][-1]["refusals"][0] == {
        "nodes": 2,
        "resource": "memory",
        "requested": "24Gi",
        "mostFree": "12Gi",
    }
    assert shown["nodes"][2]["requested"] == {"cpu": "4", "example.com/gpu": "2", "memory": "16Gi"}


@pytest.mark.req("A9")
def test_all_placed_exits_0_and_pods_with_a_node_name_take_up_room(capsys, tmp_path):
    here = a_pod("here", {"cpu": "3"}, nodeName="a")
    path = manifest(tmp_path, a_node("a"), a_node("b", cpu="2"), here, a_pod("new", {"cpu": "1500m"}))
    code, shown = data(capsys, "-f", path)
    assert (code, nodes_of(shown)) == (0, {"here": "a", "new": "b"})
    assert [pod["state"] for pod in shown["pods"]] == ["AlreadyThere", "Placed"]


def test_nodes_can_be_given_by_size_and_number(capsys, tmp_path):
    path = manifest(tmp_path, *(a_pod(f"p{i}", {"cpu": "1", "memory": "1Gi"}) for i in range(3)))
    code, shown = data(capsys, "-f", path, "--nodes", "2x8Gi,4cpu", "32Gi,64cpu")
    assert code == 0
    assert [node["name"] for node in shown["nodes"]] == ["node-1", "node-2", "node-3"]
    assert shown["nodes"][0]["allocatable"]["memory"] == "8092Mi"  # less the hard eviction threshold
    assert shown["nodes"][0]["allowedPods"] == 110


def test_a_node_that_does_not_say_how_many_pods_it_takes_takes_max_pods(capsys, tmp_path):
    path = manifest(tmp_path, a_node(), a_pod("a"), a_pod("b"))
    assert schedule(capsys, "-f", path)[0] == 0
    code, out, _ = schedule(capsys, "-f", path, "--max-pods", "1")
    assert code == 1
    assert out.endswith("default/b: the only node does not take it: 1 takes no more pods\n")


def test_pods_of_higher_priority_are_scheduled_first(capsys, tmp_path):
    path = manifest(
        tmp_path, a_node(), a_pod("low", {"cpu": "3"}), a_pod("high", {"cpu": "3"}, priority=1000)
    )
    assert nodes_of(data(capsys, "-f", path)[1]) == {"high": "n", "low": None}


def test_strategies_weights_and_shapes_change_the_choice(capsys, tmp_path):
    nodes = [a_node("a"), a_node("b")]
    pods = [a_pod(f"p{i}", {"cpu": "1", "memory": "1Gi"}) for i in range(2)]
    path = manifest(tmp_path, *nodes, *pods)

    def chosen(*flags):
        return [*nodes_of(data(capsys, "-f", path, *flags)[1]).values()]

    assert chosen() == ["a", "b"]
    assert chosen("--strategy", "MostAllocated") == ["a", "a"]
    ratio = ("--strategy", "RequestedToCapacityRatio")
    assert chosen(*ratio) == ["a", "a"]
    assert chosen(*ratio, "--shape", "0:10,100:0") == ["a", "b"]
    assert chosen("--weights", "memory=1", "--strategy", "MostAllocated") == ["a", "a"]


def test_pod_level_requests_count_in_the_kubernetes_profile(capsys, tmp_path):
    pod = a_pod("p", {"cpu": "1", "memory": "1Gi"}, resources={"requests": {"cpu": "8"}})
    path = manifest(tmp_path, a_node(), pod)
    assert schedule(capsys, "-f", path, "--profile", "kubernetes")[0] == 1


def test_warnings_name_nodes_that_are_overfull_and_pods_of_other_nodes(capsys, tmp_path):
    path = manifest(
        tmp_path,
        a_node(),
        a_pod("big", {"cpu": "5", "memory": "9Gi"}, nodeName="n"),
        a_pod("elsewhere", nodeName="other"),
    )
    code, out, err = schedule(capsys, "-f", path)
    assert code == 0
    assert "elsewhere" not in out
    assert "warning: node n: the pods on it take 5 of 4 cpu\n" in err
    assert "warning: node n: the pods on it take 9Gi of 8Gi memory\n" in err
    assert "spec.nodeName: there is no node other: passed over\n" in err


def test_pods_that_have_ended_count_for_nothing(capsys, tmp_path):
    ended = a_pod("ended", {"cpu": "4"}, nodeName="n") | {"status": {"phase": "Succeeded"}}
    path = manifest(tmp_path, a_node(), ended, a_pod("new", {"cpu": "4"}))
    assert nodes_of(data(capsys, "-f", path)[1]) == {"new": "n"}


@pytest.mark.parametrize(
    "flags, code, said",
    [
        ((), 2, "there are no nodes"),
        (("--nodes", "8Gi,4cpu", "--strategy", "Best"), 2, "invalid choice: 'Best'"),
        (("--nodes", "8Gi,4cpu", "--weights", "cpu"), 2, '"cpu" is not a weight: write cpu=1,memory=1'),
        (("--nodes", "8Gi,4cpu", "--weights", "cpu=0"), 2, "the weight of cpu must be from 1 to 100, not 0"),
        (("--nodes", "8Gi,4cpu", "--shape", "0:0,100:eleven"), 2, '"100:eleven" is not a point of a shape'),
        (("--nodes", "8Gi,4cpu", "--shape", "50:1,50:2"), 2, "must rise from point to point"),
        (("--nodes", "missing.yaml"), 1, "cannot read missing.yaml"),
        (("--nodes", "eight"), 1, "--nodes: "),
        (("--nodes", "999999999x8Gi,4cpu"), 1, "makes more than 100000 nodes"),
    ],
)
def test_mistakes_on_the_command_line_are_sentences(capsys, tmp_path, flags, code, said):
    left, _, err = schedule(capsys, "-f", manifest(tmp_path, a_pod()), *flags)
    assert left == code
    assert said in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "node, said",
    [
        (a_node("Two Words"), 'node Two Words: metadata.name: "Two Words" must be'),
        (a_node("n", {"taints": [{"key": "a b", "effect": "NoSchedule"}]}), "spec.taints[0].key"),
        (
            a_node("n", {"taints": [{"key": "a", "value": "\u001b[31m", "effect": "NoSchedule"}]}),
            "taints[0].value",
        ),
        (a_node("n", {"taints": [{"key": "a", "effect": "Never"}]}), "spec.taints[0].effect"),
        (a_node(cpu="-1"), "status.allocatable[cpu]: -1 is less than nothing: write 0 or more"),
        (a_node(memory="20E"), "node n: memory: 20E is too much"),
    ],
)
def test_a_node_that_cannot_be_is_refused_with_its_field(capsys, tmp_path, node, said):
    code, _, err = schedule(capsys, "-f", manifest(tmp_path, node, a_pod()))
    assert code == 1
    assert said in err
    assert "\u001b" not in err


def test_a_node_name_that_no_node_can_have_is_refused(capsys, tmp_path):
    code, _, err = schedule(capsys, "-f", manifest(tmp_path, a_node(), a_pod(nodeName="Not One")))
    assert code == 1
    assert 'spec.nodeName: "Not One" must be' in err


def test_two_nodes_of_one_name_are_refused(capsys, tmp_path):
    code, _, err = schedule(capsys, "-f", manifest(tmp_path, a_node(), a_node(), a_pod()))
    assert (code, err) == (1, "evenkeel: there are two nodes named n: give one another name\n")


def test_many_pods_are_placed_by_arrays_and_without_numpy_by_the_loop_with_one_note(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr(scheduler, "FEW_COMPARISONS", 10)
    path = manifest(tmp_path, *(a_pod(f"p{i}", {"cpu": f"{i}00m", "memory": "1Gi"}) for i in range(12)))
    fast = schedule(capsys, "-f", path, "--nodes", "5x8Gi,4cpu")
    imported = builtins.__import__

    def without_arrays(name, *rest):
        if name == "evenkeel.simulate.array_cluster":
            raise ModuleNotFoundError(name="numpy")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_arrays)
    slow = schedule(capsys, "-f", path, "--nodes", "5x8Gi,4cpu")
    assert fast[:2] == slow[:2]
    assert (fast[2], slow[2]) == (
        "",
        "note: this is slow without numpy: pip install 'evenkeel[scheduling]'\n",
    )


def test_few_pods_are_placed_without_importing_numpy(capsys, monkeypatch):
    imported = builtins.__import__

    def without_numpy(name, *rest):
        assert not name.startswith("numpy")
        return imported(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_numpy)
    assert schedule(capsys, "-f", PODS, "--nodes", NODES)[0] == 1


def test_help_shows_examples(capsys):
    code, out, _ = schedule(capsys, "--help")
    assert code == 0
    assert "evenkeel schedule -f pods/ --nodes 20x32Gi,8cpu --load" in out
