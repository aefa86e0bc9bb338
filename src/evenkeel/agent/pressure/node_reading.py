"""What the watch over disk and processes reads: the node's figures at every look, the pods' for a decision."""

import os
from typing import NamedTuple

from evenkeel.agent.pressure.roster import Member
from evenkeel.api.amount import Amount
from evenkeel.api.profile import Profile
from evenkeel.host.capacity import filesystem, processes
from evenkeel.policy.eviction.snapshot import NodeFigures, PodFigures, ProcessFigures


class NodeRoster(NamedTuple):
    """Whom the watch has to know; never changed, handed over whole."""

    path: str = ""  # of the pods' cgroup
    members: tuple[Member, ...] = ()
    pids_top: str = ""  # before the paths of cgroups, where their pids.current is


class NodeReading:
    """`most_processes` is what the node was said to have, which may be less than the machine has."""

    def __init__(self, storage_path: str, images_path: str, most_processes: int, profile: Profile) -> None:
        self.roster = NodeRoster()
        self._storage_path = storage_path
        self._images_path = images_path
        self._most_processes = most_processes
        self._profile = profile

    def look(self) -> NodeFigures:
        nodefs = filesystem(self._storage_path)
        node = NodeFigures(nodefs=nodefs, processes=self.processes())
        try:
            is_apart = os.stat(self._images_path).st_dev != os.stat(self._storage_path).st_dev
        except OSError:
            is_apart = False
        if is_apart:  # layers lie with the pods, images alone lie there
            return node._replace(
                imagefs=filesystem(self._images_path),
                containerfs=nodefs,
                dedicated_imagefs=True,
                separate_containerfs=True,
            )
        # Kubelet holds the thresholds of images against the one filesystem too.
        return node._replace(imagefs=nodefs) if self._profile is Profile.KUBERNETES else node

    def processes(self) -> ProcessFigures:
        """The machine's; or those of the pods alone, where the node was said to have fewer than the machine and has
        fewer left."""
        machine = processes()
        if machine.maximum is None or self._most_processes >= machine.maximum:
            return machine
        used = self.process_count(self.roster.path)
        left = machine.maximum - (machine.running or 0)
        if used is None or self._most_processes - used > left:
            return machine
        return ProcessFigures(Amount(self._most_processes), Amount(used))

    def process_count(self, path: str) -> int | None:
        """In the cgroup of this path and below it; None if it is gone, or nobody counts."""
        if not self.roster.pids_top or not path:
            return None
        try:
            with open(f"{self.roster.pids_top}{path}/pids.current", "rb", buffering=0) as file:
                return int(file.read())
        except (OSError, ValueError):
            return None

    def pod(self, member: Member) -> PodFigures:
        """Its processes; the disk is another's to tell."""
        count = self.process_count(member.path)
        return PodFigures(process_count=None if count is None else Amount(count))
