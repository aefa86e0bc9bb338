"""Calls CNI plugins, the programs that join a pod to its network, and checks their answers.

A plugin is a program of the machine's owner, and may be broken. So its time and the size of its answer are bounded.
Every address in the answer must be one of the network that was asked for, because addresses go into the pod's status
and into /etc/hosts, and probes are sent to them.
"""

import ipaddress
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from evenkeel.errors import EvenkeelError, reason
from evenkeel.named_tuples import NamedTuple
from evenkeel.runtime.environment import SYSTEM_PATH

PLUGIN_DIRECTORIES = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
PLUGINS = ("bridge", "host-local", "portmap")

_INTERFACE = "eth0"
_CALL_SECONDS = 60.0
_MOST_BYTES = 1 << 20
_MOST_ADDRESSES = 16
_MOST_REASON_CHARACTERS = 500


class NetworkRefused(EvenkeelError):
    """A pod cannot have a network of its own."""


class Joined(NamedTuple):
    """A pod's network, as in its record. It is written before the plugins are called, and again after."""

    namespace: str
    network: dict[str, Any]  # the configuration with which the pod was joined; it is needed to leave
    ports: list[dict[str, Any]]
    pod: str
    result: dict[str, Any] | None = None


class NetworkPlugins:
    def __init__(self, directories: Sequence[str], call_seconds: float = _CALL_SECONDS) -> None:
        self._directories = tuple(directories)
        self._call_seconds = call_seconds

    def refusal(self) -> str:
        """Returns why no pod can have a network of its own here; empty if pods can."""
        missing = [name for name in PLUGINS if not self._path(name)]
        if not missing:
            return ""
        return (
            f"hostNetwork: false needs the CNI plugins {', '.join(missing)}, and they are in none of "
            f"{', '.join(self._directories)} (apt install containernetworking-plugins)"
        )

    def add(self, uid: str, joined: Joined) -> dict[str, Any]:
        """Calls the plugins in their order. Returns the result of the last. Raises NetworkRefused."""
        result: dict[str, Any] | None = None
        for plugin in joined.network["plugins"]:
            result = self._call("ADD", uid, joined, plugin, result)
            problem = problem_of(result, subnet_of(joined))
            if problem:
                raise NetworkRefused(f"the CNI plugin {plugin['type']} answered {problem}")
        return result or {}

    def delete(self, uid: str, joined: Joined) -> None:
        """Calls the plugins in the reverse order, all of them: each releases resources of its own. Raises
        NetworkRefused if one refused."""
        refused: list[NetworkRefused] = []
        for plugin in reversed(joined.network["plugins"]):
            try:
                self._call("DEL", uid, joined, plugin, joined.result)
            except NetworkRefused as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def _call(
        self, command: str, uid: str, joined: Joined, plugin: Mapping[str, Any], result: dict[str, Any] | None
    ) -> dict[str, Any]:
        name = plugin["type"]
        path = self._path(name)
        if not path:
            raise NetworkRefused(self.refusal() or f"the CNI plugin {name} is not installed")
        config = {key: value for key, value in plugin.items() if key != "capabilities"}
        config |= {"cniVersion": joined.network["cniVersion"], "name": joined.network["name"]}
        if "portMappings" in plugin.get("capabilities", {}):
            config["runtimeConfig"] = {"portMappings": joined.ports}
        if result is not None:
            config["prevResult"] = result
        namespace, _, pod = joined.pod.partition("/")
        environment = {
            "PATH": SYSTEM_PATH,  # the plugins execute iptables
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": uid,
            "CNI_NETNS": joined.namespace if os.path.ismount(joined.namespace) else "",
            "CNI_IFNAME": _INTERFACE,
            "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod}",
            "CNI_PATH": ":".join(self._directories),
        }
        try:
            status, out, err = _run(path, json.dumps(config).encode(), environment, self._call_seconds)
        except _Unbounded as error:
            raise NetworkRefused(f"the CNI plugin {name} {error}") from None
        except OSError as error:
            raise NetworkRefused(f"the CNI plugin {path} cannot be executed: {reason(error)}") from None
        answer = _parsed(out)
        if status != 0:
            why = str(answer.get("msg") or err.decode(errors="replace").strip() or "no reason given")
            raise NetworkRefused(f"the CNI plugin {name} refused {command}: {why[-_MOST_REASON_CHARACTERS:]}")
        return answer

    def _path(self, name: str) -> str:
        paths = (f"{directory}/{name}" for directory in self._directories)
        return next((path for path in paths if os.access(path, os.X_OK)), "")


def subnet_of(joined: Joined) -> ipaddress.IPv4Network:
    """Returns the network from which the plugins had to give the pod an address."""
    return ipaddress.IPv4Network(joined.network["plugins"][0]["ipam"]["ranges"][0][0]["subnet"])


def problem_of(result: Mapping[str, Any], subnet: ipaddress.IPv4Network) -> str:
    """Returns what is wrong with a plugin's answer; empty if nothing is. Pure."""
    ips = result.get("ips")
    if not isinstance(ips, list) or not 0 < len(ips) <= _MOST_ADDRESSES:
        return f"no list of 1 to {_MOST_ADDRESSES} addresses in `ips`"
    if len(addresses_of(result)) != len(ips):
        return "`ips` with something that is no address such as 10.90.0.2/20"
    stray = next((one for one in addresses_of(result) if ipaddress.ip_address(one) not in subnet), "")
    return f"the address {stray}, which is none of {subnet}" if stray else ""


def addresses_of(result: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the addresses in a plugin's answer, without what is none. Pure."""
    ips = result.get("ips")
    return tuple(_addresses(ips if isinstance(ips, list) else ()))


def _addresses(ips: Sequence[object]) -> Iterator[str]:
    for one in ips:
        text = one.get("address") if isinstance(one, dict) else None
        if isinstance(text, str):
            with suppress(ValueError):
                yield str(ipaddress.ip_interface(text).ip)


def _parsed(answer: bytes) -> dict[str, Any]:
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class _Unbounded(Exception):
    """A program takes too long, or its output is too long."""


def _run(path: str, given: bytes, environment: Mapping[str, str], seconds: float) -> tuple[int, bytes, bytes]:
    """Runs a program. Returns its exit status, stdout and stderr. Its process group ends with it."""
    deadline = time.monotonic() + seconds
    with open(os.memfd_create("cni"), "wb+", buffering=0) as config:
        config.write(given)
        config.seek(0)
        process = subprocess.Popen(  # noqa: S603 the path is one of ours, and there is no shell
            [path],
            stdin=config,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr, open(os.pidfd_open(process.pid), "rb", buffering=0) as ended:
        said = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        waiting = select.poll()
        waiting.register(ended.fileno(), select.POLLIN)
        for descriptor in said:
            os.set_blocking(descriptor, False)
            waiting.register(descriptor, select.POLLIN)
        try:
            has_ended = False
            while not has_ended:
                ready = waiting.poll(max(deadline - time.monotonic(), 0) * 1000)
                if not ready:
                    raise _Unbounded(f"did not end within {seconds:g} s")
                has_ended = any(descriptor == ended.fileno() for descriptor, _ in ready)
                for descriptor, text in said.items():
                    if not _drain(descriptor, text):
                        with suppress(KeyError):
                            waiting.unregister(descriptor)
                    if len(text) > _MOST_BYTES:
                        raise _Unbounded(f"said more than {_MOST_BYTES >> 20} MiB")
        finally:
            with suppress(ProcessLookupError):  # not reaped yet, so no other group has its number
                os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        out, err = said.values()
        return status, bytes(out), bytes(err)


def _drain(descriptor: int, into: bytearray) -> bool:
    """Reads what is there, and little more than allowed. Returns False at the end of the stream."""
    with suppress(BlockingIOError):
        while len(into) <= _MOST_BYTES:
            part = os.read(descriptor, 65536)
            if not part:
                return False
            into += part
    return True
