"""Answers of kubelet that other programs rely on: rejected pods, warnings, and sessions of older clients."""

import json
import sys
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.nodes import Node
from tests.cluster.workspaces import SLEEP, Workspace, is_ready, pod, restarts
from tests.kernel.waiting import eventually
from tests.models.websocket_client import BASE64, PLAIN, V4, V4_BASE64, WebSocketClient

PORT = 8099
# Answers every request with a redirect to another host.
REDIRECTS = f"""
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(302)
        self.send_header("Location", "http://0.0.0.0/")
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"Found.")
http.server.HTTPServer(("", {PORT}), Handler).serve_forever()
"""


def events(workspace: Workspace, name: str) -> dict[str, str]:
    """The events of a pod: messages by their reasons."""
    found = json.loads(workspace.kubectl("get", "events", "--output=json"))["items"]
    return {one["reason"]: one["message"] for one in found if one["involvedObject"]["name"] == name}


@pytest.mark.parametrize(
    ("spec", "reason", "message"),
    [
        ({"os": {"name": "windows"}}, "PodOSNotSupported", "the OS field doesn't match node OS"),
        (
            {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}},
            "SysctlForbidden",
            'forbidden sysctl: "kernel.msgmax" not allowlisted',
        ),
    ],
)
def test_what_kubelet_rejects_fails_with_its_reason_and_words(
    workspace: Workspace, nodes: list[Node], spec: dict[str, Any], reason: str, message: str
):
    workspace.apply(pod("rejected", *SLEEP, nodeName=nodes[0].name, **spec))
    status = workspace.until_phase("rejected", "Failed")["status"]
    assert status["reason"] == reason
    assert status["message"].startswith("Pod was rejected: ")
    assert message in status["message"]
    assert message in eventually(lambda: events(workspace, "rejected").get(reason))
    assert not status.get("containerStatuses")


def test_a_pod_with_options_for_windows_runs(workspace: Workspace, nodes: list[Node]):
    options = {"windowsOptions": {"runAsUserName": "ContainerUser"}}
    workspace.apply(pod("both", *SLEEP, securityContext=options, container={"securityContext": options}))
    workspace.until("both", is_ready)


def test_a_probe_that_is_sent_elsewhere_is_warned_of(workspace: Workspace, nodes: list[Node]):
    probe = {"httpGet": {"port": PORT}, "periodSeconds": 1, "timeoutSeconds": 60}
    starts = {"tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 600}
    served = {"startupProbe": starts, "livenessProbe": probe, "readinessProbe": probe}
    command = (sys.executable, "-c", REDIRECTS)
    workspace.apply(pod("moved", *command, container=served, nodeName=nodes[0].name))
    workspace.until("moved", is_ready)  # a readiness probe that is warned of has succeeded
    reported = eventually(lambda: events(workspace, "moved").get("ProbeWarning"))
    assert reported.endswith("Probe terminated redirects, Response body: Found.")
    assert restarts(workspace.get("pod", "moved")) == 0


@pytest.mark.parametrize("protocol", [PLAIN, BASE64, V4, V4_BASE64])
def test_a_command_over_a_websocket_before_version_5(
    plane: ControlPlane, workspace: Workspace, nodes: list[Node], protocol: str
):
    workspace.apply(pod("works", *SLEEP))
    workspace.until("works", is_ready)
    words = [("command", word) for word in ("sh", "-c", "read a; echo heard $a; echo wrong >&2; exit 3")]
    asked = urlencode([*words, ("stdin", "1"), ("stdout", "1"), ("stderr", "1"), ("container", "main")])
    target = f"/api/v1/namespaces/{workspace.name}/pods/works/exec?{asked}"
    with WebSocketClient(plane.reader.connected(), target, protocol) as client:
        assert client.protocol == protocol
        client.send(0, b"this\n")
        said = list(client.messages())
    streams = {number: b"".join(data for channel, data in said if channel == number) for number in (1, 2, 3)}
    assert (streams[1], streams[2]) == (b"heard this\n", b"wrong\n")
    assert b"exit code 3" in streams[3]
