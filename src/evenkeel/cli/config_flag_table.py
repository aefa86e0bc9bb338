"""The flag of each field of the configuration: how its text is read, and what the help says of it."""

from collections.abc import Callable, Mapping

from evenkeel.api.config import (
    CrashLoopBackOffConfig,
    KubeletAuthentication,
    KubeletX509Authentication,
    MemorySwapConfiguration,
)
from evenkeel.api.scalars import Duration
from evenkeel.errors import EvenkeelError
from evenkeel.policy.eviction.thresholds import parse_flag


def _text(text: str) -> str:
    return text


def truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise EvenkeelError(f'must be true or false, written with =, not "{text[:60]}"')
    return text == "true"


def _integer(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise EvenkeelError(f'must be a whole number, not "{text[:60]}"')
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise EvenkeelError(f'must be a number such as 0.8, not "{text[:60]}"') from None


def _list(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",")) if text.strip() else ()


def _thresholds(text: str) -> Mapping[str, str]:
    return parse_flag(text, "<", "memory.available<100Mi,nodefs.available<10%")


def _graces(text: str) -> Mapping[str, str]:
    return parse_flag(text, "=", "memory.available=1m30s")


def _reclaims(text: str) -> Mapping[str, str]:
    return parse_flag(text, "=", "memory.available=500Mi,nodefs.available=5%")


def _amounts(text: str) -> Mapping[str, str]:
    return parse_flag(text, "=", "cpu=500m,memory=1Gi")


def _shares(text: str) -> Mapping[str, str]:
    return parse_flag(text, "=", "memory=50%")


def _gates(text: str) -> Mapping[str, bool]:
    gates = {}
    for gate, value in parse_flag(text, "=", "MemoryQoS=false").items():
        if value not in ("true", "false"):
            raise EvenkeelError(f'{gate[:60]} must be true or false, not "{value[:60]}"')
        gates[gate] = value == "true"
    return gates


def _swap(text: str) -> MemorySwapConfiguration:
    return MemorySwapConfiguration(text)


def _client_authority(text: str) -> KubeletAuthentication:
    return KubeletAuthentication(KubeletX509Authentication(text))


def _restart_period(text: str) -> CrashLoopBackOffConfig:
    return CrashLoopBackOffConfig(Duration.parse(text))


# Field → the parser of its value, the name of the value in the help, and the help.
FLAGS: Mapping[str, tuple[Callable[[str], object], str, str]] = {
    "profile": (_text, "NAME", "whose rules apply where they differ: documents (default) or kubernetes"),
    "kube_reserved": (_amounts, "cpu=500m,…", "reserved for the agent and the container runtime"),
    "system_reserved": (_amounts, "cpu=500m,…", "reserved for system daemons"),
    "enforce_node_allocatable": (
        _list,
        "WORD,…",
        'what is enforced: pods (default), kube-reserved, system-reserved, …-compressible; "" for none',
    ),
    "kube_reserved_cgroup": (
        _text,
        "PATH",
        "the cgroup on which kube-reserved is enforced, such as /kube.slice",
    ),
    "system_reserved_cgroup": (
        _text,
        "PATH",
        "the cgroup on which system-reserved is enforced, such as /system.slice",
    ),
    "create_reserved_cgroups": (truth, "BOOL", "create those cgroups if they are missing"),
    "reserved_protect_only": (truth, "BOOL", "protect the reserved memory, but do not limit the daemons"),
    "reserved_system_cpus": (_text, "CPUS", "whole CPUs reserved for the system, such as 0-1"),
    "experimental_node_allocatable_ignore_eviction_threshold": (
        truth,
        "BOOL",
        "do not subtract the hard eviction threshold from allocatable",
    ),
    "eviction_hard": (_thresholds, "SIGNAL<VALUE,…", "evict at once below these thresholds"),
    "eviction_soft": (_thresholds, "SIGNAL<VALUE,…", "evict below these thresholds after their grace period"),
    "eviction_soft_grace_period": (
        _graces,
        "SIGNAL=TIME,…",
        "how long a soft threshold must be crossed",
    ),
    "eviction_minimum_reclaim": (
        _reclaims,
        "SIGNAL=VALUE,…",
        "how much more to free than the threshold needs",
    ),
    "eviction_max_pod_grace_period": (
        _integer,
        "SECONDS",
        "the longest grace period of a pod in a soft eviction",
    ),
    "eviction_pressure_transition_period": (
        Duration.parse,
        "TIME",
        "how long a pressure condition lasts after the pressure (5m)",
    ),
    "merge_default_eviction_settings": (truth, "BOOL", "add the default hard thresholds to the given ones"),
    "eviction_order": (_text, "WORD", "how pods are ranked for eviction: by class or by priority"),
    "cgroup_root": (_text, "PATH", "the parent of the cgroups of pods (/evenkeel)"),
    "cgroup_driver": (_text, "NAME", "cgroupfs (default) or systemd"),
    "cgroups_per_qos": (truth, "BOOL", "a cgroup for each QoS class (true)"),
    "fail_cgroup_v1": (truth, "BOOL", "refuse to run on cgroup v1"),
    "hands_off": (_list, "PATH,…", "cgroups whose files the agent never changes back"),
    "max_pods": (_integer, "NUMBER", "how many pods may run on the node (110)"),
    "pods_per_core": (_integer, "NUMBER", "how many pods may run for each CPU; 0 is no limit"),
    "pod_pids_limit": (_integer, "NUMBER", "how many processes a pod may have; -1 is no limit"),
    "local_storage_capacity_isolation": (truth, "BOOL", "count and limit ephemeral storage (true)"),
    "cpu_cfs_quota": (truth, "BOOL", "enforce cpu limits (true)"),
    "cpu_cfs_quota_period": (Duration.parse, "TIME", "the period of cpu limits (100ms)"),
    "cpu_manager_policy": (
        _text,
        "NAME",
        "none (default) or static, which gives Guaranteed containers whole CPUs",
    ),
    "fair_cpu_sharing": (truth, "BOOL", "share CPU that no pod requests evenly"),
    "cpu_burst": (
        _integer,
        "PERCENT",
        "how much of its quota a container may save while it is idle; 0 is off",
    ),
    "cpu_kills": (truth, "BOOL", "evict pods that keep other pods from the CPU they request"),
    "cpu_kills_window": (Duration.parse, "TIME", "how long a CPU shortage must last before that (1m)"),
    "memory_throttling_factor": (
        _number,
        "NUMBER",
        "the part of its memory limit at which a container is throttled",
    ),
    "memory_reservation_policy": (_text, "NAME", "None (default) or TieredReservation"),
    "memory_high_stall": (
        _text,
        "WORD",
        "what to do with a container that stalls at memory.high: raise (default), kill or report",
    ),
    "memory_high_stall_period": (Duration.parse, "TIME", "how long a stall must last before that (10s)"),
    "memory_swap": (_swap, "NAME", "NoSwap or LimitedSwap"),
    "fail_swap_on": (truth, "BOOL", "refuse to run while the machine has swap on (true)"),
    "qos_reserved": (
        _shares,
        "memory=PERCENT",
        "the part of requests that is reserved against lower classes",
    ),
    "oom_score_adj": (_integer, "NUMBER", "the OOM score of the agent itself (-999)"),
    "single_process_oom_kill": (truth, "BOOL", "the OOM killer kills one process of a container, not all"),
    "oom_group_kill": (truth, "BOOL", "the OOM killer kills all processes of a container (true)"),
    "oom_retries": (_integer, "NUMBER", "how often an OOM-killed Burstable container is restarted (3)"),
    "oom_retries_reset": (
        Duration.parse,
        "TIME",
        "after this time without an OOM kill they count anew (10m)",
    ),
    "protect_kernel_defaults": (truth, "BOOL", "refuse to run rather than change kernel settings"),
    "container_runtime_endpoint": (
        _text,
        "SOCKET",
        "the socket of a container runtime (unix:///…), or auto to find one; without it pods are plain processes",
    ),
    "allowed_host_access": (
        _list,
        "FIELD,…",
        "with which fields pods may reach the host: privileged, hostPID, hostIPC (none)",
    ),
    "seccomp_profile_root": (
        _text,
        "DIRECTORY",
        "the seccomp profiles that pods may name (/var/lib/kubelet/seccomp)",
    ),
    "pod_cidr": (
        _text,
        "CIDR",
        "addresses of pods with hostNetwork: false (a subnet in 10.0.0.0/8 that is free)",
    ),
    "port": (_integer, "PORT", "of the server of a cluster's node; 0 is none (10250)"),
    "healthz_port": (_integer, "PORT", "of a node's /healthz on 127.0.0.1; 0 is none (10248)"),
    "tls_cert_file": (_text, "FILE", "the server's certificate, in PEM, for --kubeconfig and --listen"),
    "tls_private_key_file": (_text, "FILE", "its key, in PEM"),
    "authentication": (
        _client_authority,
        "FILE",
        "whose client certificates a cluster's node accepts, in PEM (default: the cluster's)",
    ),
    "rotate_certificates": (truth, "BOOL", "renew the node's certificate before it expires (true)"),
    "shutdown_grace_period": (
        Duration.parse,
        "TIME",
        "how long the cluster's pods have to end with --stop-pods (0: each its own grace period)",
    ),
    "shutdown_grace_period_critical_pods": (
        Duration.parse,
        "TIME",
        "the last part of it, for critical pods alone (0)",
    ),
    "server_tls_bootstrap": (
        truth,
        "BOOL",
        "ask the cluster to sign the certificate of the node's server, which an administrator must approve (false)",
    ),
    "container_log_max_size": (_text, "SIZE", "the largest log file of a container (10Mi)"),
    "container_log_max_files": (_integer, "NUMBER", "how many log files of a container are kept (5)"),
    "serialize_image_pulls": (truth, "BOOL", "pull one image after the other (true)"),
    "max_parallel_image_pulls": (_integer, "NUMBER", "how many images are pulled at once, if not one by one"),
    "registry_pull_qps": (_integer, "NUMBER", "how many pulls may begin per second; 0 is no limit (5)"),
    "registry_burst": (_integer, "NUMBER", "how many pulls may begin at once (10)"),
    "image_pull_credentials_verification_policy": (
        _text,
        "NAME",
        "which pods may use an image that another pod pulled: NeverVerifyPreloadedImages (default) or NeverVerify",
    ),
    "image_gc_high_threshold_percent": (
        _integer,
        "PERCENT",
        "unused images are removed when the disk is this full; 100 is never (85)",
    ),
    "image_gc_low_threshold_percent": (
        _integer,
        "PERCENT",
        "they are removed until the disk is only this full (80)",
    ),
    "image_minimum_gc_age": (Duration.parse, "TIME", "an unused image stays for this long (2m)"),
    "image_maximum_gc_age": (
        Duration.parse,
        "TIME",
        "an unused image is removed after this time; 0 is never",
    ),
    "crash_loop_back_off": (
        _restart_period,
        "TIME",
        "the longest wait before a failing container is restarted (5m)",
    ),
    "feature_gates": (_gates, "NAME=BOOL,…", "features to switch on or off, such as MemoryQoS=false"),
}
