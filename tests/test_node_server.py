"""The server of a cluster's node: what is there, and the logs of containers."""

import http.client
import json
import threading
from pathlib import Path

import pytest

from evenkeel.api.pod import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
)
from evenkeel.runtime.paths import state_paths
from tests.kernel.waiting import eventually
from tests.models.node_servers import ALLOWED, a_pod, node

__all__ = ["node"]


def test_the_answers_are_those_of_kubelet(node):
    assert json.loads(node.ask("/pods")[1])["items"][0]["metadata"]["name"] == "web"
    assert json.loads(node.ask("/runningpods/")[1])["items"][0]["metadata"]["name"] == "web"
    assert json.loads(node.ask("/configz")[1])["kubeletconfig"]["port"] == 10250
    assert json.loads(node.ask("/stats/summary")[1])["node"]["nodeName"]
    assert "node_cpu_usage_seconds_total" in node.ask("/metrics/resource")[1]
    for target in ("/metrics", "/metrics/cadvisor", "/metrics/probes"):
        assert node.ask(target)[0] == 200


@pytest.mark.parametrize(
    "target",
    ["/", "/nothing", "/logs/", "/debug/pprof/", "/run/default/web/app", "/stats/x", "/metrics/x", "/pods/x/y",
     "//pods", "/../pods", "/secrets", "/api/v1/secrets", "/view", "/snapshot", "/agent.sock"],
)  # fmt: skip
def test_everything_else_is_not_there(node, target):
    assert node.ask(target)[0] == 404


def test_nothing_can_be_changed(node):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for target in ("/pods", "/configz", "/pods/default/web"):
            assert node.ask(target, method=method)[0] in (404, 405)
    assert node.front.deleted == []


def test_healthz_is_on_loopback_without_tls(node):
    connection = http.client.HTTPConnection("127.0.0.1", node.healthz_port, timeout=30)
    for target, status in (("/healthz", 200), ("/pods", 404), ("/metrics", 404)):
        connection.request("GET", target)
        answer = connection.getresponse()
        assert (answer.status, len(answer.read()) > 0) == (status, True)
    connection.close()


def write_log(node, *lines, number=1, pod="web"):
    meta = a_pod(pod).metadata
    path = Path(state_paths(str(node.state)).log("default", pod, meta.uid, "app", number))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(
            f"2026-01-01T12:00:{second:02}.000000000Z {line}\n" for second, line in enumerate(lines)
        )
    return path


LOGS = "/containerLogs/default/web/app"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "one\ntwo\nthree\n"),
        ("?tailLines=1", "three\n"),
        ("?tailLines=0", ""),
        ("?limitBytes=5", "one\nt"),
        ("?timestamps=true&tailLines=1", "2026-01-01T12:00:02.000000000Z three\n"),
        ("?sinceTime=2026-01-01T12:00:01Z", "two\nthree\n"),
        ("?sinceTime=2026-01-01T13:00:01%2B01:00", "two\nthree\n"),
        ("?sinceSeconds=1", ""),
        ("?stream=Stderr", "two\n"),
    ],
)
def test_a_log_is_cut_as_asked(node, query, expected):
    write_log(node, "stdout F one", "stderr F two", "stdout F three")
    assert node.ask(LOGS + query) == (200, expected)


@pytest.mark.parametrize(
    "query", ["tailLines=-1", "tailLines=x", "limitBytes=0", "sinceSeconds=0", "sinceTime=now", "stream=x",
              "sinceSeconds=1&sinceTime=2026-01-01T12:00:01Z", "tailLines=" + "9" * 30]
)  # fmt: skip
def test_a_wrong_option_is_refused(node, query):
    write_log(node, "stdout F one")
    assert node.ask(f"{LOGS}?{query}")[0] == 400


def test_the_log_of_the_run_before_is_the_previous_one(node):
    write_log(node, "stdout F before", number=1)
    assert node.ask(f"{LOGS}?previous=true")[0] == 400
    write_log(node, "stdout F now", number=2)
    assert node.ask(f"{LOGS}?previous=true") == (200, "before\n")
    assert node.ask(LOGS) == (200, "now\n")


@pytest.mark.parametrize(
    ("has_next_log", "restarts", "current"), [(False, 1, "run/2"), (True, 1, "run/2"), (True, 2, "run/3")]
)
def test_the_previous_run_of_a_container_that_waits_or_is_being_started_is_its_last_one(
    node, has_next_log, restarts, current
):
    for number, line in ((1, "stdout F first"), (2, "stdout F second")):
        write_log(node, line, number=number)
    if has_next_log:
        write_log(node, number=3)  # the runtime makes it before the program runs
    status = ContainerStatus(
        "app",
        ContainerState(waiting=ContainerStateWaiting("CrashLoopBackOff")),
        ContainerState(terminated=ContainerStateTerminated(1, container_id="run/2")),
        restart_count=restarts,
        container_id=current,
    )
    pod = a_pod()
    node.call(node.front.put, pod._replace(status=pod.status._replace(container_statuses=(status,))))
    assert node.ask(f"{LOGS}?previous=true") == (200, "second\n")


@pytest.mark.parametrize("state", ["running", "terminated"])
def test_the_previous_run_of_a_container_that_has_written_nothing_yet_is_that_with_the_last_log(node, state):
    for number, line in ((1, "stdout F first"), (2, "stdout F second")):
        write_log(node, line, number=number)
    ended = ContainerStateTerminated(1, container_id="run/2")
    now = (
        ContainerState(running=ContainerStateRunning("2026-11-16T00:00:00Z"))
        if state == "running"
        else ContainerState(terminated=ContainerStateTerminated(1, container_id="run/3"))
    )
    status = ContainerStatus(
        "app", now, ContainerState(terminated=ended), restart_count=2, container_id="run/3"
    )
    pod = a_pod()
    node.call(node.front.put, pod._replace(status=pod.status._replace(container_statuses=(status,))))
    assert node.ask(f"{LOGS}?previous=true") == (200, "second\n")
    assert node.ask(LOGS) == (200, ""), "the log of the run before is not its own"


def test_a_followed_log_goes_on_until_the_container_ends(node):
    path = write_log(node, "stdout F one")
    connection = http.client.HTTPSConnection("127.0.0.1", node.port, context=node.trusting(), timeout=30)
    connection.request("GET", f"{LOGS}?follow=true", headers={"Authorization": f"Bearer {ALLOWED}"})
    answer = connection.getresponse()
    assert answer.readline() == b"one\n"
    for word in ("two", "three"):
        with path.open("a") as file:
            file.write(f"2026-01-01T12:01:00.000000000Z stdout F {word}\n")
        assert answer.readline() == f"{word}\n".encode()
    node.call(node.front.remove, "default/web")
    assert answer.read() == b""
    connection.close()


@pytest.mark.parametrize(
    "target",
    ["/containerLogs/default/none/app", "/containerLogs/default/web/none", "/containerLogs/default/..%2f../app",
     "/containerLogs/default/web/..", "/containerLogs/default/web/%2e%2e%2f%2e%2e", "/containerLogs/../../etc/passwd",
     "/containerLogs/default/web%00/app"],
)  # fmt: skip
def test_no_name_leads_elsewhere(node, target):
    write_log(node, "stdout F one")
    assert node.ask(target)[0] == 404


def test_a_container_that_has_not_begun_says_so_and_one_that_has_said_nothing_says_nothing(node):
    assert node.ask(LOGS) == (200, "")
    waiting = ContainerState(waiting=ContainerStateWaiting("ImagePullBackOff"))
    pod = a_pod()
    status = pod.status._replace(container_statuses=(ContainerStatus("app", waiting),))
    node.call(node.front.put, pod._replace(status=status))
    assert node.ask(LOGS) == (400, 'container "app" in pod "web" is waiting to start: ImagePullBackOff')


def test_a_container_is_followed_from_its_first_line(node):
    answers = []
    following = threading.Thread(target=lambda: answers.append(node.ask(f"{LOGS}?follow=true")))
    following.start()
    eventually(lambda: node.call(lambda: node.server.listener.connections) == 1)
    write_log(node, "stdout F first")
    node.call(node.front.put, a_pod()._replace(status=a_pod().status._replace(phase="Failed")))
    following.join(60)
    assert answers == [(200, "first\n")]


def test_a_pod_of_this_machine_is_found_by_the_name_of_its_mirror_only(node):
    """By its own name it could be asked for by the owner of another pod that waits for this name."""
    write_log(node, "stdout F mine")
    node.local.add(a_pod().metadata.uid)
    node.mirrors.add(("default", "web-node1"))
    assert node.ask("/containerLogs/default/web-node1/app") == (200, "mine\n")
    assert node.ask(LOGS)[0] == 404
    node.mirrors.clear()  # the pod that has this name now is not on this node
    assert node.ask("/containerLogs/default/web-node1/app")[0] == 404
    node.mirrors.add(("default", "web-node1"))
    node.local.clear()
    assert node.ask("/containerLogs/default/web-node1/app")[0] == 404
