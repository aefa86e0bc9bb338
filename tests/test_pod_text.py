"""The one-word status of a pod, as kubectl shows it."""

import pytest

from evenkeel.cli.output import age, age_of, printable, seconds_of
from evenkeel.cli.pod_description import environment_lines, probe_text
from evenkeel.cli.pod_text import summary


def waiting(reason=""):
    return {"waiting": {"reason": reason} if reason else {}}


def ended(code=0, reason="", signal=0):
    return {"terminated": {"exitCode": code, "reason": reason, "signal": signal}}


RUNNING = {"running": {"startedAt": "2026-11-16T00:00:00Z"}}


def container(state, *, ready=False, restarts=0, name="c", last=None, started=None):
    reported = {"name": name, "state": state, "ready": ready, "restartCount": restarts}
    if last:
        reported["lastState"] = {"terminated": {"finishedAt": last}}
    return reported if started is None else {**reported, "started": started}


def pod(*mains, phase="Running", init=(), sidecars=(), reason="", conditions=(), deleted=False):
    return {
        "metadata": {"name": "web", **({"deletionTimestamp": "2026-11-16T00:00:00Z"} if deleted else {})},
        "spec": {
            "containers": [{"name": reported["name"]} for reported in mains],
            "initContainers": [
                {
                    "name": reported["name"],
                    **({"restartPolicy": "Always"} if reported["name"] in sidecars else {}),
                }
                for reported in init
            ],
        },
        "status": {
            "phase": phase,
            **({"reason": reason} if reason else {}),
            "containerStatuses": list(mains),
            "initContainerStatuses": list(init),
            "conditions": [{"type": kind, "status": "True"} for kind in conditions],
        },
    }


@pytest.mark.parametrize(
    "reported, ready, word",
    [
        (pod(container(RUNNING, ready=True)), "1/1", "Running"),
        (pod(container(RUNNING)), "0/1", "Running"),
        (pod(phase="Pending"), "0/0", "Pending"),
        (pod(container(waiting("ContainerCreating")), phase="Pending"), "0/1", "ContainerCreating"),
        (pod(container(waiting("CrashLoopBackOff"))), "0/1", "CrashLoopBackOff"),
        (pod(container(ended(0, "Completed")), phase="Succeeded"), "0/1", "Completed"),
        (pod(container(ended(137, "OOMKilled"))), "0/1", "OOMKilled"),
        (pod(container(ended(1, "Error")), phase="Failed"), "0/1", "Error"),
        (pod(container(ended(3))), "0/1", "ExitCode:3"),
        (pod(container(ended(137, signal=9))), "0/1", "Signal:9"),
        # The first container that does not run has the word.
        (
            pod(container(ended(1, "Error"), name="a"), container(waiting("CrashLoopBackOff"), name="b")),
            "0/2",
            "Error",
        ),
        (
            pod(container(RUNNING, ready=True, name="a"), container(ended(0, "Completed"), name="b")),
            "1/2",
            "NotReady",
        ),
        (
            pod(
                container(RUNNING, ready=True, name="a"),
                container(ended(0, "Completed"), name="b"),
                conditions=["Ready"],
            ),
            "1/2",
            "Running",
        ),
        # A pod's own end says more than its containers'.
        (pod(container(ended(137, "Error")), phase="Failed", reason="Evicted"), "0/1", "Evicted"),
        (pod(phase="Failed", reason="OutOfmemory"), "0/0", "OutOfmemory"),
        (pod(container(RUNNING, ready=True), deleted=True), "1/1", "Terminating"),
        (pod(container(ended(0, "Completed")), phase="Succeeded", deleted=True), "0/1", "Completed"),
    ],
)
def test_the_word_for_a_pod(reported, ready, word):
    assert (summary(reported).ready_text, summary(reported).status) == (ready, word)


@pytest.mark.parametrize(
    "init, sidecars, ready, word",
    [
        ([RUNNING, waiting("PodInitializing")], (), "0/1", "Init:0/2"),
        ([ended(0), RUNNING], (), "0/1", "Init:1/2"),
        ([ended(1, "Error"), waiting()], (), "0/1", "Init:Error"),
        ([ended(2), waiting()], (), "0/1", "Init:ExitCode:2"),
        ([waiting("CrashLoopBackOff"), waiting()], (), "0/1", "Init:CrashLoopBackOff"),
        ([RUNNING, waiting()], ("i0",), "0/2", "Init:0/2"),
    ],
)
def test_the_word_while_init_containers_run(init, sidecars, ready, word):
    statuses = [container(state, name=f"i{index}") for index, state in enumerate(init)]
    reported = pod(container(waiting("PodInitializing")), phase="Pending", init=statuses, sidecars=sidecars)
    assert (summary(reported).ready_text, summary(reported).status) == (ready, word)


def test_a_sidecar_that_has_started_counts_among_the_containers():
    sidecar = container(RUNNING, name="s", ready=True, started=True)
    reported = summary(pod(container(RUNNING, ready=True), init=[sidecar], sidecars=("s",)))
    assert (reported.ready_text, reported.status) == ("2/2", "Running")


def test_restarts_are_those_of_what_runs_now_and_when_the_last_was():
    init = container(ended(0), name="i", restarts=5)
    last = "2026-11-16T00:00:10Z"
    reported = summary(pod(container(RUNNING, ready=True, restarts=3, last=last), init=[init]))
    assert reported.restarts == 3
    assert reported.restarts_text(now=seconds_of(last) + 300) == "3 (5m ago)"
    starting = summary(
        pod(container(waiting("PodInitializing")), init=[container(RUNNING, name="i", restarts=5)])
    )
    assert starting.restarts_text() == "5"


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-5, "0s"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (599, "9m59s"),
        (600, "10m"),
        (3 * 3600 - 1, "179m"),
        (3 * 3600, "3h"),
        (7 * 3600 + 720, "7h12m"),
        (30 * 3600, "30h"),
        (2 * 86400, "2d"),
        (3 * 86400 + 7200, "3d2h"),
        (100 * 86400, "100d"),
        (800 * 86400, "2y70d"),
        (10 * 365 * 86400, "10y"),
    ],
)
def test_ages_have_the_two_units_that_matter(seconds, text):
    assert age(1000.0, 1000.0 + seconds) == text


def test_times_are_read_with_and_without_a_fraction():
    assert seconds_of("1970-01-01T00:01:00Z") == 60
    assert seconds_of("1970-01-01T00:01:00.25Z") == 60.25
    assert seconds_of("yesterday") is None
    assert age_of(None) == "<unknown>"


def test_what_a_stranger_wrote_cannot_move_the_cursor():
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"


def test_a_variable_is_shown_with_its_source_and_an_object_without_its_values():
    shown = {
        "envFrom": [
            {"prefix": "DB_", "secretRef": {"name": "db"}},
            {"configMapRef": {"name": "settings", "optional": True}},
        ],
        "env": [
            {"name": "MODE", "value": "test"},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
            {"name": "COLOUR", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "c", "optional": True}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ],
    }
    assert list(environment_lines(shown)) == [
        "Environment Variables from:",
        "  db  Secret with prefix 'DB_'  Optional: false",
        "  settings  ConfigMap  Optional: true",
        "Environment:",
        "  MODE: test",
        "  PASSWORD: <set to the key 'password' of secret 'db'>  Optional: false",
        "  COLOUR: <set to the key 'c' of config map 's'>  Optional: true",
        "  IP: (v1:status.podIP)",
        "  CPU: (limits.cpu)",
    ]
    assert list(environment_lines({})) == []


@pytest.mark.parametrize(
    "probe, shown",
    [
        ({"grpc": {"port": 9000}}, "grpc :9000"),
        ({"grpc": {"port": 9000, "service": "alive"}}, "grpc :9000 alive"),
        ({"tcpSocket": {"port": "db"}}, "tcp-socket :db"),
        ({"tcpSocket": {"port": 5, "host": "10.0.0.1"}}, "tcp-socket 10.0.0.1:5"),
        ({"httpGet": {"port": 80}}, "http-get http://:80/"),
        ({"exec": {"command": ["cat", "a b"]}}, "exec cat 'a b'"),
    ],
)
def test_a_probe_is_shown_as_kubectl_does(probe, shown):
    assert probe_text(probe) == f"{shown} delay=0s timeout=1s period=10s #success=1 #failure=3"
