"""A containerd of one's own: its directories, its socket and its images, apart from any other on the machine.

`with Containerd() as containerd:` starts it and ends it with everything that it started, however its user ended.
Sandboxes have the host's network, unless a test configures another one.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evenkeel.host.machine import parse_capabilities
from tests.kernel.waiting import eventually
from tests.machines.container_images import ARCHIVES, PAUSE, container_images
from tests.machines.daemon import Daemon

NAMESPACE = "k8s.io"  # where CRI looks for images
SHIM_SOCKETS = Path("/run/containerd/s")
_ID = re.compile(r"\b[0-9a-f]{64}\b")
READY_SECONDS = 180.0  # an emulated machine takes half a minute
CONFIG = """version = 2
root = "{directory}/root"
state = "{directory}/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
]
[debug]
  level = "{level}"
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = {restrict}
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{directory}/certs.d"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{directory}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        Root = "{directory}/runc"
        SystemdCgroup = {systemd}
"""


class Containerd(Daemon):
    def __init__(
        self,
        *,
        systemd_cgroup: bool = False,
        network: Mapping[str, Any] | None = None,
        within: tuple[str, ...] = (),
    ) -> None:
        """`network` is a CNI configuration; without it, containers have the host's network only. `within` is a command
        that executes its arguments, in another namespace."""
        self._network = network
        self._within = within
        # Short: a socket's path has at most 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="evenkeel-containerd-"))
        self.socket = self.directory / "containerd.sock"
        super().__init__("containerd", self.directory / "log", stopped_seconds=READY_SECONDS)
        self._systemd_cgroup = systemd_cgroup
        self._ids: set[str] = (
            set()
        )  # of sandboxes and containers that were there when it was stopped or killed

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    def __enter__(self) -> Self:
        try:
            self._configure()
            self.start()
            self._import_ours()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start it, again if need be, and wait until it says itself that it is ready."""
        command = ["containerd", "--config", str(self.directory / "config.toml")]
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
            notified.bind(str(ready))
            notified.settimeout(1.0)
            self.spawn(
                [*self._within, "setpriv", "--pdeathsig", "KILL", "--", *command],
                {**os.environ, "NOTIFY_SOCKET": str(ready)},
            )
            eventually(lambda: self._said(notified) == b"READY=1", within_seconds=READY_SECONDS)

    def stop(self) -> None:
        super().stop()
        self._remember()

    def kill(self) -> None:
        super().kill()
        self._remember()

    def _remember(self) -> None:
        """When it is started again, it removes what was half made, and says nothing of it. The socket of a shim that
        was being started stays."""
        self._ids |= {path.name for path in self.tasks()}

    def forget(self) -> None:
        """Starts it again without its state: it knows no images and no containers. The containers run on."""
        self.kill()
        (self.directory / "root" / "io.containerd.metadata.v1.bolt" / "meta.db").unlink()
        self.start()
        self._import_ours()

    def ctr(self, *arguments: str) -> str:
        """What containerd's own client says."""
        command = ["ctr", "--address", str(self.socket), "--namespace", NAMESPACE, *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=READY_SECONDS)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr}\n{self.last_words()}"
        return done.stdout

    def trust(self, registry: str, certificate: Path) -> None:
        """Lets it pull from a registry with this certificate."""
        directory = self.directory / "certs.d" / registry
        directory.mkdir(parents=True)
        text = f'server = "https://{registry}"\n[host."https://{registry}"]\n  ca = "{certificate}"\n'
        (directory / "hosts.toml").write_text(text)

    def import_images(self, archives: Mapping[str, Path]) -> None:
        """Imports the images of `archives`, by reference. Returns when CRI knows them."""
        for path in archives.values():
            self.ctr("images", "import", str(path))
        eventually(lambda: self._known_to_cri() >= set(archives), within_seconds=READY_SECONDS)

    def containers(self, **labels: str) -> list[str]:
        """The numbers of all containers and sandboxes that it knows; of those with certain labels, `__` for a dot."""
        wanted = [f'labels."{key.replace("__", ".")}"=="{value}"' for key, value in labels.items()]
        return self.ctr("containers", "list", "--quiet", *([",".join(wanted)] if wanted else [])).split()

    def tasks(self) -> Iterator[Path]:
        """What it has begun to make: a directory for every sandbox and container, seen without asking."""
        return (self.directory / "state" / "io.containerd.runtime.v2.task" / NAMESPACE).glob("*")

    def logged_ids(self) -> set[str]:
        """The numbers of all sandboxes and containers that it has begun to make, on this machine itself."""
        return set(_ID.findall(self.log.read_text(errors="replace")))

    def details_of(self, id_: str) -> str:
        """Details of a container: its record, and every line of containerd's log that names it."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if id_ in line]
        return "\n".join([self.ctr("containers", "info", id_), *lines])

    def shims(self) -> list[int]:
        """One process a pod that keeps its containers, and outlives containerd."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                if b"containerd-shim" in words[0] and os.fsencode(self.socket) in words:
                    found.append(int(path.name))
        return found

    def close(self) -> None:
        """Ends it and every container, by their numbers; unmounts and removes what it kept."""
        if self.was_started:
            self.resume()
            self.stop()
        sockets = self._shim_sockets()
        eventually(self._ended_shims)
        for path in sockets:
            path.unlink(missing_ok=True)
        eventually(self._unmounted)
        shutil.rmtree(self.directory)

    def _configure(self) -> None:
        powers = parse_capabilities(Path("/proc/self/status").read_text()).effective
        settings = {
            "directory": self.directory,
            "socket": self.socket,
            "pause": PAUSE,
            # Where the kernel refuses to lower scores, no container would start: there they stay at ours or above.
            "restrict": str("CAP_SYS_RESOURCE" not in powers).lower(),
            "systemd": str(self._systemd_cgroup).lower(),
            # If the client of a sandbox was killed while it was being made, only the log has its ID. Its shim leaves a
            # socket outside of our directory (`_shim_sockets`). A guest is thrown away with it.
            "level": "debug" if os.environ.get("EVENKEEL_MACHINE", "host") == "host" else "info",
            "plugins": "/usr/lib/cni",
        }
        (self.directory / "cni").mkdir()
        if self._network is not None:
            (self.directory / "cni/10-test.conflist").write_text(json.dumps(self._network))
        (self.directory / "config.toml").write_text(CONFIG.format(**settings))

    def _import_ours(self) -> None:
        made = container_images()
        self.import_images({reference: made / name for reference, name in ARCHIVES.items()})

    def _known_to_cri(self) -> set[str]:
        """CRI hears of images that others import, a little later; it says so with a label."""
        return set(self.ctr("images", "list", "--quiet", 'labels."io.cri-containerd.image"==managed').split())

    def _said(self, notified: socket.socket) -> bytes:
        self.check()
        try:
            return notified.recv(100)
        except TimeoutError:
            return b""

    def _shim_sockets(self) -> list[Path]:
        """They lie outside of our directories, and a shim that is killed, also while being started, leaves its own
        behind. They are named after our socket and the container, so that no other's can be among them."""
        self._remember()
        names = (f"{self.socket}/{NAMESPACE}/{one}" for one in self._ids | self.logged_ids())
        return [SHIM_SOCKETS / hashlib.sha256(os.fsencode(name)).hexdigest() for name in names]

    def _ended_shims(self) -> bool:
        """What a shim keeps are its children; the end of a container's first process is the end of all in it."""
        shims = self.shims()
        for pid in [*_children(shims), *shims]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not shims

    def _unmounted(self) -> bool:
        mounts = _mounts_below(self.directory)
        for path in reversed(mounts):
            subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)
        return not mounts


def _children(parents: list[int]) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) in parents:
                found.append(int(path.parent.name))
    return found


def _mounts_below(directory: Path) -> list[str]:
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{directory}/")]
