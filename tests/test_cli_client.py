"""The commands that ask the agent, each against a front that is served on a real socket."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from evenkeel.api.config import KubeletConfiguration
from evenkeel.api.container import EphemeralContainer
from evenkeel.api.encode import encode
from evenkeel.api.pod import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
)
from evenkeel.cli.arguments import default_state_directory
from evenkeel.cli.attached import attempt_is_over
from evenkeel.cli.client import Client
from evenkeel.cli.interactive import DEFAULT_CONTAINER, container_of
from evenkeel.cli.main import main
from evenkeel.journal.records import WARNING
from evenkeel.quantity import Quantity
from evenkeel.server.kubelet import container_logs
from tests.fake_front import BORN, FakeFront, run_command, served

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: shop}}
spec:
  containers:
  - name: app
    image: host
    command: [sh, -c, "sleep 60"]
    resources:
      requests: {cpu: 500m, memory: 64Mi}
      limits: {memory: 200Mi}
  - {name: logger, image: host, command: [tail, -f, /dev/null]}
  volumes:
  - {name: scratch, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: files, persistentVolumeClaim: {claimName: kept}}
"""


@pytest.fixture
def manifest(tmp_path):
    def write(*names, **changes):
        path = tmp_path / f"{'-'.join(names)}.yaml"
        text = "---\n".join(POD.replace("NAME", name) for name in names)
        for before, after in changes.items():
            assert before in text
            text = text.replace(before, after)
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def pods(cli, manifest):
    cli("apply", "-f", manifest("web", "batch"))


def change(agent, key, **status):
    """Gives the pod another status."""
    pod = agent.front.held[key]
    agent.call(agent.front.put, pod._replace(status=pod.status._replace(**status)))


def later(action):
    """Does something while the command under test waits for it."""
    thread = threading.Timer(0.05, action)
    thread.start()
    return thread


def wait_for(condition):
    for _ in range(6000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it never came to that")


# Without an agent


@pytest.mark.parametrize(
    "words",
    [
        ("get", "pods"),
        ("get", "node"),
        ("describe", "web"),
        ("describe", "node"),
        ("delete", "web"),
        ("events",),
        ("top",),
        ("run", "--", "true"),
    ],
)
def test_without_an_agent_it_says_how_to_start_one(tmp_path, words):
    code, out, err = run_command(*words, state_dir=tmp_path)
    assert (code, out) == (1, "")
    assert err == f"evenkeel: no agent listens at {tmp_path}/agent.sock (start one with: evenkeel up)\n"


def test_an_agent_that_dies_in_the_middle_is_reported(tmp_path):
    from evenkeel.server.agent_socket import listen

    with listen(str(tmp_path)) as listening:
        listening.setblocking(True)

        def hang_up():
            for answer in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"nonsense\r\n\r\n"):
                connected, _ = listening.accept()
                with connected:
                    connected.recv(1000)
                    connected.sendall(answer)

        thread = threading.Thread(target=hang_up)
        thread.start()
        reported = [run_command("get", "node", state_dir=tmp_path) for _ in range(3)]
        thread.join()
    for code, out, err in reported:
        assert (code, out) == (1, "")
        assert "did not answer: it " in err


def test_where_the_state_directory_is(monkeypatch):
    monkeypatch.delenv("EVENKEEL_STATE_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_state_directory() == "/var/lib/evenkeel"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/state")
    assert default_state_directory() == "/home/me/state/evenkeel"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_state_directory() == "/home/me/.local/state/evenkeel"
    monkeypatch.setenv("EVENKEEL_STATE_DIR", "/elsewhere")
    assert default_state_directory() == "/elsewhere"


def test_the_commands_that_ask_load_no_event_loop_and_no_http_library(agent):
    program = (
        "import sys; from evenkeel.cli.main import main; code = main(sys.argv[1:]);"
        "print(sorted({'asyncio', 'h11', 'http.client', 'yaml', 'ssl'} & set(sys.modules))); sys.exit(code)"
    )
    command = [sys.executable, "-c", program, "get", "pods", "--state-dir", agent.state_dir]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


# apply


def test_apply_says_what_became_of_each_pod(cli, manifest):
    assert cli("apply", "-f", manifest("web")) == (0, "pod/web created\n", "")
    again = manifest("web", "batch", **{"64Mi": "65Mi"})
    assert cli("apply", "-f", again) == (0, "pod/web configured\npod/batch created\n", "")
    assert cli("apply", "-f", again)[1] == "pod/web unchanged\npod/batch unchanged\n"


def test_apply_takes_the_whole_pod_to_the_agent(cli, manifest, agent):
    cli("apply", "-f", manifest("web"))
    pod = agent.front.held["default/web"]
    assert pod.spec.containers[0].command == ("sh", "-c", "sleep 60")
    assert pod.spec.volumes[0].empty_dir.medium == "Memory"
    assert pod.metadata.labels == {"app": "shop"}


def test_mistakes_are_reported_with_the_file_and_its_line_and_nothing_is_applied(cli, manifest, agent):
    good, bad = manifest("good"), manifest("bad", **{"64Mi": "64Mx", "image:": "imgae:"})
    code, out, err = cli("apply", "-f", good, bad)
    assert (code, out) == (1, "")
    assert f"{bad}:10: spec.containers[0].resources.requests[memory]: " in err
    assert f"{bad}:7: spec.containers[0].imgae: no such field; did you mean image?" in err
    assert agent.front.held == {}


def test_a_pod_that_a_file_of_the_agents_holds_is_not_changed(cli, manifest, agent):
    agent.front.from_files["default/web"] = "/etc/pods/web.yaml"
    code, _, err = cli("apply", "-f", manifest("web"))
    assert (code, err) == (1, "evenkeel: default/web is of /etc/pods/web.yaml (change it there)\n")


def test_manifests_are_read_by_the_agents_rules(tmp_path, manifest):
    front = FakeFront(KubeletConfiguration(profile="kubernetes"))
    pod_level = manifest("web", **{"spec:": "spec:\n  resources: {requests: {memory: 1Gi}}"})
    with served(front, tmp_path):
        assert run_command("apply", "-f", pod_level, state_dir=tmp_path)[0] == 0
        assert str(front.held["default/web"].spec.resources.requests["memory"]) == "1Gi"
    documents = FakeFront()
    with served(documents, tmp_path):
        code, _, err = run_command("apply", "-f", pod_level, state_dir=tmp_path)
    assert code == 1
    assert "spec.resources.requests" in err


def test_apply_warns_of_a_pod_that_the_agent_will_not_run(tmp_path, manifest):
    asking = manifest("web", **{"spec:": "spec:\n  hostPID: true"})
    with served(FakeFront(), tmp_path):
        code, out, err = run_command("apply", "-f", asking, state_dir=tmp_path)
    assert (code, out) == (0, "pod/web created\n")
    assert err.startswith(
        f"warning: {asking}:1: the agent would refuse it: spec.hostPID: true reaches the host"
    )
    with served(FakeFront(KubeletConfiguration(allowed_host_access=("hostPID",))), tmp_path):
        assert run_command("apply", "-f", asking, state_dir=tmp_path) == (0, "pod/web created\n", "")


def test_a_file_without_pods_is_reported(cli, tmp_path):
    node = tmp_path / "node.yaml"
    node.write_text("apiVersion: v1\nkind: Node\nmetadata: {name: n}\n")
    words = "there is no pod, workload, ConfigMap, Secret, Service or claim in it"
    assert cli("apply", "-f", str(node))[2] == f"evenkeel: {node}: {words}\n"


# delete


def test_pods_are_deleted_by_name_by_file_and_all(cli, pods, manifest, agent):
    assert cli("delete", "web") == (0, 'pod "web" deleted\n', "")
    cli("apply", "-f", manifest("web"))
    assert cli("delete", "pod", "web", "batch")[:2] == (0, 'pod "web" deleted\npod "batch" deleted\n')
    cli("apply", "-f", manifest("web"))
    assert cli("delete", "pod/web")[0] == 0
    cli("apply", "-f", manifest("web", "batch"))
    assert cli("delete", "-f", manifest("web"))[1] == 'pod "web" deleted\n'
    assert cli("delete", "--all")[1] == 'pod "batch" deleted\n'
    assert agent.front.held == {}


@pytest.mark.parametrize(
    "flags, grace",
    [((), None), (("--grace-period", "5"), 5.0), (("--grace-period=0",), 0.0), (("--now",), 1.0)],
)
def test_the_grace_period_of_a_deletion(cli, pods, agent, flags, grace):
    assert cli("delete", "web", *flags)[0] == 0
    assert agent.front.deleted == [("default/web", grace)]


def test_delete_waits_until_nothing_is_left_unless_it_may_not_wait(tmp_path, manifest):
    front = FakeFront(ends_at_once=False)
    with served(front, tmp_path) as agent:
        run_command("apply", "-f", manifest("web", "batch"), state_dir=tmp_path)
        assert run_command("delete", "web", "--wait=false", state_dir=tmp_path)[0] == 0
        assert "default/web" in front.held

        def end_them():
            wait_for(lambda: len(front.deleted) == 3)
            agent.call(front.remove, "default/batch")
            agent.call(front.remove, "default/web")

        ending = later(end_them)
        assert run_command("delete", "web", "batch", state_dir=tmp_path)[0] == 0
        assert front.held == {}
        ending.join()


def test_an_agent_that_ends_while_delete_waits_is_reported(tmp_path, manifest):
    front = FakeFront(ends_at_once=False)
    with served(front, tmp_path) as agent:
        run_command("apply", "-f", manifest("web"), state_dir=tmp_path)

        def end():
            wait_for(lambda: front.deleted)
            agent.end()

        ending = later(end)
        code, _, err = run_command("delete", "web", state_dir=tmp_path)
        ending.join()
    assert (code, err) == (1, "evenkeel: the agent ended before these pods: default/web\n")


def test_what_is_not_there_cannot_be_deleted(cli, pods):
    code, out, err = cli("delete", "nope", "web")
    assert (code, out) == (1, 'pod "web" deleted\n')
    assert err == 'evenkeel: there is no pod "nope" in namespace default\n'
    assert cli("delete", "nope", "--ignore-not-found") == (0, "", "")


@pytest.mark.parametrize(
    "words, reported",
    [
        ((), "delete needs names"),
        (("web", "--all"), 'there is no kind "web"'),
        (("web", "--now", "--grace-period", "1"), "--now contradicts --grace-period"),
        (("node", "here"), "only pods, workloads, services, pvc, configmaps and secrets can be deleted"),
    ],
)
def test_a_deletion_that_makes_no_sense_is_reported(cli, words, reported):
    code, _, err = cli("delete", *words)
    assert code == 1
    assert reported in err


def test_a_grace_period_is_a_number(cli):
    code, _, err = cli("delete", "web", "--grace-period", "soon")
    assert code == 2
    assert '"soon" is not a number of seconds' in err


# get


def test_pods_in_a_table(cli, pods):
    code, out, _ = cli("get", "pods")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert lines[1].split()[:4] == ["batch", "2/2", "Running", "0"]
    assert lines[0].index("READY") == lines[1].index("2/2")
    assert len(lines) == 3


def test_the_wide_table_has_class_amounts_and_the_reason(cli, pods, agent):
    waiting = ContainerStateWaiting("CrashLoopBackOff", "back-off 40s\x1b[31m")
    change(agent, "default/batch", container_statuses=(ContainerStatus("app", ContainerState(waiting)),))
    change(agent, "default/web", pod_ip="10.89.0.2")
    lines = cli("get", "pods", "-o", "wide")[1].splitlines()
    assert lines[0].split()[5:] == ["IP", "QOS", "CPU", "MEMORY", "PRIORITY", "REASON"]
    assert lines[2].split()[5:] == ["10.89.0.2", "Burstable", "500m/-", "64Mi/200Mi", "0"]
    assert lines[1].split()[5] == "<none>"
    assert "IP:             10.89.0.2\n" in cli("describe", "web")[1]
    assert lines[1].split()[2] == "CrashLoopBackOff"
    assert lines[1].endswith("back-off 40s\\x1b[31m")


def test_pods_for_a_program(cli, pods):
    assert cli("get", "pods", "-o", "name")[1] == "pod/batch\npod/web\n"
    listed = json.loads(cli("get", "pods", "-o", "json")[1])
    assert (listed["kind"], len(listed["items"])) == ("List", 2)
    one = yaml.safe_load(cli("get", "pod", "web", "-o", "yaml")[1])
    assert (one["kind"], one["metadata"]["name"]) == ("Pod", "web")


def test_names_and_flags_may_stand_in_any_order(cli, pods):
    assert cli("get", "pods", "-o", "name", "batch", "web")[1] == "pod/batch\npod/web\n"
    assert cli("get", "-o", "name", "pod/web")[1] == "pod/web\n"


def test_namespaces(cli, pods, manifest):
    cli("apply", "-f", manifest("far", **{"name: far": "name: far, namespace: away"}))
    assert cli("get", "pods", "-n", "away", "-o", "name")[1] == "pod/far\n"
    lines = cli("get", "pods", "-A")[1].splitlines()
    assert lines[0].split()[0] == "NAMESPACE"
    assert [line.split()[:2] for line in lines[1:]] == [
        ["away", "far"],
        ["default", "batch"],
        ["default", "web"],
    ]
    assert cli("get", "pods", "-n", "empty") == (0, "", "no pods in namespace empty\n")


def test_a_pod_that_is_not_there_is_reported_beside_those_that_are(cli, pods):
    code, out, err = cli("get", "pod", "web", "nope")
    assert code == 1
    assert "web" in out
    assert err == 'evenkeel: there is no pod "nope" in namespace default\n'


@pytest.mark.parametrize(
    "words, reported",
    [
        (("gateways",), 'there is no kind "gateways" (there are pods, deployments, '),
        (("pod/web", "here"), "names must be of one kind"),
        (("pods", "web", "-A"), "give -n NS, not -A"),
        (("node", "-w"), "cannot be watched"),
    ],
)
def test_what_cannot_be_got_is_reported(cli, words, reported):
    code, _, err = cli("get", *words)
    assert code == 1
    assert reported in err


def test_a_watch_shows_what_is_there_once_and_then_every_change(cli, pods, agent):
    def changes():
        wait_for(lambda: agent.front.listeners == 1)
        change(agent, "default/web", reason="Evicted", phase="Failed", container_statuses=())
        agent.call(agent.front.remove, "default/web")
        agent.end()

    changing = later(changes)
    code, out, err = cli("get", "pods", "-w")
    changing.join()
    words = [line.split()[:3] for line in out.splitlines()]
    assert words == [
        ["NAME", "READY", "STATUS"],
        ["batch", "2/2", "Running"],
        ["web", "2/2", "Running"],
        ["web", "0/2", "Evicted"],
        ["web", "0/2", "Evicted"],
    ]
    assert (code, err) == (1, "evenkeel: the agent ended, so the watch ended too\n")


def test_a_watch_of_one_pod_for_a_program(cli, pods, agent):
    def changes():
        wait_for(lambda: agent.front.listeners == 1)
        change(agent, "default/batch", phase="Failed")
        change(agent, "default/web", phase="Succeeded")
        agent.end()

    changing = later(changes)
    out = cli("get", "pod", "web", "-w", "-o", "yaml")[1]
    changing.join()
    phases = [reported["status"]["phase"] for reported in yaml.safe_load_all(out) if reported]
    assert phases == ["Running", "Succeeded"]


def test_amounts_of_a_real_machine_are_short_for_people_and_exact_for_programs(cli, agent):
    agent.front.memory = Quantity("24684100Ki")  # as /proc/meminfo has it
    assert cli("get", "node")[1].splitlines()[1].split()[3] == "21.5Gi/23.5Gi"
    lines = [" ".join(line.split()) for line in cli("describe", "node")[1].splitlines()]
    assert "memory 23.5Gi 21.5Gi 0 (0%) 0 (0%)" in lines
    for form in ("json", "yaml"):
        assert "memory: 24684100Ki" in cli("get", "node", "-o", form)[1].replace('"', "")


def test_the_node_in_a_line(cli):
    lines = cli("get", "node")[1].splitlines()
    assert lines[1].split() == ["here", "Ready,MemoryPressure", "8/8", "30Gi/32Gi", "110/110"]
    assert cli("get", "node", "-o", "name")[1] == "node/here\n"
    assert json.loads(cli("get", "node", "-o", "json")[1])["kind"] == "Node"


# events


@pytest.fixture
def events(agent):
    agent.call(agent.front.tell, "Started", "it runs", "default/web", container="app")
    agent.call(
        agent.front.tell, "OOMKilled", "400Mi of 200Mi", "default/batch", type=WARNING, figures={"bytes": 7}
    )
    agent.call(agent.front.tell, "Pressure", "memory runs short")


def test_events_in_a_table_and_for_a_program(cli, events):
    code, out, _ = cli("events")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].startswith("LAST SEEN   TYPE      REASON")
    assert [line.split()[2:4] for line in lines[1:]] == [
        ["Started", "pod/web"],
        ["OOMKilled", "pod/batch"],
        ["Pressure", "node"],
    ]
    assert lines[1].endswith("app: it runs")
    assert cli("get", "events")[1].splitlines()[1:] == lines[1:]
    assert [line.split()[2] for line in cli("events", "web")[1].splitlines()[1:]] == ["Started"]
    assert json.loads(cli("events", "batch", "-o", "json")[1])["items"][0]["figures"] == {"bytes": 7}
    assert "Started" not in cli("events", "-n", "away")[1]
    assert "Started" in cli("events", "-A", "--most", "3")[1]
    assert cli("events", "nope") == (0, "", "no events\n")
    assert cli("events", "--for", "pod/web") == cli("events", "pod/web") == cli("events", "web")
    assert "deployment/web is not a pod" in cli("events", "--for", "deployment/web")[2]
    assert "both name a pod" in cli("events", "web", "--for", "pod/web")[2]


def test_events_are_followed(cli, events, agent):
    def happen():
        wait_for(lambda: agent.front.listeners == 1)
        agent.call(agent.front.tell, "Evicted", "it had to go", "default/web")
        agent.end()

    event = later(happen)
    out = cli("events", "web", "-f")[1]
    event.join()
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["Started", "Evicted"]


# describe


def test_a_pod_is_described_with_its_states_resources_and_events(cli, pods, agent, events):
    ended = ContainerStateTerminated(137, 9, "OOMKilled", "killed at its limit", BORN, BORN)
    pod = agent.front.held["default/web"]
    app = pod.status.container_statuses[0]._replace(
        restart_count=2,
        last_state=ContainerState(terminated=ended),
        resources=pod.spec.containers[0].resources,
        memory_qos_class="Burstable",
        cpu_qos_class="BestEffort",
    )
    change(
        agent,
        "default/web",
        container_statuses=(app, pod.status.container_statuses[1]),
        conditions=(PodCondition("Ready", "False", "ContainersNotReady", "app is not"),),
    )
    code, out, _ = cli("describe", "pod", "web")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0
    for line in (
        "Name: web",
        "Labels: app=shop",
        "Status: Running",
        "Command: sh -c 'sleep 60'",
        "State: Running",
        "Last State: Terminated",
        "Reason: OOMKilled",
        "Message: killed at its limit",
        "Exit Code: 137",
        "Restart Count: 2",
        "QoS: memory Burstable, cpu BestEffort",
        "Resources: ASKED APPLIED",
        "memory request 64Mi 64Mi",
        "memory limit 200Mi 200Mi",
        "Ready False ContainersNotReady app is not",
        "scratch: emptyDir in memory, at most 1Mi",
        "files: persistentVolumeClaim kept",
        "Type Reason Age Message",
    ):
        assert line in lines
    assert lines[-1].startswith("Normal Started")
    assert cli("describe", "web")[1] == out


def test_all_pods_are_described_and_missing_ones_reported(cli, pods):
    assert cli("describe", "pods")[1].count("\nStatus:") == 2
    code, out, err = cli("describe", "pod", "nope", "web")
    assert code == 1
    assert "Name:           web" in out
    assert err == 'evenkeel: there is no pod "nope" in namespace default\n'


def test_the_node_is_described_with_what_is_promised_of_it(cli, pods, events):
    lines = [" ".join(line.split()) for line in cli("describe", "node")[1].splitlines()]
    assert "MemoryPressure True Low: 10Mi left" in lines
    assert "memory 32Gi 30Gi 128Mi (0%) 400Mi (1%)" in lines
    assert "cpu 8 8 1 (12%) 0 (0%)" in lines
    assert "default/web: Burstable, cpu 500m, memory 64Mi" in lines
    assert lines[-1].startswith("Normal Pressure")


# top


def test_pods_by_use_against_request_and_limit(cli, pods):
    lines = cli("top")[1].splitlines()
    assert lines[0].split() == ["NAME", "CPU", "REQUEST", "LIMIT", "MEMORY", "REQUEST", "LIMIT", "USED"]
    assert ["web", "250m", "500m", "-", "100Mi", "64Mi", "200Mi", "50%"] in [line.split() for line in lines]
    assert len(lines) == 3
    containers = [line.split()[0] for line in cli("top", "pods", "--containers")[1].splitlines()[1:]]
    assert containers == ["batch/app", "batch/logger", "web/app", "web/logger"]
    assert [line.split()[0] for line in cli("top", "pods", "--once", "web")[1].splitlines()] == [
        "NAME",
        "web",
    ]
    assert cli("top", "--once", "web")[1].split()[8] == cli("top", "pod/web")[1].split()[8] == "web"
    assert len(cli("top", "-n", "elsewhere")[1].splitlines()) == 1
    assert "default/web" in cli("top", "-A")[1]


def test_the_node_by_use(cli, pods):
    heads, *lines = (line.split("   ") for line in cli("top", "node")[1].splitlines())
    rows = {line[0].strip(): [cell.strip() for cell in line[1:] if cell.strip()] for line in lines}
    assert [head.strip() for head in heads if head.strip()][:2] == ["USED", "PODS USE"]
    assert rows["memory"] == ["12Gi", "100Mi", "128Mi", "31.9Gi", "100Mi", "32Gi", "37%"]
    assert rows["cpu"][:3] == ["2", "250m", "1"]
    assert rows["storage"][0] == "40Gi"


def test_the_whole_view_for_a_program(cli, pods):
    view = json.loads(cli("top", "-o", "json")[1])
    assert {pod["pod"] for pod in view["pods"]} == {"default/web", "default/batch"}
    assert view["number"] > 1  # figures that are a difference are there


# logs


def write_log(agent, pod, container, *texts, attempt=1, uid=None, stream="stdout"):
    held = agent.front.held.get(f"default/{pod}")
    uid = uid or held.metadata.uid
    path = Path(agent.state_dir, "logs", f"default_{pod}_{uid}", container, f"{attempt}.log")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(
            f"2026-11-16T00:00:0{n}.000000000Z {stream} F {text}\n" for n, text in enumerate(texts)
        )


def test_logs_of_a_container(cli, pods, agent):
    write_log(agent, "web", "app", "one", "two", "three")
    write_log(agent, "web", "logger", "other")
    code, out, err = cli("logs", "web")
    assert (code, out) == (0, "one\ntwo\nthree\n")
    assert err == "the log of app, the first of: app, logger\n"
    annotated = agent.front.held["default/web"].metadata._replace(annotations={DEFAULT_CONTAINER: "logger"})
    agent.call(agent.front.put, agent.front.held["default/web"]._replace(metadata=annotated))
    assert cli("logs", "web") == (0, "other\n", "")
    assert cli("logs", "web", "-c", "logger") == (0, "other\n", "")
    assert cli("logs", "pod/web", "logger") == (0, "other\n", "")
    assert cli("logs", "web", "-c", "app", "--tail", "2")[1] == "two\nthree\n"
    assert cli("logs", "web", "-c", "app", "--tail=-1")[1] == "one\ntwo\nthree\n"
    assert cli("logs", "web", "logger", "--timestamps")[1] == "2026-11-16T00:00:00.000000000Z other\n"
    together = cli("logs", "web", "--all-containers", "--prefix")[1]
    assert together.splitlines()[2:] == ["[pod/web/app] three", "[pod/web/logger] other"]


def test_an_ephemeral_container_is_named_and_its_log_read_like_any_other(cli, pods, agent):
    agent.call(
        agent.front.put,
        agent.front.held["default/web"].with_ephemeral(EphemeralContainer("debugger", tty=True)),
    )
    assert "(Error: no room)" not in cli("logs", "web", "debugger")[2]
    waiting = ContainerState(ContainerStateWaiting("Error", "no room"))
    change(agent, "default/web", ephemeral_container_statuses=(ContainerStatus("debugger", waiting),))
    assert "(Error: no room)" in cli("logs", "web", "debugger")[2]
    write_log(agent, "web", "debugger", "found")
    assert cli("logs", "web", "-c", "debugger") == (0, "found\n", "")
    assert cli("logs", "web", "--all-containers")[1] == "found\n"
    assert cli("completion", "containers", "web")[1] == "app\nlogger\ndebugger\n"
    assert container_of(Client(agent.state_dir).pod("default", "web"), "debugger")["tty"]


def test_logs_of_all_pods_with_a_label(cli, pods, agent):
    labelled = {}
    for name in ("web", "batch"):
        one = agent.front.held[f"default/{name}"]
        labelled[name] = one._replace(metadata=one.metadata._replace(labels={"app": "x"}))
        agent.call(agent.front.put, labelled[name])
    container = labelled["batch"].spec.containers[0].name
    write_log(agent, "web", "app", *"abcdefghi")
    write_log(agent, "batch", container, "other")
    code, out, _ = cli("logs", "-l", "app=x", "--prefix")
    assert (code, out.splitlines()[:2]) == (0, [f"[pod/batch/{container}] other", "[pod/web/app] a"])
    assert cli("logs", "-l", "app=x", "--tail", "1")[1] == "other\ni\n"
    assert cli("logs", "-l", "app=x", "--limit-bytes", "7")[1] == "other\na"
    assert cli("logs", "-l", "app=x", "--since-time", "2026-11-16T00:00:08Z")[1] == "i\n"
    assert "no pod in namespace default has the labels app=y" in cli("logs", "-l", "app=y")[2]
    assert "logs needs a pod, or -l LABELS" in cli("logs")[2]
    assert "logs needs a pod, or -l LABELS" in cli("logs", "web", "-l", "app=x")[2]
    both = cli("logs", "web", "--since", "1s", "--since-time", "2026-11-16T00:00:08Z")
    assert "contradict each other" in both[2]


def test_logs_that_are_not_old(cli, pods, agent, monkeypatch):
    write_log(agent, "web", "app", "one", "two", "three")
    monkeypatch.setattr("evenkeel.cli.logs.time.time", lambda: 1_794_787_202.5)  # 2026-11-16T00:00:02.5Z
    assert cli("logs", "web", "app", "--since", "1s")[1] == "three\n"
    code, _, err = cli("logs", "web", "app", "--since", "-5")
    assert (code, '"-5" is less than 0' in err) == (2, True)


def test_logs_of_the_attempt_before(cli, pods, agent):
    assert "no log of an earlier attempt" in cli("logs", "web", "app", "-p")[2]
    write_log(agent, "web", "app", "it crashed", attempt=1)
    write_log(agent, "web", "app", "again", attempt=2)
    assert cli("logs", "web", "app")[1] == "again\n"
    assert cli("logs", "web", "app", "--previous")[1] == "it crashed\n"


def test_a_container_that_has_begun_again_and_said_nothing_has_an_empty_log(cli, pods, agent):
    """The log of the previous run is not shown for it."""
    write_log(agent, "web", "app", "it crashed", attempt=1)
    running = ContainerState(running=ContainerStateRunning("2026-11-16T00:00:00Z"))
    change(agent, "default/web", container_statuses=(ContainerStatus("app", running, restart_count=1),))
    assert cli("logs", "web", "app") == (0, "", "")
    assert cli("logs", "web", "app", "--previous") == (0, "it crashed\n", "")
    write_log(agent, "web", "app", "again", attempt=2)
    assert cli("logs", "web", "app") == (0, "again\n", "")


@pytest.mark.parametrize(
    ("has_next_log", "restarts", "current"), [(False, 1, "run/2"), (True, 1, "run/2"), (True, 2, "run/3")]
)
def test_the_previous_log_of_a_container_that_waits_for_its_restart_is_its_last_one(
    cli, pods, agent, has_next_log, restarts, current
):
    """It waits; it is being started, and does not count; it runs its postStart hook."""
    write_log(agent, "web", "app", "first", attempt=1)
    write_log(agent, "web", "app", "second", attempt=2)
    if has_next_log:
        write_log(agent, "web", "app", attempt=3)  # a container runtime makes it before the program runs
    status = ContainerStatus(
        "app",
        ContainerState(ContainerStateWaiting("ContainerCreating")),
        ContainerState(terminated=ContainerStateTerminated(1, container_id="run/2")),
        restart_count=restarts,
        container_id=current,
    )
    change(agent, "default/web", container_statuses=(status,))
    assert cli("logs", "web", "app", "--previous") == (0, "second\n", "")


@pytest.mark.parametrize(("current", "is_over"), [("run/2", True), ("run/3", False)])
def test_a_run_is_over_while_the_next_one_waits_for_its_image_and_not_in_its_post_start_hook(
    current, is_over
):
    status = ContainerStatus(
        "app",
        ContainerState(ContainerStateWaiting("ErrImagePull")),
        ContainerState(terminated=ContainerStateTerminated(1, container_id="run/2")),
        restart_count=1,
        container_id=current,
    )
    assert attempt_is_over({"status": {"containerStatuses": [encode(status)]}}, "app", 2) == is_over
    pod = Pod(status=PodStatus("Running", container_statuses=(status,)))
    assert container_logs.attempt_is_over(pod, "app", 2) == is_over


def test_logs_without_an_agent(cli, pods, agent):
    write_log(agent, "web", "app", "older", uid="a-1")
    os.utime(Path(agent.state_dir, "logs", "default_web_a-1"), (1, 1))
    write_log(agent, "web", "app", "one")
    agent.end()
    assert cli("logs", "web") == (0, "one\n", "")
    write_log(agent, "web", "logger", "other")
    assert "choose one of app, logger with -c" in cli("logs", "web")[2]
    assert 'there is no log of a pod "nope"' in cli("logs", "nope")[2]


@pytest.mark.parametrize(
    "words, reported",
    [
        (("web", "-c", "nope"), "pod web has no container nope: it has app, logger"),
        (("web", "-f", "-p"), "the previous attempt has ended"),
        (("pod/../../etc",), '"pod/../../etc" is not KIND/NAME'),
        (("web", "-c", "../x"), "has no container ../x"),
        (("web", "app", "--all-containers"), "contradict each other"),
    ],
)
def test_logs_that_are_not_there_are_reported(cli, pods, words, reported):
    code, _, err = cli("logs", *words)
    assert code == 1
    assert reported in err


def test_why_a_container_has_no_log_is_reported(cli, pods, agent):
    waiting = ContainerState(ContainerStateWaiting("CreateContainerError", "no such directory /nope"))
    change(agent, "default/web", container_statuses=(ContainerStatus("app", waiting),))
    assert "(CreateContainerError: no such directory /nope)" in cli("logs", "web", "app")[2]


def test_logs_are_followed_until_the_container_ends(cli, pods, agent):
    write_log(agent, "web", "app", "one")
    write_log(agent, "web", "logger", "other")

    def go_on():
        write_log(agent, "web", "app", "two")
        finish(agent, "default/web", 0)

    going = later(go_on)
    assert cli("logs", "web", "app", "-f")[1] == "one\ntwo\n"
    going.join()
    assert sorted(cli("logs", "web", "-f", "--all-containers")[1].split()) == ["one", "other", "two"]


def test_a_container_that_has_said_nothing_yet_is_waited_for_if_asked(cli, pods, agent):
    assert cli("logs", "web", "app", "--previous")[0] == 1
    assert cli("logs", "web", "app") == (0, "", "")

    def speak():
        write_log(agent, "web", "app", "at last")
        finish(agent, "default/web", 0)

    speaking = later(speak)
    assert cli("logs", "web", "app", "-f") == (0, "at last\n", "")
    speaking.join()
    finish(agent, "default/batch", 0)
    assert cli("logs", "batch", "app", "-f") == (0, "", "")


def finish(agent, key, code, reason="Completed"):
    pod = agent.front.held[key]
    ended = ContainerState(terminated=ContainerStateTerminated(code, reason=reason))
    statuses = tuple(ContainerStatus(c.name, ended) for c in pod.spec.containers)
    change(agent, key, phase="Failed" if code else "Succeeded", container_statuses=statuses)


# run


def only_pod(agent):
    wait_for(lambda: agent.front.held)
    (key,) = agent.front.held
    return key.partition("/")[2]


def test_run_hands_in_one_command_as_a_pod(cli, agent, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKEN", "secret")
    code, out, _ = cli(
        "run", "-d", "--name", "job", "--cpu", "500m", "--memory", "1Gi", "--memory-limit", "2Gi", "-e", "A=b=c",
        "--env", "TOKEN", "--restart", "OnFailure", "--grace-period", "5", "--", "make", "-j4", "--", "all",
    )  # fmt: skip
    assert (code, out) == (0, "pod/job created\n")
    assert agent.front.sources == ["run"]
    spec = agent.front.held["default/job"].spec
    (container,) = spec.containers
    assert (container.image, container.command) == ("host", ("make", "-j4", "--", "all"))
    assert container.working_dir == str(tmp_path)
    (volume,), (mount,) = spec.volumes, container.volume_mounts  # the rest of the host's files is read-only
    assert volume.host_path is not None
    assert (volume.host_path.path, mount.mount_path, mount.read_only) == (str(tmp_path), str(tmp_path), False)
    assert [(variable.name, variable.value) for variable in container.env] == [
        ("A", "b=c"),
        ("TOKEN", "secret"),
    ]
    assert {name: str(amount) for name, amount in container.resources.requests.items()} == {
        "cpu": "500m",
        "memory": "1Gi",
    }
    assert (str(container.resources.limits["memory"]), "cpu" in container.resources.limits) == ("2Gi", False)
    assert (spec.restart_policy, spec.termination_grace_period_seconds) == ("OnFailure", 5)


def test_what_is_typed_is_what_is_run(cli, agent):
    assert cli("run", "-d", "-e", "PRICE=$(5)", "--", "sh", "-c", "kill $$ $(pwd) $HOME")[0] == 0
    (pod,) = agent.front.held.values()
    (container,) = pod.spec.containers
    # As every $$ becomes $ at the start.
    assert container.command[-1].replace("$$", "$") == "kill $$ $(pwd) $HOME"
    assert container.command[-1].count("$") == 8
    assert container.env[0].value == "$$(5)"


def test_a_pod_that_is_run_has_a_name_of_its_own(cli, agent):
    for _ in range(2):
        assert cli("run", "-d", "--", "/usr/bin/My_Tool.sh")[0] == 0
    names = [key.partition("/")[2] for key in agent.front.held]
    assert all(name.startswith("my-tool-sh-") for name in names)
    assert len(set(names)) == 2


def test_run_shows_the_output_and_exits_as_the_command_does(cli, agent):
    def live():
        name = only_pod(agent)
        write_log(agent, name, "main", "hello", "world")
        write_log(agent, name, "main", "oh no", stream="stderr")
        finish(agent, f"default/{name}", 3, "Error")

    living = later(live)
    code, out, err = cli("run", "--", "sh", "-c", "whatever")
    living.join()
    assert (code, out, err) == (3, "hello\nworld\n", "oh no\n")
    assert len(agent.front.held) == 1


def test_run_removes_the_pod_if_asked(cli, agent):
    def live():
        name = only_pod(agent)
        write_log(agent, name, "main", "hello")
        finish(agent, f"default/{name}", 0)

    living = later(live)
    assert cli("run", "--rm", "true")[:2] == (0, "hello\n")
    living.join()
    assert agent.front.held == {}


def test_run_stops_a_command_when_its_output_is_no_longer_read(agent):
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "evenkeel", "run", "--state-dir", str(agent.state_dir), "--", "yes"]
    running = subprocess.Popen(words, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    write_log(agent, only_pod(agent), "main", "y")
    _, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (1, b"")
    assert agent.front.held == {}


def test_run_in_a_directory_that_is_gone_says_so(cli, agent, monkeypatch, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = cli("run", "--", "true")
    assert code == 1
    assert err.startswith("evenkeel: the current directory cannot be used")
    assert agent.front.held == {}


def test_run_says_why_the_command_did_not_run_or_had_to_go(cli, agent):
    def refuse():
        name = only_pod(agent)
        change(
            agent,
            f"default/{name}",
            phase="Failed",
            reason="OutOfmemory",
            message="wanted 1Ti",
            container_statuses=(),
        )

    refusing = later(refuse)
    code, _, err = cli("run", "--memory", "1Ti", "--rm", "--", "true")
    refusing.join()
    assert code == 1
    assert err.endswith(": OutOfmemory: wanted 1Ti\n")

    def kill():
        finish(agent, f"default/{only_pod(agent)}", 137, "OOMKilled")

    killing = later(kill)
    code, _, err = cli("run", "--", "true")
    killing.join()
    assert code == 137
    assert err.endswith(": OOMKilled\n")


def test_run_goes_on_through_restarts(cli, agent):
    def live():
        key = f"default/{only_pod(agent)}"
        name = key.partition("/")[2]
        again = ContainerStatus("main", ContainerState(running=ContainerStateRunning(BORN)), restart_count=1)
        change(agent, key, container_statuses=(again,))
        write_log(agent, name, "main", "second", attempt=2)
        ended = ContainerState(terminated=ContainerStateTerminated(0, reason="Completed"))
        change(agent, key, phase="Succeeded", container_statuses=(again._replace(state=ended),))

    living = later(live)
    assert cli("run", "--restart", "OnFailure", "--", "true")[:2] == (0, "second\n")
    living.join()


def test_an_interrupt_stops_the_command_and_its_last_words_are_heard(tmp_path):
    class Stopping(FakeFront):
        """Ends a pod some time after it was asked to, with the code of SIGTERM."""

        async def delete(self, key, grace_seconds=None):
            self.deleted.append((key, grace_seconds))
            write_log(agent, key.partition("/")[2], "main", "goodbye")
            ended = ContainerState(terminated=ContainerStateTerminated(143, 15, "Error"))
            pod = self.held[key]
            self.put(
                pod._replace(status=PodStatus("Failed", container_statuses=(ContainerStatus("main", ended),)))
            )
            self.remove(key)
            return True

    front = Stopping()
    with served(front, tmp_path) as agent:

        def interrupt():
            name = only_pod(agent)
            write_log(agent, name, "main", "hello")
            wait_for(lambda: front.listeners == 1)
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = later(interrupt)
        code, out, _ = run_command("run", "--", "sleep", "100", state_dir=tmp_path)
        interrupting.join()
    assert (code, out) == (143, "hello\ngoodbye\n")
    assert [grace for _, grace in front.deleted] == [None]


def test_run_outlives_the_agent(tmp_path):
    front = FakeFront()

    def live():
        with served(front, tmp_path) as first:
            name = only_pod(first)
            write_log(first, name, "main", "before")
            wait_for(lambda: front.listeners == 1)
        write_log(first, name, "main", "meanwhile")
        with served(front, tmp_path) as second:
            wait_for(lambda: front.listeners == 1)
            finish(second, f"default/{name}", 0)
            done.wait(60)

    done = threading.Event()
    living = threading.Thread(target=live)
    living.start()
    wait_for((tmp_path / "agent.sock").exists)
    code, out, err = run_command("run", "--", "true", state_dir=tmp_path)
    done.set()
    living.join()
    assert (code, out) == (0, "before\nmeanwhile\n")
    assert err in ("", "evenkeel: the agent does not answer; the pod runs on without it\n")


@pytest.mark.parametrize(
    "words, code, reported",
    [
        ((), 1, "run needs a command"),
        (("--rm", "-d", "--", "true"), 1, "contradict each other"),
        (("--cpu", "lots", "--", "true"), 2, "lots"),
        (("--env", "=x", "--", "true"), 1, "is not NAME=VALUE"),
        (("--env", "NO_SUCH_VARIABLE", "--", "true"), 1, "you have no variable NO_SUCH_VARIABLE"),
        (("--name", "web", "--", "true"), 1, "there is a pod web already (evenkeel delete web)"),
        (("--name", "Not_A_Name", "-d", "--", "true"), 1, "metadata.name"),
        (
            ("--memory", "2Gi", "--memory-limit", "1Gi", "-d", "--", "true"),
            1,
            "evenkeel: spec.containers[0].resources.requests: memory: ",
        ),
    ],
)
def test_a_run_that_makes_no_sense_is_reported(cli, pods, words, code, reported):
    got, _, err = cli("run", *words)
    assert got == code
    assert reported in err


# completion


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes_names_of_pods_kinds_and_files(cli, tmp_path):
    script = tmp_path / "completion"
    script.write_text(cli_completion("bash"))
    (tmp_path / "pod.yaml").touch()
    lines = {
        "delete w": "web worker",
        "delete web wo": "worker",
        "logs -n prod d": "db-of-prod",
        "describe pod w": "web worker",
        "get n": "node",
        f"apply -f {tmp_path}/po": f"{tmp_path}/pod.yaml",
        "desc": "describe",
        "exec web -c s": "sidecar",
        "logs -n prod db-of-prod -c ''": "main-of-prod",
        "cp we": "web:",
        f"cp {tmp_path}/po": f"{tmp_path}/pod.yaml",
    }
    harness = f"""
source {script}
compopt() {{ :; }}
evenkeel() {{
  case "$*" in
    "completion containers web") printf 'main\\nsidecar\\n' ;;
    "completion containers db-of-prod -n prod") echo main-of-prod ;;
    *"-n prod"*) echo pod/db-of-prod ;;
    *) printf 'pod/web\\npod/worker\\n' ;;
  esac
}}
complete_line() {{
  COMP_WORDS=(evenkeel "$@"); COMP_CWORD=$#; COMPREPLY=(); _shtab_evenkeel; echo "${{COMPREPLY[@]}}"
}}
"""
    harness += "".join(f"complete_line {line}\n" for line in lines)
    done = subprocess.run(["bash", "-c", harness], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == list(lines.values())


def test_the_scripts_ask_for_the_names_of_containers(cli, pods):
    assert cli("completion", "containers", "web")[:2] == (0, "app\nlogger\n")


def cli_completion(shell):
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["completion", shell]) == 0
    return out.getvalue()


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells_complete_kinds(shell):
    assert "pods deployments" in cli_completion(shell)
