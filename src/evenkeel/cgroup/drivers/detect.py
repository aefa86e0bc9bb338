"""The cgroups of this machine: version, mount points, controllers, and the driver for them."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from evenkeel.api.config import KubeletConfiguration
from evenkeel.cgroup import names
from evenkeel.cgroup.drivers.cgroupfs import Bounds
from evenkeel.cgroup.drivers.mounts import V2_CONTROLLERS, Mounts, parse_mountinfo
from evenkeel.cgroup.tree import Naming, Version
from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple

if TYPE_CHECKING:
    from evenkeel.cgroup.drivers.systemd import SystemdDriver
    from evenkeel.cgroup.drivers.v1 import V1Driver
    from evenkeel.cgroup.drivers.v2 import V2Driver


class CgroupMachine(NamedTuple):
    """`version` is the one that controls resources. A hybrid host has the controllers on v1, and a v2 hierarchy too."""

    version: Version
    mounts: Mounts
    v2_controllers: tuple[str, ...]

    @property
    def is_hybrid(self) -> bool:
        return bool(self.mounts.v1 and self.mounts.v2)

    @property
    def controllers(self) -> Mapping[str, str]:
        """The controllers that can be used, each with its mount point."""
        if self.version == Version.V1:
            return self.mounts.v1
        return dict.fromkeys(self.v2_controllers, self.mounts.v2)


def detect(mountinfo_path: str = "/proc/self/mountinfo") -> CgroupMachine:
    mounts = parse_mountinfo(_text(mountinfo_path))
    if not mounts.v1 and not mounts.v2:
        raise EvenkeelError(
            "no cgroup filesystem is mounted", hint="mount -t cgroup2 cgroup2 /sys/fs/cgroup, as root"
        )
    offered = _text(f"{mounts.v2}/cgroup.controllers").split() if mounts.v2 else []
    # A controller is either on v1 or on v2. The memory controller decides which version controls resources.
    version = Version.V1 if "memory" in mounts.v1 or not mounts.v2 else Version.V2
    return CgroupMachine(version, mounts, tuple(word for word in V2_CONTROLLERS if word in offered))


def driver_for(
    machine: CgroupMachine,
    config: KubeletConfiguration,
    readable: tuple[str, ...] = (),
    restored: Collection[str] = (),
) -> "V1Driver | V2Driver | SystemdDriver":
    """The driver for this machine's cgroups, bound to those that `config` gives us. `readable` are cgroups of others
    whose figures are wanted, `restored` those of others in which values have to be restored (B13)."""
    naming = Naming.SYSTEMD if config.cgroup_driver == "systemd" else Naming.CGROUPFS
    bounds = bounds_of(config, naming, readable)
    bounds = bounds._replace(reserved=(*bounds.reserved, *restored))
    if naming == Naming.SYSTEMD:
        if machine.version == Version.V1:
            raise EvenkeelError(
                "cgroupDriver systemd needs cgroup v2, and this machine has v1",
                hint="boot with systemd.unified_cgroup_hierarchy=1, or use --cgroup-driver cgroupfs",
            )
        from evenkeel.cgroup.drivers.systemd import SystemdDriver

        return SystemdDriver(machine.mounts.v2, bounds)
    if machine.version == Version.V1:
        from evenkeel.cgroup.drivers.v1 import V1Driver

        return V1Driver(machine.mounts, bounds)
    from evenkeel.cgroup.drivers.v2 import V2Driver

    return V2Driver(machine.mounts.v2, bounds)


def bounds_of(config: KubeletConfiguration, naming: Naming, readable: tuple[str, ...] = ()) -> Bounds:
    """With a cgroup root of `/`, only the pods' own root in it is ours."""
    root = names.pods_root(config.cgroup_root, per_qos=False)
    if not root:
        root = names.pods_root(config.cgroup_root, per_qos=config.cgroups_per_qos)
    path = names.to_cgroupfs(root) if naming == Naming.CGROUPFS else names.to_systemd(root)
    reserved = (config.kube_reserved_cgroup, config.system_reserved_cgroup)
    return Bounds(path, tuple(cgroup for cgroup in reserved if cgroup), readable)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError as error:
        raise EvenkeelError(f"cannot read {path}: {reason(error)}") from None
