"""Manifests, configurations and the kernel's files: every mistake is reported, and nothing else happens."""

from contextlib import suppress
from pathlib import Path

import pytest

from evenkeel.api.config import Profile
from evenkeel.api.config_file import read_config
from evenkeel.api.config_start_rules import start_problems
from evenkeel.api.config_validation import config_warnings, validate_config
from evenkeel.api.manifests import read_manifests
from evenkeel.cgroup.drivers.mounts import parse_mountinfo
from evenkeel.errors import EvenkeelError
from evenkeel.host.capacity import parse_loadavg, parse_meminfo
from evenkeel.host.kernel_log import parse_log_record
from evenkeel.host.kernel_settings import parse_swaps
from evenkeel.host.machine import parse_capabilities
from evenkeel.host.memory_notifications import parse_counters
from evenkeel.host.node_figures import parse_interfaces, parse_stat, parse_vmstat
from evenkeel.host.psi import parse_pressure
from evenkeel.runtime.procfs import parse_mounts
from tests.fuzz.mutation import mutated, seeds

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIGURATION = b"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
maxPods: 20
evictionHard: {memory.available: 100Mi, nodefs.available: "10%"}
evictionSoft: {memory.available: 200Mi}
evictionSoftGracePeriod: {memory.available: 30s}
systemReserved: {cpu: 100m, memory: 256Mi, pid: "1000"}
kubeReservedCgroup: /podruntime.slice
enforceNodeAllocatable: [pods]
containerLogMaxSize: 10Mi
cpuManagerPolicy: static
reservedSystemCPUs: 0-1
featureGates: {NodeSwap: true}
"""


def test_manifests_are_read_or_their_problems_are_named():
    samples = [path.read_bytes() for path in sorted(EXAMPLES.rglob("*.yaml"))]
    assert samples
    for seed in seeds():
        text = mutated(samples, seed).decode("utf-8", "replace")
        for profile in Profile:
            reading = read_manifests(text, f"seed {seed}", profile).without_duplicates()
            assert all(str(problem) for problem in reading.problems), f"seed {seed}"


def test_configurations_are_read_or_their_problems_are_named():
    for seed in seeds():
        text = mutated([CONFIGURATION], seed).decode("utf-8", "replace")
        with suppress(EvenkeelError):
            read = read_config(text, f"seed {seed}")
            for problems in (validate_config, start_problems, config_warnings):
                assert all(str(problem) for problem in problems(read.config)), f"seed {seed}"


def _texts(*names: str) -> list[bytes]:
    return [path.read_bytes()[:20_000] for name in names if (path := Path("/proc") / name).exists()]


PRESSURE = (
    b"some avg10=0.12 avg60=1.00 avg300=2.50 total=123456\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=99\n"
)
EVENTS = b"low 0\nhigh 12\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n"
READERS = {
    "meminfo": (parse_meminfo, _texts("meminfo")),
    "loadavg": (parse_loadavg, _texts("loadavg")),
    "vmstat": (parse_vmstat, _texts("vmstat")),
    "stat": (lambda text: parse_stat(text, 100), _texts("stat")),
    "interfaces": (lambda text: parse_interfaces(text, text), _texts("net/dev", "net/route")),
    "pressure": (parse_pressure, [PRESSURE]),
    "memory.events": (parse_counters, [EVENTS]),
    "oom_control": (parse_counters, [b"oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"]),
    "swaps": (parse_swaps, [b"Filename\tType\tSize\tUsed\tPriority\n/dev/vdb partition 1024 0 -2\n"]),
    "status": (parse_capabilities, _texts("self/status")),
    "mountinfo": (parse_mountinfo, _texts("self/mountinfo")),
}


@pytest.mark.parametrize("file", READERS)
def test_files_of_the_kernel_are_read_or_refused(file, monkeypatch):
    monkeypatch.setattr("tests.fuzz.mutation.SECONDS", _share(len(READERS)))
    read, samples = READERS[file]
    for seed in seeds():
        text = mutated(samples, seed).decode("utf-8", "replace")
        try:
            read(text)
        except EvenkeelError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {file}: {error!r}") from error


def _share(parts: int) -> float:
    from tests.fuzz import mutation

    return mutation.SECONDS / parts


def test_mounts_and_the_kernels_log_are_read_whatever_they_hold():
    log = [
        b"6,1234,5678901,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=x,pid=7,uid=0\n SUBSYSTEM=a\n"
    ]
    mounts = _texts("self/mountinfo")
    for seed in seeds():
        parse_mounts(mutated(mounts, seed))
        parse_log_record(mutated(log, seed))
