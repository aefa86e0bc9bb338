"""Devices, settings of the kernel and programs with another's rights: things that would give root in a container access
to the machine."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.attacks.hostile import IMAGES, await_refused_or_done, await_said, hostile, said
from tests.kernel.agents import Up, with_host_path

pytestmark = pytest.mark.cgroup("v1", "v2")

# Writing one of these files would give the machine away. They are only opened, and closed again.
SETTINGS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/poweroff_cmd",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/vm/drop_caches",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/ksm/run",
    "/sys/kernel/debug/tracing/trace",
    "/sys/power/state",
    "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory.max",
)
DEVICES = {"disk": (stat.S_IFBLK, 7, 0), "memory": (stat.S_IFCHR, 1, 1), "control": (stat.S_IFCHR, 10, 237)}


def test_no_setting_of_the_machine_can_be_opened_for_writing(agent: Up):
    opening = "[ -e $one ] && (: >> $one) 2>/dev/null && echo opened $one"
    script = f"for one in {' '.join(SETTINGS)}; do {opening}; done; echo done; "
    for image in IMAGES if agent.containerd is None else ("image",):
        agent.apply(hostile(agent, f"sets-{image}", "sh", "-c", f"{script}exec sleep 100000", image=image))
        assert await_said(agent, f"sets-{image}") == ["done"]


@pytest.mark.parametrize("place", ["/proc", "/proc/self/attr", "/proc/1/../self/task", "/proc/sys/kernel"])
def test_no_volume_takes_the_place_of_the_kernels_own_files(agent: Up, place: str):
    """A container whose /proc were another's would be asked there for its own walls, such as an AppArmor profile."""
    volumes = [{"name": "own", "emptyDir": {}}]
    container = {"volumeMounts": [{"name": "own", "mountPath": place}]}
    script = "echo fake > /proc/began; grep -c ' - proc ' /proc/self/mountinfo; echo done"
    for image in IMAGES if agent.containerd is None else ("image",):
        name = f"covers-{image}"
        agent.apply(
            hostile(agent, name, "sh", "-c", script, image=image, container=container, volumes=volumes)
        )
        assert await_refused_or_done(agent, name), said(agent, name)


@pytest.mark.processes_only("runc allows it too, and has a test of its own")
def test_figures_of_the_machine_may_be_covered(agent: Up, tmp_path: Path):
    (tmp_path / "cpuinfo").write_text("one of its own\n")
    volumes = [{"name": "own", "hostPath": {"path": str(tmp_path / "cpuinfo"), "type": "File"}}]
    container = {"volumeMounts": [{"name": "own", "mountPath": "/proc/cpuinfo"}]}
    for image in IMAGES:
        words = ("sh", "-c", "cat /proc/cpuinfo; echo done; exec sleep 100000")
        agent.apply(
            hostile(agent, f"reads-{image}", *words, image=image, container=container, volumes=volumes)
        )
        assert await_said(agent, f"reads-{image}") == ["one of its own", "done"]


def test_a_device_node_in_a_volume_opens_no_device_and_none_can_be_made(agent: Up, tmp_path: Path):
    place = tmp_path / "devices"
    place.mkdir()
    for name, (kind, major, minor) in DEVICES.items():
        os.mknod(place / name, kind | 0o666, os.makedev(major, minor))
    script = (
        f"cd {place}; for one in {' '.join(DEVICES)}; do (: < $one) 2>/dev/null && echo opened $one; done; "
        "mknod /tmp/own b 7 0 2>/dev/null && (: < /tmp/own) 2>/dev/null && echo made one; echo done; exec sleep 100000"
    )
    agent.apply(with_host_path(hostile(agent, "opens", "sh", "-c", script), place))
    assert await_said(agent, "opens") == ["done"]


@pytest.mark.processes_only(
    "as in Kubernetes, a runtime for containers needs allowPrivilegeEscalation: false"
)
def test_a_set_user_id_program_in_a_volume_gives_no_rights(agent: Up, tmp_path: Path):
    place = tmp_path / "programs"
    place.mkdir(mode=0o755)
    shutil.copy("/usr/bin/id", place / "id")
    (place / "id").chmod(0o4755)
    user = {"securityContext": {"runAsUser": 65534}}
    runs = hostile(
        agent, "runs", "sh", "-c", "/mnt/id -u; echo done; exec sleep 100000", image="host", container=user
    )
    agent.apply(with_host_path(runs, place, at="/mnt"))  # it may not walk through root's own directories
    assert await_said(agent, "runs") == ["65534", "done"]
