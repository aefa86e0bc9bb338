"""Networks of pods that have one of their own (`hostNetwork: false`): a network namespace for each pod, joined to the
host by a bridge.

The CNI plugins of the field do the work (Debian: containernetworking-plugins): `bridge` and `host-local` make the
interface and its address, `portmap` forwards the pod's host ports. A pod's namespace is a mount below the memory
directory of the pod, so it outlives agent and supervisor, and it is gone after a reboot.

All functions block, except `refusal` and `addresses`.
"""

import fcntl
import hashlib
import ipaddress
import json
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from evenkeel.api.pod import Pod
from evenkeel.errors import EvenkeelError, reason
from evenkeel.host.files import read_text
from evenkeel.runtime import memory_mounts, syscalls
from evenkeel.runtime.paths import StatePaths, make_directory, names_in, read_json, write_json
from evenkeel.runtime.process.user_namespaces import inhabitant, mount_namespace

PLUGIN_DIRECTORIES = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
PLUGINS = ("bridge", "host-local", "portmap")

_VERSION = "0.4.0"  # of the CNI specification; every plugin of the last years knows it
_NAME = "evenkeel"
_INTERFACE = "eth0"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"  # the plugins execute iptables
_CALL_SECONDS = 60.0
_MOST_ANSWER_BYTES = 1 << 20
_CANDIDATES = tuple(ipaddress.IPv4Network((f"10.{second}.0.0", 20)) for second in range(89, 120))

_RECORD = "network"  # in the pod's directory
_SUBNET = "subnet"  # in the directory of all networks
_LO_UP = struct.pack("16sh14x", b"lo", 1)  # struct ifreq with IFF_UP
_SIOCSIFFLAGS, _SIOCBRDELBR = 0x8914, 0x89A1


class NetworkRefused(EvenkeelError):
    """A pod cannot have a network of its own."""


class Joined(NamedTuple):
    """A pod's network, as in its record. It is written before the plugins are called, and again after."""

    namespace: str
    network: dict[str, Any]  # the configuration with which the pod was joined; it is needed to leave
    ports: list[dict[str, Any]]
    pod: str
    result: dict[str, Any] | None = None


class PodNetworks:
    """The networks of all pods of one state directory. `cidr` is KubeletConfiguration's podCIDR; without it, a subnet
    that this machine does not use yet is taken."""

    def __init__(
        self, paths: StatePaths, cidr: str = "", plugin_directories: Sequence[str] = PLUGIN_DIRECTORIES
    ) -> None:
        self._paths = paths
        self._directory = f"{paths.root}/networks"
        self._cidr = _checked_subnet(cidr)
        self._plugin_directories = tuple(plugin_directories)
        self._lock = threading.Lock()
        self._of_pod: dict[str, threading.Lock] = {}  # the containers of a pod are started at once
        self._addresses: dict[str, tuple[str, ...]] = {}

    @property
    def bridge(self) -> str:
        """Each state directory has its own, since each has its own addresses."""
        return f"ek-{hashlib.sha256(self._paths.root.encode()).hexdigest()[:8]}"

    def refusal(self) -> str:
        """Returns why no pod can have a network of its own here; empty if pods can."""
        missing = [name for name in PLUGINS if not self._plugin(name)]
        if not missing:
            return ""
        return (
            f"hostNetwork: false needs the CNI plugins {', '.join(missing)}, and they are in none of "
            f"{', '.join(self._plugin_directories)} (apt install containernetworking-plugins)"
        )

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
                self._addresses[uid] = _addresses(joined.result)

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
            self._addresses[uid] = _addresses(before.result)
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
            result = self._call("ADD", uid, joined)
            write_json(self._paths.pod(uid), _RECORD, joined._replace(result=result)._asdict())
        except (OSError, EvenkeelError) as error:
            self._leave(uid)
            why = error.message if isinstance(error, EvenkeelError) else reason(error)
            raise NetworkRefused(f"the pod's network cannot be made: {why}") from None
        self._addresses[uid] = _addresses(result)

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
        with suppress(NetworkRefused, OSError):  # the rest is removed all the same
            self._call("DEL", uid, joined)
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
        """Returns the subnet of all pods. The choice is kept, so pods of one agent never meet another's."""
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

    def _call(self, command: str, uid: str, joined: Joined) -> dict[str, Any]:
        """Calls the plugins in their order; to leave, in the reverse order. Returns the result of the last."""
        plugins = joined.network["plugins"]
        result = joined.result
        for plugin in plugins if command == "ADD" else reversed(plugins):
            config = {key: value for key, value in plugin.items() if key != "capabilities"}
            config |= {"cniVersion": joined.network["cniVersion"], "name": joined.network["name"]}
            if "portMappings" in plugin.get("capabilities", {}):
                config["runtimeConfig"] = {"portMappings": joined.ports}
            if result is not None:
                config["prevResult"] = result
            answer = self._execute(command, plugin["type"], uid, joined, config)
            if command == "ADD":
                result = answer
        return result or {}

    def _execute(
        self, command: str, plugin: str, uid: str, joined: Joined, config: Mapping[str, Any]
    ) -> dict[str, Any]:
        path = self._plugin(plugin)
        if not path:
            raise NetworkRefused(self.refusal() or f"the CNI plugin {plugin} is not installed")
        namespace, _, name = joined.pod.partition("/")
        environment = {
            "PATH": _PATH,
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": uid,
            "CNI_NETNS": joined.namespace if os.path.ismount(joined.namespace) else "",
            "CNI_IFNAME": _INTERFACE,
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}",
            "CNI_PATH": ":".join(self._plugin_directories),
        }
        try:
            done = subprocess.run(  # noqa: S603 the path is one of ours, and there is no shell
                [path],
                input=json.dumps(config).encode(),
                capture_output=True,
                env=environment,
                cwd="/",
                timeout=_CALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NetworkRefused(f"the CNI plugin {plugin} did not end within {_CALL_SECONDS:g} s") from None
        answer = _parsed(done.stdout[:_MOST_ANSWER_BYTES])
        if done.returncode != 0:
            said = (
                answer.get("msg") or done.stderr[-500:].decode(errors="replace").strip() or "no reason given"
            )
            raise NetworkRefused(f"the CNI plugin {plugin} refused {command}: {said}")
        return answer

    def _plugin(self, name: str) -> str:
        paths = (f"{directory}/{name}" for directory in self._plugin_directories)
        return next((path for path in paths if os.access(path, os.X_OK)), "")

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


def _addresses(result: Mapping[str, Any]) -> tuple[str, ...]:
    found = (str(one.get("address", "")).partition("/")[0] for one in result.get("ips", ()))
    return tuple(filter(None, found))


def _routes(table: str) -> Iterator[ipaddress.IPv4Network]:
    """Yields the destinations of /proc/net/route, except the default route. Pure."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        destination, mask = (struct.pack("<I", int(fields[at], 16)) for at in (1, 7))
        if any(mask):
            yield ipaddress.IPv4Network((destination, int.from_bytes(mask, "big").bit_count()))


def _parsed(answer: bytes) -> dict[str, Any]:
    try:
        value = json.loads(answer)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
