"""The control plane that the other tests rely on is a real one: it refuses what it should, and signs and binds."""

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.binaries import kubernetes_version
from tests.cluster.control_plane import ControlPlane, Place
from tests.cluster.workspaces import Workspace
from tests.kernel.waiting import eventually


@pytest.fixture(scope="module")
def place(plane: ControlPlane) -> Place:
    return plane.place("elsewhere")


def as_node(
    plane: ControlPlane, place: Place, kubeconfig: Path, *arguments: str, sent: str = ""
) -> tuple[int, str]:
    """The output of kubectl, run at the node's place with that kubeconfig."""
    command = [*place.network.within, str(plane.kubectl_program), f"--kubeconfig={kubeconfig}", *arguments]
    done = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_client_and_server_have_the_pinned_version(plane: ControlPlane):
    versions = json.loads(plane.kubectl("version", "--output=json"))
    reported = {versions[side]["gitVersion"] for side in ("clientVersion", "serverVersion")}
    assert reported == {kubernetes_version()}


def test_a_node_sees_and_changes_only_what_is_its_own(plane: ControlPlane, place: Place):
    plane.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "another"}})
    try:
        for refused in (
            ("get", "secrets", "--all-namespaces"),
            ("label", "node", "another", "a=b"),
            ("get", "pods", "--all-namespaces"),
        ):
            status, said = as_node(plane, place, place.kubeconfig, *refused)
            assert status != 0, said
            assert "Forbidden" in said or "forbidden" in said
        status, said = as_node(
            plane, place, place.kubeconfig, "get", "pods", "--all-namespaces",
            f"--field-selector=spec.nodeName={place.name}",
        )  # fmt: skip
        assert status == 0, said
    finally:
        plane.kubectl("delete", "node", "another")


def test_a_node_with_the_bootstrap_token_gets_its_certificate(
    plane: ControlPlane, place: Place, tmp_path: Path
):
    subject = ["-subj", "/O=system:nodes/CN=system:node:newcomer", "-keyout", str(tmp_path / "key")]
    request = subprocess.run(
        [
            "openssl",
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            *subject,
        ],
        capture_output=True,
        check=True,
    ).stdout
    signing: dict[str, Any] = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": "newcomer"},
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        },
    }
    bootstrap = plane.bootstrap_kubeconfig()
    status, said = as_node(plane, place, bootstrap, "create", "--filename=-", sent=json.dumps(signing))
    assert status == 0, said
    eventually(lambda: plane.get("csr", "newcomer")["status"].get("certificate"))


def test_the_api_server_knows_after_a_restart_what_it_knew(plane: ControlPlane, workspace: Workspace):
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kept", "namespace": workspace.name},
    }
    plane.apply({**config, "data": {"key": "value"}})
    plane.stop_api_server()
    try:
        assert plane.try_kubectl("get", "nodes").returncode != 0
    finally:
        plane.start_api_server()
    assert plane.get("configmap", "kept", f"--namespace={workspace.name}")["data"] == {"key": "value"}
