"""Networks of pods that have one of their own (`hostNetwork: false`): a network namespace for each pod, joined to the
host by a bridge.

The usual CNI plugins do the work (Debian: containernetworking-plugins), called by `network_plugins`: `bridge` and
`host-local` make the interface and its address, `portmap` forwards the pod's host ports. A pod's namespace is a mount
below the memory directory of the pod, so it outlives agent and supervisor, and it is gone after a reboot.

All functions block, except `refusal` and `addresses`.
"""

import fcntl
import hashlib
import ipaddress
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import read_text
from evenkeel.runtime import memory_mounts, syscalls
from evenkeel.runtime.paths import StatePaths, make_directory, names_in, read_json, write_json
from evenkeel.runtime.process.network_plugins import (
    PLUGIN_DIRECTORIES,
    Joined,
    NetworkPlugins,
    NetworkRefused,
    addresses_of,
)
from evenkeel.runtime.process.user_namespaces import inhabitant, mount_namespace

_VERSION = "0.4.0"  # of the CNI specification; every plugin of the last years knows it
_NAME = "evenkeel"
_CANDIDATES = tuple(ipaddress.IPv4Network((f"10.{second}.0.0", 20)) for second in range(89, 120))

_RECORD = "network"  # in the pod's directory
_SUBNET = "subnet"  # in the directory of all networks
_LO_UP = struct.pack("16sh14x", b"lo", 1)  # struct ifreq with IFF_UP
_SIOCSIFFLAGS, _SIOCBRDELBR = 0x8914, 0x89A1


class PodNetworks:
    """The networks of all pods of one state directory. `cidr` is KubeletConfiguration's podCIDR; without it, a subnet
    that this machine does not use yet is taken."""

    def __init__(
        self, paths: StatePaths, cidr: str = "", plugin_directories: Sequence[str] = PLUGIN_DIRECTORIES
    ) -> None:
        self._paths = paths
        self._directory = f"{paths.root}/networks"
        self._cidr = _checked_subnet(cidr)
        self._plugins = NetworkPlugins(plugin_directories)
        self._lock = threading.Lock()
        self._of_pod: dict[str, threading.Lock] = {}  # the containers of a pod are started at once
        self._addresses: dict[str, tuple[str, ...]] = {}

    @property
    def bridge(self) -> str:
        """Each state directory has its own, since each has its own addresses."""
        return f"ek-{hashlib.sha256(self._paths.root.encode()).hexdigest()[:8]}"

    def refusal(self) -> str:
        """Returns why no pod can have a network of its own here; empty if pods can."""
        return self._plugins.refusal()

    def namespace(self, uid: str) -> str:
        """Returns the path of the pod's network namespace, whether or not it exists."""
        return f"{self._paths.pod_memory(uid)}/.network"

    def addresses(self, uid: str) -> tuple[str, ...]:
        """Returns the pod's addresses; empty if it has no network of its own."""
        return self._addresses.get(uid, ())

    def take_up(self) -> None:
        """Reads the networks that a former agent has made."""
        for uid in names_in(self._paths.pods):
            joined = self._read(uid)
            if joined is not None and joined.result is not None:
                self._addresses[uid] = addresses_of(joined.result)

    def join(self, pod: Pod, users: str = "") -> None:
        """Gives the pod its network. May be repeated. Raises NetworkRefused; then nothing of it is left.

        `users` is the path of the pod's own user namespace. The network then belongs to its users.
        """
        with self._lock:
            of_pod = self._of_pod.setdefault(pod.metadata.uid, threading.Lock())
        with of_pod:
            self._join(pod, users)

    def _join(self, pod: Pod, users: str) -> None:
        uid = pod.metadata.uid
        before = self._read(uid)
        if before is not None and before.result is not None and os.path.ismount(before.namespace):
            self._addresses[uid] = addresses_of(before.result)
            return
        if before is not None:  # an agent was killed while it made the network, or the machine was rebooted
            self._leave(uid)
        namespace = self.namespace(uid)
        try:
            with self._lock:  # `leave` must not remove the bridge from now on
                joined = Joined(namespace, self._network(), _ports(pod), pod.key)
                make_directory(self._paths.pod(uid))
                write_json(self._paths.pod(uid), _RECORD, joined._asdict())
            memory_mounts.make_memory_directory(uid, self._paths)
            if users:
                _make_namespace_of(users, namespace)
            else:
                _make_namespace(namespace)
            result = self._plugins.add(uid, joined)
            write_json(self._paths.pod(uid), _RECORD, joined._replace(result=result)._asdict())
        except (OSError, EvenkeelError) as error:
            self._leave(uid)
            why = error.message if isinstance(error, EvenkeelError) else reason(error)
            raise NetworkRefused(f"the pod's network cannot be made: {why}") from None
        self._addresses[uid] = addresses_of(result)

    def leave(self, uid: str) -> None:
        """Takes the pod out of its network and removes its namespace. May be repeated."""
        self._leave(uid)
        with self._lock:
            self._of_pod.pop(uid, None)

    def _leave(self, uid: str) -> None:
        self._addresses.pop(uid, None)
        joined = self._read(uid)
        if joined is None:
            return
        with suppress(NetworkRefused):  # the rest is removed all the same
            self._plugins.delete(uid, joined)
        with suppress(OSError):
            syscalls.umount(joined.namespace, syscalls.MNT_DETACH | syscalls.UMOUNT_NOFOLLOW)
        for path in (joined.namespace, f"{self._paths.pod(uid)}/{_RECORD}"):
            with suppress(FileNotFoundError):
                os.unlink(path)
        with self._lock:
            if not any(self._read(other) for other in names_in(self._paths.pods)):
                _remove_bridge(self.bridge)

    # The plugins

    def _network(self) -> dict[str, Any]:
        ranges = [[{"subnet": str(self._subnet())}]]
        addresses = {
            "type": "host-local",
            "ranges": ranges,
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": f"{self._directory}/addresses",
        }
        bridge = {
            "type": "bridge",
            "bridge": self.bridge,
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": addresses,
        }
        portmap = {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}}
        return {"cniVersion": _VERSION, "name": _NAME, "plugins": [bridge, portmap]}

    def _subnet(self) -> ipaddress.IPv4Network:
        """Returns the subnet of all pods. The choice is kept, so that pods of two agents never have the same
        addresses."""
        if self._cidr is not None:
            return self._cidr
        kept = read_json(self._directory, _SUBNET)
        if kept is not None:
            return ipaddress.IPv4Network(str(kept.get("subnet")))
        used = [*_routes(read_text("/proc/net/route"))]
        free = next((one for one in _CANDIDATES if not any(one.overlaps(other) for other in used)), None)
        if free is None:
            raise NetworkRefused(
                "this machine uses all of 10.89.0.0 to 10.119.15.255; set podCIDR to a subnet it does not use"
            )
        make_directory(self._directory)
        write_json(self._directory, _SUBNET, {"subnet": str(free)})
        return free

    def _read(self, uid: str) -> Joined | None:
        value = read_json(self._paths.pod(uid), _RECORD)
        try:
            return None if value is None else Joined(**value)
        except TypeError:
            return None


def _checked_subnet(cidr: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(cidr) if cidr else None
    except ValueError as error:
        raise EvenkeelError(
            f"podCIDR {cidr!r}: {error}", hint="write a subnet such as 10.90.0.0/20"
        ) from None


def _make_namespace(path: str) -> None:
    """Makes a network namespace and mounts it at the path."""

    def make() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        _set_loopback_up()
        mount_namespace("/proc/thread-self/ns/net", path)

    _in_own_thread(make)


def _make_namespace_of(users: str, path: str) -> None:
    """Makes a network namespace that belongs to a user namespace."""

    def settle() -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            syscalls.setns(descriptor, syscalls.CLONE_NEWNET)
        finally:
            os.close(descriptor)
        _set_loopback_up()

    with inhabitant("nsenter", f"--user={users}", "unshare", "--net") as pid:
        mount_namespace(f"/proc/{pid}/ns/net", path)
    _in_own_thread(settle)


def _set_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as of_kernel:
        fcntl.ioctl(of_kernel, _SIOCSIFFLAGS, _LO_UP)


def _in_own_thread(act: Callable[[], None]) -> None:
    """A network namespace belongs to a thread. So a thread that ends enters it. Raises OSError."""
    problems: list[OSError] = []

    def run() -> None:
        try:
            act()
        except OSError as error:
            problems.append(error)

    thread = threading.Thread(target=run, name="evenkeel-network")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


def _remove_bridge(name: str) -> None:
    """The plugins leave the bridge behind. Without pods it is removed; the next pod makes it again."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as of_kernel:
        fcntl.ioctl(of_kernel, _SIOCSIFFLAGS, struct.pack("16sh14x", name.encode(), 0))
        fcntl.ioctl(of_kernel, _SIOCBRDELBR, name.encode().ljust(16, b"\0"))


def _ports(pod: Pod) -> list[dict[str, Any]]:
    return [
        {
            "hostPort": port.host_port,
            "containerPort": port.container_port,
            "protocol": (port.protocol or "TCP").lower(),
            **({"hostIP": port.host_ip} if port.host_ip else {}),
        }
        for port in pod.spec.host_ports
    ]


def _routes(table: str) -> Iterator[ipaddress.IPv4Network]:
    """Yields the destinations of /proc/net/route, except the default route. Pure."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (struct.pack("<I", int(fields[at], 16)) for at in (1, 7))
        if any(mask):
            yield ipaddress.IPv4Network((destination, int.from_bytes(mask, "big").bit_count()))
