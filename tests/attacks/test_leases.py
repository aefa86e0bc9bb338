"""No container makes the host wait: a lease on a file makes every process that opens it wait, for 45 seconds by
default. It takes no right to write."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.hostile import outside, run_to_the_end
from tests.kernel.agents import Up

pytestmark = pytest.mark.cgroup("v1", "v2")


@pytest.fixture
def marker() -> Iterator[Path]:
    """A file of the host where a pod on the host's files finds it: /tmp is not the host's there."""
    with tempfile.TemporaryDirectory(dir="/var/lib", prefix="evenkeel-attack-") as directory:
        yield outside(Path(directory) / "outside")


def opens_at_once(path: Path) -> bool:
    """Whether the file has no lease that would have to be broken first."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
    except BlockingIOError:
        return False
    return True


@pytest.mark.processes_only("the filters of container runtimes let them")
def test_a_pod_takes_no_leases_on_the_hosts_files(agent: Up, marker: Path):
    """Neither where it sees all of them, nor where it has some as a volume that it may only read."""
    where = {"image": "/mnt/marker", "host": str(marker)}
    volumes = [{"name": "some", "hostPath": {"path": str(marker.parent)}}]
    container = {"volumeMounts": [{"name": "some", "mountPath": "/mnt", "readOnly": True}]}
    for image, path in where.items():
        options = {"container": container, "volumes": volumes} if image == "image" else {}
        lines = run_to_the_end(agent, image, "lease", path, image=image, **options)
        assert lines == [f"{path} none", "done"]
        assert opens_at_once(marker)


@pytest.mark.processes_only("the filters of container runtimes let them")
def test_a_pod_that_asks_for_leases_has_them(agent: Up):
    container = {"securityContext": {"capabilities": {"add": ["LEASE"]}}}
    lines = run_to_the_end(agent, "asks", "lease", "/etc/passwd", container=container)
    assert lines[0] in ("/etc/passwd write", "/etc/passwd read")
