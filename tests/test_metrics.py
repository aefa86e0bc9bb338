"""The metrics for Prometheus and metrics-server: in the right format, under the names that they know, each once."""

import re
import subprocess

import pytest

from evenkeel.agent.observe.counters import Counters, Histogram, oom_scope
from evenkeel.server.metrics import node_metrics
from evenkeel.server.metrics_cgroups import Exposition, Labels, cadvisor_metrics, labels, resource_metrics
from tests.fake_front import FakeFront, running, served
from tests.models.agents import pods_of
from tests.models.http_client import ask
from tests.models.manifests import PODS
from tests.models.node_snapshots import MIB, SnapshotMaker

LINE = re.compile(r"^([a-z_]+)(\{[^ ]*\})? (-?[0-9.e+-]+)( [0-9]+)?$")


@pytest.fixture
def maker():
    maker = SnapshotMaker()
    counts = maker.counts
    pod = pods_of(PODS)[0]
    counts.evicted("memory.available")
    counts.happened(0.0, "Normal", "Admitted", pod, "", {})
    counts.happened(0.2, "Normal", "Started", pod, "app", {})
    counts.happened(0.0, "Warning", "DriftRepaired", None, "", {})
    counts.happened(0.0, "Normal", "MemoryBack", pod, "", {"seconds": 0.02, "bytes": 64 * MIB})
    figures = {"cgroup": "/a/pod/c", "limit_cgroup": "/a/pod", "constraint": "memcg"}
    counts.happened(0.0, "Warning", "OOMKilling", pod, "app", figures)
    counts.decision_seconds.observe(0.003)
    return maker


def texts(maker):
    pods = tuple(running(pod) for pod in pods_of(PODS))
    named = Labels()
    for _ in range(2):
        node_snapshot = maker.node_snapshot(pods)
    return {
        "node": node_metrics(node_snapshot, named).decode(),
        "resource": resource_metrics(node_snapshot, named).decode(),
        "cadvisor": cadvisor_metrics(node_snapshot, named).decode(),
    }


def values(text):
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            match = LINE.match(line)
            assert match, line
            assert (match[1], match[2]) not in found, f"{line} stands twice"
            found[match[1], match[2] or ""] = float(match[3])
    return found


@pytest.mark.parametrize("which", ["node", "resource", "cadvisor"])
def test_promtool_finds_nothing_to_complain_about(maker, prometheus, which):
    text = texts(maker)[which]
    promtool = prometheus / "usr/bin/promtool"
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_metrics_server_finds_what_it_reads(maker):
    found = values(texts(maker)["resource"])
    app = '{container="app",namespace="default",pod="web"}'
    assert found["container_cpu_usage_seconds_total", app] == 2.0
    assert found["container_memory_working_set_bytes", app] == 100 * MIB
    assert found["container_start_time_seconds", app] == 1_794_787_200
    assert found["pod_memory_working_set_bytes", '{namespace="default",pod="web"}'] == 100 * MIB
    assert found["node_cpu_usage_seconds_total", ""] == 10.0
    assert found["node_memory_working_set_bytes", ""] == 11 * 2**30
    assert found["scrape_error", ""] == found["resource_scrape_error", ""] == 0


def test_a_container_that_cannot_be_read_is_an_error_of_the_scrape(maker):
    pods = tuple(running(pod) for pod in pods_of(PODS))
    node_snapshot = maker.node_snapshot(pods)
    path = next(one.path for one in node_snapshot.sweep.tree.cgroups if one.container == "app")
    samples = {where: one for where, one in node_snapshot.sweep.samples.items() if where != path}
    node_snapshot = node_snapshot._replace(sweep=node_snapshot.sweep._replace(samples=samples))
    assert values(resource_metrics(node_snapshot, Labels()).decode())["scrape_error", ""] == 1


def test_pods_that_have_not_ended_are_among_what_is_requested(maker):
    found = values(texts(maker)["node"])
    assert found["evenkeel_node_requested", '{resource="pods"}'] == len(pods_of(PODS))


def test_what_the_agent_did_is_counted(maker):
    found = values(texts(maker)["node"])
    assert found["kubelet_evictions", '{eviction_signal="memory.available"}'] == 1
    assert found["evenkeel_drift_repaired_total", ""] == 1
    assert found["kubelet_started_pods_total", ""] == 1
    assert found["kubelet_pod_start_duration_seconds_count", ""] == 1
    assert found["kubelet_pod_start_duration_seconds_sum", ""] == 0.2
    assert found["evenkeel_eviction_decision_seconds_bucket", '{le="0.005"}'] == 1
    assert found["evenkeel_eviction_decision_seconds_bucket", '{le="0.002"}'] == 0
    assert found["evenkeel_eviction_memory_back_bytes_total", ""] == 64 * MIB
    killed = '{namespace="default",pod="web",container="app",scope="pod"}'
    assert found["evenkeel_oom_kills_total", killed] == 1


@pytest.mark.req("E17")
def test_requests_stand_beside_what_the_kernel_has(maker):
    found = values(texts(maker)["node"])
    app = '{container="app",namespace="default",pod="web",'
    assert found["evenkeel_container_request", app + 'resource="cpu"}'] == 0.1
    assert found["evenkeel_container_limit", app + 'resource="memory"}'] == 128 * MIB
    assert found["evenkeel_container_applied", app + 'file="memory.max"}'] == 128 * MIB


def test_each_cgroup_has_its_pressure(maker):
    found = values(texts(maker)["cadvisor"])
    waits = {
        where: value
        for (name, where), value in found.items()
        if name == "container_pressure_memory_waiting_seconds_total"
    }
    assert set(waits.values()) == {0.5}
    assert any('container="app"' in where for where in waits)


def test_scopes_of_oom_kills():
    assert oom_scope({"cgroup": "/p/c", "limit_cgroup": "/p/c"}) == "container"
    assert oom_scope({"cgroup": "/p/c", "limit_cgroup": "/p"}) == "pod"
    assert oom_scope({"cgroup": "/k/p/c", "limit_cgroup": "/k"}) == "pods"
    assert oom_scope({"cgroup": "/k/p/c", "constraint": "none"}) == "node"


def test_a_pod_is_started_once_however_many_containers_it_has_and_whoever_admitted_it():
    counts = Counters()
    pod = pods_of(PODS)[0]
    for _ in range(3):
        counts.happened(0.0, "Normal", "Started", pod, "app", {})
    assert counts.pods_started == 1
    assert sum(counts.pod_start_seconds.counts) == 0


def test_counts_are_bounded():
    counts = Counters()
    for number in range(3000):
        pod = pods_of(PODS.replace("name: web", f"name: web-{number}"))[0] if number % 600 == 0 else None
        counts.happened(0.0, "Warning", "OOMKilling", pod, f"c{number}", {})
        counts.happened(0.0, "Normal", "Admitted", pod, "", {})
    assert len(counts.oom_kills) == 2000


def test_a_histogram_counts_each_value_once_at_its_bound():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1]
    out = Exposition()
    out.histogram("x_seconds", "X.", histogram)
    assert b'x_seconds_bucket{le="+Inf"} 4\n' in out.text()


def test_labels_are_escaped():
    assert labels(a='x"y\\z\n') == '{a="x\\"y\\\\z\\n"}'


def test_a_scrape_is_text_and_made_once_for_a_sweep(tmp_path):
    front = FakeFront()
    front.keeps_snapshot = True
    with served(front, tmp_path) as agent:
        texts = {
            ask(agent, "GET", f"/metrics{which}")[1] for which in ("", "/resource", "/cadvisor") for _ in "ab"
        }
        assert len(texts) == 3
        assert all(text.startswith(b"# HELP ") for text in texts)
