"""kubectl through the API server, on nodes of both runtimes: logs, commands, ports, files, figures."""

import hashlib
import http.client
import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubectl_sessions import Running
from tests.cluster.nodes import MakeNode, Node
from tests.cluster.workspaces import SLEEP, Workspace, pod, restarts, shell
from tests.kernel.agents import RUNTIMES
from tests.kernel.sessions import Terminal, open_streams
from tests.kernel.waiting import eventually

MIB = 1 << 20
PORT = 10250
WEB = "exec busybox httpd -f -p 8080 -h /tmp"


@pytest.fixture(scope="module", params=RUNTIMES)
def node(request: pytest.FixtureRequest, make_node: MakeNode) -> Iterator[Node]:
    is_cri = request.param == "cri"
    with make_node(f"serving-{request.param}", with_containerd=is_cri) as one:
        one.start()
        yield one


@pytest.fixture
def pods(plane: ControlPlane, workspace: Workspace, node: Node) -> Running:
    return Running(plane, workspace, node)


def test_logs(pods: Running):
    pods.start("talks", *shell("for i in 1 2 3; do echo line $i; done; echo wrong >&2; sleep infinity"))
    eventually(lambda: pods.done("logs", "talks").count(b"\n") == 4)
    whole = pods.done("logs", "talks")
    assert set(whole.splitlines()) == {b"line 1", b"line 2", b"line 3", b"wrong"}
    assert pods.done("logs", "talks", "--tail=0") == b""
    assert pods.done("logs", "talks", "--limit-bytes=6") == whole[:6]  # the streams may overtake each other
    stamped = pods.done("logs", "talks", "--timestamps").decode().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ", line) for line in stamped)
    # The API server passes whole seconds on.
    for moment, lines in ((stamped[0].split()[0], 4), ("2100-01-01T00:00:00Z", 0)):
        assert len(pods.done("logs", "talks", f"--since-time={moment}").splitlines()) == lines
    refused = pods.kubectl("logs", "talks", "--previous")
    assert refused.returncode != 0
    assert b"previous terminated container" in refused.stderr


def test_the_log_of_the_run_before(pods: Running, workspace: Workspace):
    run = pod(
        "again", *shell("echo run $$; exit 1"), container={"image": pods.image}, nodeName=pods.node.name
    )
    workspace.apply(run)
    workspace.until("again", lambda one: restarts(one) >= 1)
    assert pods.done("logs", "again", "--previous").startswith(b"run ")


def test_a_followed_log_comes_line_by_line_and_ends_with_its_container(pods: Running):
    pods.start("follows", *shell("while read word; do echo $word; done; sleep 1"), container={"stdin": True})
    with pods.begun("logs", "--follow", "follows") as following:
        assert following.stdout
        with pods.begun("attach", "--stdin", "--quiet", "follows", stdin=subprocess.PIPE) as attached:
            assert attached.stdin
            for word in (b"one\n", b"two\n"):
                attached.stdin.write(word)
                attached.stdin.flush()
                assert following.stdout.readline() == word
        pods.done("delete", "pod", "follows", "--wait=false")
        assert following.stdout.read() == b""
        assert following.wait(60) == 0


def test_a_command_with_its_streams_and_exit_code(pods: Running):
    pods.start("runs", *SLEEP)
    done = pods.kubectl("exec", "runs", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, b"out\n")
    assert done.stderr.startswith(b"err\n")
    assert pods.done("exec", "--stdin", "runs", "--", "cat", said=b"a\0b\n") == b"a\0b\n"
    assert pods.kubectl("exec", "runs", "--", "no-such-program").returncode in (126, 127)
    words = ["a b", "*", "ä", "", "'\"\\"]
    assert pods.done("exec", "runs", "--", "printf", "%s\\n", *words) == "\n".join([*words, ""]).encode()


def test_much_in_both_directions(pods: Running):
    """100 MB come out, and as many go in, unharmed."""
    size = 100_000_000
    pods.start("moves", *SLEEP)
    with pods.begun("exec", "moves", "--", "head", "-c", str(size), "/dev/zero") as printing:
        assert printing.stdout
        seen, digest = 0, hashlib.sha256()
        while part := printing.stdout.read(MIB):
            seen += len(part)
            digest.update(part)
        assert printing.wait(60) == 0
    assert seen == size
    with subprocess.Popen(["head", "-c", str(size), "/dev/zero"], stdout=subprocess.PIPE) as said:
        taken = subprocess.run(
            pods.command("exec", "--stdin", "moves", "--", "sha256sum"), stdin=said.stdout, capture_output=True,
            timeout=300, check=True,
        )  # fmt: skip
    assert taken.stdout.split()[0].decode() == digest.hexdigest()


def test_a_terminal_and_its_size(pods: Running):
    pods.start("types", *SLEEP)
    terminal = Terminal(pods.command("exec", "-it", "types", "--", "sh"), columns=101, rows=33)
    try:
        terminal.await_size(101, 33)
        terminal.resize(60, 20)
        terminal.await_size(60, 20)
        terminal.type("exit 5\n")
        assert terminal.exit_code() == 5
    finally:
        terminal.close()


def test_a_port_of_a_pod(pods: Running):
    """Several connections beside each other, also to a port at which nothing listens."""
    # kubectl ends with the first connection that is refused: none may come before the server listens.
    listens = {"tcpSocket": {"port": 8080}, "periodSeconds": 1, "failureThreshold": 600}
    served = shell(f"head -c 300000 /dev/zero > /tmp/file; {WEB}")
    pods.start("serves", *served, container={"readinessProbe": listens})
    with pods.begun("port-forward", "pod/serves", ":8080", ":1", stderr=subprocess.PIPE) as forwarding:
        assert forwarding.stdout
        ports: dict[str, int] = {}
        while len(ports) < 2:
            line = forwarding.stdout.readline()
            assert line, forwarding.communicate()[1]
            if found := re.search(rb"127\.0\.0\.1:(\d+) -> (\d+)", line):
                ports[found[2].decode()] = int(found[1])

        def fetched() -> int:
            connection = http.client.HTTPConnection("127.0.0.1", ports["8080"], timeout=60)
            connection.request("GET", "/file")
            size = len(connection.getresponse().read())
            connection.close()
            return size

        def nothing() -> bytes:
            with socket.create_connection(("127.0.0.1", ports["1"]), timeout=60) as one:
                return one.recv(1)

        sizes: list[int] = []
        threads = [threading.Thread(target=lambda: sizes.append(fetched())) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sizes == [300_000] * 10
        assert nothing() == b""
        assert forwarding.stderr
        assert any(b"cannot be reached" in line for line in forwarding.stderr)


def test_files_are_copied_both_ways(pods: Running, tmp_path: Path):
    pods.start("keeps", *SLEEP)
    (tmp_path / "there").write_bytes(os.urandom(3 * MIB))
    pods.done("cp", str(tmp_path / "there"), "keeps:/tmp/kept")
    pods.done("cp", "keeps:/tmp/kept", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "there").read_bytes()


def test_an_aborted_client_leaves_no_command(pods: Running):
    uid = pods.start("left", *SLEEP)["metadata"]["uid"]
    before = pods.processes(uid)
    with pods.begun("exec", "left", "--", "sh", "-c", "echo on; sleep infinity") as one:
        assert one.stdout
        assert one.stdout.readline() == b"on\n"
        assert pods.processes(uid) - before
        one.send_signal(signal.SIGKILL)
        one.wait()
        eventually(lambda: pods.processes(uid) <= before)


def test_many_sessions_leave_nothing_open(pods: Running):
    uid = pods.start("many", *SLEEP)["metadata"]["uid"]
    agent = pods.node.agent
    pods.done("exec", "many", "--", "true")  # what is opened once, is open now
    assert pods.done("logs", "many") == b""  # it runs, and has said nothing
    processes = pods.processes(uid)
    before = Counter(open_streams(agent.pid))  # of these some may be about to be closed
    running = [
        subprocess.Popen(pods.command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for number in range(8)
        for words in (
            ("exec", "many", "--", "true"),
            ("logs", "--follow", "many"),
            ("exec", "many", "--", "sleep", "60"),
        )
    ]
    for one in running[::3]:
        assert one.wait(120) == 0
    for one in running:
        one.kill()
        one.wait()
    eventually(lambda: pods.processes(uid) <= processes)
    before["socket"] += 4  # the API server keeps a few idle connections to the node
    left: Counter[str] = Counter()

    def is_closed() -> bool:
        """What is left of each kind is counted, since the end of a session closes one after the other."""
        left.clear()
        left.update(Counter(open_streams(agent.pid)) - before)
        return not left

    eventually(is_closed, details=lambda: f"open are {left}")


METRIC = re.compile(r"^([a-z_]+)(?:\{(.*)\})? [0-9.e+-]+( \d+)?$")  # name, labels, timestamp


def test_metrics_server_finds_what_it_reads(pods: Running, plane: ControlPlane):
    """It parses these names, needs a timestamp with each figure, and container_start_time_seconds."""
    pods.start("counted", *SLEEP)
    raw = f"/api/v1/nodes/{pods.node.name}/proxy"

    def found() -> dict[str, list[str]]:
        lines = plane.kubectl("get", "--raw", f"{raw}/metrics/resource").splitlines()
        parsed = [METRIC.match(line) for line in lines if not line.startswith("#")]
        names: dict[str, list[str]] = {}
        for one in parsed:
            # The start has no timestamp, as with kubelet.
            if one and (one[3] or one[1] == "container_start_time_seconds"):
                names.setdefault(one[1], []).append(one[2] or "")
        return names

    def is_counted(names: dict[str, list[str]]) -> bool:
        """Figures are taken now and then, and those of a moment ago may be of other pods."""
        return all(
            any('container="main"' in labels and 'pod="counted"' in labels for labels in names.get(name, ()))
            for name in (
                "container_cpu_usage_seconds_total",
                "container_memory_working_set_bytes",
                "container_start_time_seconds",
            )
        )

    seen = eventually(lambda: names if is_counted(names := found()) else None)
    assert {"node_cpu_usage_seconds_total", "node_memory_working_set_bytes"} <= seen.keys()
    assert plane.kubectl("get", "--raw", f"{raw}/healthz") == "ok"
    for path in ("/stats/summary", "/pods", "/runningpods/", "/configz", "/metrics", "/metrics/cadvisor"):
        assert plane.kubectl("get", "--raw", raw + path)
    assert "NotFound" in plane.try_kubectl("get", "--raw", f"{raw}/debug/pprof/").stderr


def asked(node: Node, path: str, *, token: str = "", client: tuple[Path, Path] | None = None) -> int:
    """The HTTP status that the node's server answers to a client on the node's own network; 0 if it does not answer."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the certificate does not matter here
    if client is not None:
        context.load_cert_chain(*map(str, client))

    def ask() -> int:
        connection = http.client.HTTPSConnection(node.place.address, PORT, context=context, timeout=30)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    return node.place.network.asked(ask)


PATHS = (
    "/pods",
    "/metrics",
    "/configz",
    "/containerLogs/default/a/b",
    "/exec/default/a/b?command=id&output=1",
    "/x",
)


def test_only_clients_that_the_cluster_allows_get_in(node: Node, plane: ControlPlane, workspace: Workspace):
    """Rights count from the moment when the cluster gives them."""
    account = f"--serviceaccount={workspace.name}:default"
    token = workspace.kubectl("create", "token", "default").strip()
    admin = plane.authority.client("server-admin", "jane", "system:masters")
    other_node = plane.authority.client("server-node", "system:node:another", "system:nodes")
    for path in PATHS:
        assert asked(node, path) == 401
        assert asked(node, path, token="made-up") == 401
        assert asked(node, path, token=token) == 403
        assert asked(node, path, client=other_node) == 403
    assert asked(node, "/pods", client=admin) == 200
    name = f"metrics-{secrets.token_hex(3)}"
    plane.kubectl("create", "clusterrole", name, "--verb=get", "--resource=nodes/metrics")
    plane.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", account)
    try:
        eventually(lambda: asked(node, "/metrics/resource", token=token) == 200)
        assert asked(node, "/pods", token=token) == 403
    finally:
        plane.kubectl("delete", "clusterrolebinding,clusterrole", name)


LOOK = """
import http.client, ssl, sys
node, context = sys.argv[1], ssl._create_unverified_context()
token = open("/var/run/secrets/kubernetes.io/serviceaccount/token").read()
for headers in ({}, {"Authorization": "Bearer " + token}):
    for path in ("/pods", "/exec/default/a/b?command=id&output=1", "/containerLogs/kube-system/a/b", "/nothing"):
        one = http.client.HTTPSConnection(node, 10250, context=context, timeout=30)
        one.request("GET", path, headers=headers)
        print(one.getresponse().status)
print("done")
"""


@pytest.mark.parametrize("has_host_network", [True, False])
def test_a_pod_of_the_node_gets_nothing(pods: Running, has_host_network: bool):
    """Neither without credentials nor with the token that every pod has."""
    if pods.node.agent.containerd is not None:
        pytest.skip("the image has no Python; the pod's network is the same")
    pods.start(
        "looks",
        *("python3", "-c", f"{LOOK}\nimport time; time.sleep(3600)", pods.node.place.address),
        hostNetwork=has_host_network,
        container={
            "resources": {"limits": {"memory": "64Mi"}},
            "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}],
        },
    )
    eventually(lambda: b"done" in pods.done("logs", "looks"))
    assert pods.done("logs", "looks").split() == [b"401"] * 4 + [b"403"] * 4 + [b"done"]


def test_a_pod_that_is_not_on_the_node_is_not_there(node: Node, plane: ControlPlane):
    admin = plane.authority.client("server-admin", "jane", "system:masters")
    for path in (
        "/containerLogs/default/none/main",
        "/containerLogs/..%2f..%2fetc/passwd/x",
        "/containerLogs/a/b/..",
    ):
        assert asked(node, path, client=admin) == 404
