"""A container can change the host's files in its volumes, and no others."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.hostile import (
    IMAGES,
    await_refused_or_running,
    await_said,
    details_of,
    hostile,
    is_refused,
    outside,
    run_to_the_end,
    said,
)
from tests.kernel.agents import Up, pod
from tests.kernel.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.cgroup("v1", "v2")

NETWORK_FILES = ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname")
# Directories that every host has, and files in which much is decided.
HOST_PLACES = ("/", "/etc", "/usr", "/usr/bin", "/root", "/var", "/var/lib", "/home", "/opt", "/srv", "/boot",
               "/etc/passwd", "/etc/shadow", "/etc/hosts", "/etc/resolv.conf", "/etc/crontab")  # fmt: skip
READ_ONLY = {"securityContext": {"readOnlyRootFilesystem": True}}


def writable_files_of_the_host(lines: list[str]) -> list[str]:
    """The paths in the output of `reach` that can be written and are the host's own files."""
    found = []
    for line in lines:
        path, *rest = line.split()
        if rest and rest[-1] == "may-write" and Path(path).exists():
            status = Path(path).stat()
            if rest[:2] == [str(status.st_dev), str(status.st_ino)]:
                found.append(path)
    return found


def test_network_configuration_is_there_and_what_is_written_over_it_stays_in_its_pod(agent: Up):
    """The files may be the pod's own to write: neither the host nor another pod reads what is written there. They are
    not written here, since they might be the host's after all."""
    agent.apply(hostile(agent, "names", "cat", "/etc/hosts", restartPolicy="Never"))
    options = {"one": {}, "other": {}, "sealed": READ_ONLY}
    for name, container in options.items():
        agent.apply(hostile(agent, name, "reach", *NETWORK_FILES, container=container))
    one, other, sealed = (await_said(agent, name) for name in options)
    assert writable_files_of_the_host([*one, *sealed]) == []
    writable = ({line for line in lines if line.endswith("may-write")} for lines in (one, other))
    assert not set.intersection(*writable)
    agent.await_phase("names", "Succeeded")
    hosts = Path("/etc/hosts")
    known = hosts.read_text().splitlines() if hosts.exists() else []  # an emulated machine has none
    # A container runtime may know of the end before it has written the last line.
    eventually(
        lambda: not set(filter(None, known)) - set(said(agent, "names")),
        details=lambda: details_of(agent, "names"),
    )


@pytest.mark.long
@pytest.mark.processes_only("image: host is of processes")
def test_by_default_a_pod_on_the_hosts_files_changes_none_of_them(agent: Up, tmp_path: Path):
    (tmp_path / "outside").mkdir()
    places = [*HOST_PLACES, str(tmp_path), str(tmp_path / "outside")]
    lines = run_to_the_end(agent, "reach", "reach", *places, image="host")
    assert writable_files_of_the_host(lines) == []


@pytest.mark.processes_only("image: host is of processes")
def test_what_a_pod_on_the_hosts_files_makes_there_is_not_on_the_host(agent: Up, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    token = f"evenkeel-attack-{secrets.token_hex(4)}"
    places = [Path(place) / token for place in ("/etc", "/root", "/var/tmp", "/usr/local/bin", str(outside))]
    script = "; ".join(f"echo x > {path}" for path in places)
    try:
        agent.apply(pod("writes", ["sh", "-c", f"{script}; echo done; exec sleep 1000"]))
        await_said(agent, "writes")
        assert [str(path) for path in places if path.exists()] == []
    finally:
        for path in places:
            path.unlink(missing_ok=True)


@pytest.mark.long
@pytest.mark.processes_only("image: host is of processes")
def test_a_pod_on_the_hosts_files_starts_with_a_read_only_root(agent: Up):
    places = (*HOST_PLACES, "/tmp", "/dev/shm")
    for name, user in (("root", {}), ("nobody", {"runAsUser": 65534})):
        security = {"securityContext": {"readOnlyRootFilesystem": True, **user}}
        lines = run_to_the_end(agent, name, "reach", *places, image="host", container=security)
        assert writable_files_of_the_host(lines) == []


@pytest.mark.long
def test_volumes_are_still_written_to(agent: Up, tmp_path: Path):
    """The walls leave what a manifest asks for."""
    mounts = [{"name": "kept", "mountPath": "/mnt"}, {"name": "own", "mountPath": "/srv"}]
    script = "echo x > /mnt/x && echo y > /srv/y && echo done; exec sleep 1000"
    for image in IMAGES:
        (kept := tmp_path / f"kept-{image}").mkdir()
        volumes = [{"name": "kept", "hostPath": {"path": str(kept)}}, {"name": "own", "emptyDir": {}}]
        container = {"volumeMounts": mounts}
        name = f"writes-{image}"
        run_to_the_end(agent, name, "sh", "-c", script, image=image, container=container, volumes=volumes)
        assert (kept / "x").read_text() == "x\n"


@pytest.mark.processes_only("with containers the image is the runtime's")
def test_an_image_whose_network_configuration_is_a_dangling_symlink_starts(agent: Up, tmp_path: Path):
    dangling = ("../run/systemd/resolve/stub-resolv.conf", "/nowhere", "resolv.conf", "/proc/1/fd/99")
    pods = {}
    for name in ("resolv.conf", "hosts"):
        for number, leads_to in enumerate(dangling):
            pods[f"{name[:5]}-{number}"] = image = small_image(tmp_path / f"{name}-{number}")
            (image / "etc" / name).symlink_to(leads_to)
    for name, image in pods.items():
        agent.apply(pod(name, ["/bin/busybox", "sleep", "1000"], container={"image": str(image)}))
    for name in pods:
        assert not await_refused_or_running(agent, name, within_seconds=PATIENCE_SECONDS), agent.details_of(
            name
        )


@pytest.mark.long
@pytest.mark.processes_only("with containers the image is the runtime's")
def test_a_symlink_in_an_image_never_leads_what_is_made_for_it_to_the_host(agent: Up, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    images = {}
    for name in ("resolv.conf", "hosts", "hostname"):
        images[name] = image = small_image(tmp_path / name)
        (image / "etc" / name).symlink_to(f"../../../../../../../../../../../..{outside}/made")
    images["dev"] = image = small_image(tmp_path / "dev-image")
    (image / "dev").rmdir()
    (image / "dev").symlink_to(outside)
    images["proc"] = image = small_image(tmp_path / "proc-image")
    (image / "proc").rmdir()
    (image / "proc").symlink_to(f"../../../../../../../../../../../..{outside}")
    names = [name.replace(".", "-") for name in images]
    for name, image in zip(names, images.values(), strict=True):
        agent.apply(pod(name, ["/bin/busybox", "sleep", "1000"], container={"image": str(image)}))
    for name in names:
        await_refused_or_running(agent, name, within_seconds=PATIENCE_SECONDS)
    assert list(outside.iterdir()) == []
    assert [str(image) for name, image in images.items() if (image / "etc" / name).exists()] == []


def small_image(directory: Path) -> Path:
    """A directory with busybox alone, to be made strange."""
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
        (directory / name).mkdir(parents=True)
    (directory / "bin/busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (directory / "bin/busybox").chmod(0o755)
    return directory


def named_service(name: str) -> dict[str, Any]:
    spec = {"selector": {"app": name}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def test_a_pod_cannot_lead_the_agents_writes_elsewhere_and_keeps_no_names_from_others(
    agent: Up, tmp_path: Path
):
    """The agent writes /etc/hosts of running pods. A pod may try to replace its file by a link, or to make it huge."""
    marker = outside(tmp_path / "outside")
    agent.apply(named_service("web"))
    tries = f"ln -sf {marker} /etc/hosts; mv /tmp/x /etc/hosts; rm -f /etc/hosts; truncate -s 1T /etc/hosts"
    script = f"(ln -s {marker} /tmp/x; {tries}) 2>/dev/null; echo done; exec sleep 1000"
    agent.apply(hostile(agent, "spoils", "/bin/sh", "-c", script))
    await_said(agent, "spoils")
    looks = "until grep web.default.svc /etc/hosts; do sleep 0.1; done; echo done; exec sleep 1000"
    agent.apply(hostile(agent, "looks", "/bin/sh", "-c", looks))
    one = hostile(agent, "web", "/bin/sh", "-c", "exec sleep 1000")
    one["metadata"]["labels"] = {"app": "web"}
    agent.apply(one)
    await_said(agent, "looks")
    file = "main.*/etc/hosts" if agent.containerd is None else "main.*/hosts"
    (hosts,) = (agent.state / "pods" / agent.pod("spoils")["metadata"]["uid"]).glob(file)
    eventually(lambda: hosts.stat().st_size < 1 << 20)
    assert marker.read_text() == "the host's\n"
    agent.cli("delete", "service", "web")


def test_what_a_pod_left_in_a_claim_leads_the_next_pod_nowhere(agent: Up, tmp_path: Path):
    marker = outside(tmp_path / "outside")
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    agent.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept"}, "spec": spec}
    )
    volumes = [{"name": "kept", "persistentVolumeClaim": {"claimName": "kept"}}]
    mount = {"name": "kept", "mountPath": "/kept"}
    leaves = f"ln -s {marker.parent} /kept/out; ln -s ../../../../../.. /kept/up; echo done; exec sleep 1000"
    run = ("/bin/sh", "-c", leaves)
    run_to_the_end(agent, "leaves", *run, container={"volumeMounts": [mount]}, volumes=volumes)
    takes = "cat /kept/marker; echo x > /kept/marker; echo x > /kept/made; echo done; exec sleep 1000"
    for name in ("out", "up"):
        container = {"volumeMounts": [{**mount, "subPath": name}]}
        agent.apply(hostile(agent, name, "/bin/sh", "-c", takes, container=container, volumes=volumes))
    for name in ("out", "up"):
        eventually(
            lambda: "done" in said(agent, name) or is_waiting(agent, name),  # noqa: B023 called here
            details=lambda: details_of(agent, name),  # noqa: B023 called here
        )
        assert "the host's" not in said(agent, name)
    assert [path.name for path in marker.parent.iterdir()] == ["marker"]
    for name in ("leaves", "out", "up"):
        agent.cli("delete", "pod", name, "--grace-period", "0")
    agent.cli("delete", "pvc", "kept")
    assert marker.read_text() == "the host's\n"
    assert not (agent.state / "claims" / "default_kept").exists()


def is_waiting(agent: Up, name: str) -> bool:
    """Whether its container is not to be had as it is written."""
    status = agent.status(name)
    found = status.get("containerStatuses", ())
    reasons = [one["state"].get("waiting", {}).get("reason") for one in found]
    return is_refused(status) or any(reason not in (None, "ContainerCreating") for reason in reasons)
