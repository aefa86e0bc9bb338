"""The agent's configuration, in the form of Kubernetes' KubeletConfiguration.

Fields that exist there keep their names and meaning, so that the file of a kubelet can be used as it is; Evenkeel has
some more. The default of a field is what "not written" means. A few defaults depend on the profile or on another field:
these are `None` (or empty) until `defaulted` sets them. `config_validation` checks the values.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from evenkeel.api.scalars import Duration, Int32
from evenkeel.named_tuples import NamedTuple


class Profile(StrEnum):
    """Which rules apply where the documents and Kubernetes disagree (the table "Profiles" of the requirements)."""

    DOCUMENTS = "documents"
    KUBERNETES = "kubernetes"


API_VERSION = "kubelet.config.k8s.io/v1beta1"
KIND = "KubeletConfiguration"

# The values of enforceNodeAllocatable (B4). Those with "-compressible" enforce cpu, but not memory or pids.
PODS_ENFORCED = "pods"
KUBE_RESERVED = "kube-reserved"
SYSTEM_RESERVED = "system-reserved"
KUBE_RESERVED_COMPRESSIBLE = "kube-reserved-compressible"
SYSTEM_RESERVED_COMPRESSIBLE = "system-reserved-compressible"
NOTHING_ENFORCED = "none"

# The values of allowedHostAccess: fields with which a pod reaches the host.
PRIVILEGED, HOST_PID, HOST_IPC = HOST_ACCESS = ("privileged", "hostPID", "hostIPC")

DEFAULT_EVICTION_HARD: Mapping[str, str] = MappingProxyType(
    {
        "memory.available": "100Mi",
        "nodefs.available": "10%",
        "nodefs.inodesFree": "5%",
        "imagefs.available": "15%",
        "imagefs.inodesFree": "5%",
    }
)
DEFAULT_THROTTLING_FACTOR = 0.8  # C2
DEFAULT_CFS_QUOTA_PERIOD = Duration(100 * 10**6)

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
NO_GATES: Mapping[str, bool] = MappingProxyType({})


class MemorySwapConfiguration(NamedTuple):
    swap_behavior: str = ""


class CrashLoopBackOffConfig(NamedTuple):
    max_container_restart_period: Duration | None = None  # None: kubelet's default of five minutes


class KubeletX509Authentication(NamedTuple):
    client_ca_file: str = ""  # "": the cluster's authority, if it has signed the node's own certificate


class KubeletAuthentication(NamedTuple):
    x509: KubeletX509Authentication = KubeletX509Authentication()


class KubeletConfiguration(NamedTuple):
    """The configuration. Lists and maps of Kubernetes are tuples and read-only maps here."""

    # The cgroup tree
    # The default avoids the cgroups of a kubelet on the same machine; "/" is the layout of kubelet.
    cgroup_root: str = "/evenkeel"
    cgroup_driver: str = "cgroupfs"
    cgroups_per_qos: bool = True
    fail_cgroup_v1: bool = False
    hands_off: tuple[str, ...] = ()  # cgroups that are never repaired (E9)

    # Reservations
    enforce_node_allocatable: tuple[str, ...] = (PODS_ENFORCED,)
    kube_reserved: Mapping[str, str] = NO_SETTINGS
    system_reserved: Mapping[str, str] = NO_SETTINGS
    kube_reserved_cgroup: str = ""
    system_reserved_cgroup: str = ""
    create_reserved_cgroups: bool = False  # E7
    reserved_protect_only: bool = False  # a reservation is memory.min and not memory.max (E8)
    experimental_node_allocatable_ignore_eviction_threshold: bool = False  # B7
    max_pods: Int32 = 110
    pods_per_core: Int32 = 0
    pod_pids_limit: int = -1
    local_storage_capacity_isolation: bool = True

    # CPU
    cpu_cfs_quota: bool = True
    cpu_cfs_quota_period: Duration = DEFAULT_CFS_QUOTA_PERIOD
    cpu_manager_policy: str = "none"
    reserved_system_cpus: str = ""
    fair_cpu_sharing: bool = False  # A21
    cpu_burst: int = 0  # percent of a quota that can be saved in idle periods; 0 is off (A23)
    cpu_kills: bool = False  # A22
    cpu_kills_window: Duration = Duration(60 * 10**9)

    # Memory
    memory_throttling_factor: float | None = None
    memory_reservation_policy: str = "None"
    memory_high_stall: str = "raise"  # C8: raise, kill or report
    memory_high_stall_period: Duration = Duration(10 * 10**9)
    memory_swap: MemorySwapConfiguration = MemorySwapConfiguration()
    fail_swap_on: bool = True
    qos_reserved: Mapping[str, str] = NO_SETTINGS

    # When memory runs out
    oom_score_adj: Int32 = -999
    single_process_oom_kill: bool | None = None
    oom_group_kill: bool | None = None  # the opposite of singleProcessOOMKill (A19)
    oom_retries: int = 3  # A17
    oom_retries_reset: Duration = Duration(600 * 10**9)
    eviction_hard: Mapping[str, str] | None = None
    eviction_soft: Mapping[str, str] = NO_SETTINGS
    eviction_soft_grace_period: Mapping[str, str] = NO_SETTINGS
    eviction_minimum_reclaim: Mapping[str, str] = NO_SETTINGS
    eviction_max_pod_grace_period: Int32 = 0
    eviction_pressure_transition_period: Duration = Duration(300 * 10**9)
    merge_default_eviction_settings: bool = False
    eviction_order: str = ""  # E13: class or priority; "" is the default of the profile

    # Everything else
    profile: str = Profile.DOCUMENTS
    protect_kernel_defaults: bool = False
    container_runtime_endpoint: str = ""  # "": pods run as plain processes
    container_log_max_size: str = "10Mi"
    container_log_max_files: Int32 = 5
    allowed_host_access: tuple[str, ...] = ()  # HOST_ACCESS: what pods may ask for
    seccomp_profile_root: str = "/var/lib/kubelet/seccomp"  # profiles of the type Localhost
    pod_cidr: str = ""  # "": a subnet that this machine does not use
    port: Int32 = 10250  # of the server of a node of a cluster; 0: there is none
    healthz_port: Int32 = 10248  # of its /healthz on loopback; 0: there is none
    tls_cert_file: str = ""  # "": the node makes one
    tls_private_key_file: str = ""
    authentication: KubeletAuthentication = KubeletAuthentication()
    rotate_certificates: bool = True  # of a node of a cluster
    # What pods of a cluster have to end when the node is shut down. 0: each has its own grace period.
    shutdown_grace_period: Duration = Duration(0)
    shutdown_grace_period_critical_pods: Duration = Duration(0)  # the last part of it
    server_tls_bootstrap: bool = False  # the node's server gets a certificate of the cluster
    serialize_image_pulls: bool = True
    max_parallel_image_pulls: Int32 | None = None  # None: any number, if they are not serialized
    registry_pull_qps: Int32 = 5  # 0: any number
    registry_burst: Int32 = 10
    image_pull_credentials_verification_policy: str = "NeverVerifyPreloadedImages"
    image_gc_high_threshold_percent: Int32 = 85  # 100 switches it off
    image_gc_low_threshold_percent: Int32 = 80
    image_minimum_gc_age: Duration = Duration(120 * 10**9)
    image_maximum_gc_age: Duration = Duration(0)  # 0: an unused image has no greatest age
    crash_loop_back_off: CrashLoopBackOffConfig = CrashLoopBackOffConfig()
    feature_gates: Mapping[str, bool] = NO_GATES

    @property
    def rulebook(self) -> Profile:
        """The profile as a value. Validation has refused all other texts."""
        return Profile.KUBERNETES if self.profile == Profile.KUBERNETES else Profile.DOCUMENTS

    def enforces(self, *keys: str) -> bool:
        """Whether enforceNodeAllocatable contains one of `keys`."""
        return any(key in self.enforce_node_allocatable for key in keys)

    def feature(self, gate: str) -> bool:
        """Whether the feature behind `gate` is on."""
        known = FEATURE_GATES.get(gate)
        if known is None:
            return self.feature_gates.get(gate, False)
        whole_stage = self.feature_gates.get(f"All{known.stage}", known.enabled)
        return self.feature_gates.get(gate, whole_stage)


class FeatureGate(NamedTuple):
    enabled: bool
    stage: str  # Alpha, Beta, GA or Deprecated: AllAlpha and AllBeta switch whole stages
    locked: bool = False  # kubelet refuses another value


# The feature gates that have an effect here, with the defaults of Kubernetes 1.37.
FEATURE_GATES: Mapping[str, FeatureGate] = MappingProxyType(
    {
        "MemoryQoS": FeatureGate(enabled=True, stage="Beta"),
        "NodeSwap": FeatureGate(enabled=True, stage="GA", locked=True),
        "CustomCPUCFSQuotaPeriod": FeatureGate(enabled=True, stage="GA"),
        "DisableCPUQuotaWithExclusiveCPUs": FeatureGate(enabled=True, stage="Deprecated", locked=True),
        "KubeletCrashLoopBackOffMax": FeatureGate(enabled=True, stage="Beta"),
        "PodLevelResources": FeatureGate(enabled=True, stage="Beta"),
        "QOSReserved": FeatureGate(enabled=False, stage="Alpha"),
    }
)
WHOLE_STAGES = ("AllAlpha", "AllBeta")


def defaulted(config: KubeletConfiguration) -> KubeletConfiguration:
    """The configuration with all defaults set. `None` and empty stay where they are meaningful values.

    To apply it twice changes nothing. `config` may be invalid: this function does not check it.
    """
    documents = config.rulebook is Profile.DOCUMENTS
    unset = KubeletConfiguration()
    factor = config.memory_throttling_factor
    return config._replace(
        # As in Kubernetes, an empty text or a zero in these fields means "not written".
        cgroup_root=config.cgroup_root or unset.cgroup_root,
        cgroup_driver=config.cgroup_driver or unset.cgroup_driver,
        cpu_manager_policy=config.cpu_manager_policy or unset.cpu_manager_policy,
        memory_reservation_policy=config.memory_reservation_policy or unset.memory_reservation_policy,
        container_log_max_size=config.container_log_max_size or unset.container_log_max_size,
        max_pods=config.max_pods or unset.max_pods,
        seccomp_profile_root=config.seccomp_profile_root or unset.seccomp_profile_root,
        registry_burst=config.registry_burst or unset.registry_burst,
        image_pull_credentials_verification_policy=(
            config.image_pull_credentials_verification_policy
            or unset.image_pull_credentials_verification_policy
        ),
        image_minimum_gc_age=config.image_minimum_gc_age or unset.image_minimum_gc_age,
        pod_pids_limit=max(config.pod_pids_limit, -1),
        eviction_pressure_transition_period=(
            config.eviction_pressure_transition_period or unset.eviction_pressure_transition_period
        ),
        # Today's kubelet does not throttle by default; the documents throttle at 0.8 (C2).
        memory_throttling_factor=DEFAULT_THROTTLING_FACTOR if factor is None and documents else factor,
        eviction_hard=_eviction_hard(config),
        eviction_order=config.eviction_order or ("class" if documents else "priority"),
        oom_group_kill=_kills_whole_container(config),
        memory_high_stall=config.memory_high_stall or unset.memory_high_stall,
        profile=config.profile or unset.profile,
    )


def flag_of(attribute: str) -> str:
    """The flag of a field, in the spelling of kubelet: `--max-pods` for `max_pods`."""
    return _FLAGS.get(attribute) or "--" + attribute.replace("_", "-")


_FLAGS = {
    "image_gc_high_threshold_percent": "--image-gc-high-threshold",
    "image_gc_low_threshold_percent": "--image-gc-low-threshold",
    "registry_pull_qps": "--registry-qps",
    "crash_loop_back_off": "--max-container-restart-period",
    "memory_swap": "--memory-swap-behavior",
    "pod_pids_limit": "--pod-max-pids",
    "authentication": "--client-ca-file",
    "reserved_system_cpus": "--reserved-cpus",
}


def _eviction_hard(config: KubeletConfiguration) -> Mapping[str, str]:
    """A map with only some signals replaces the defaults, unless it is to be merged with them."""
    if config.eviction_hard is None:
        return DEFAULT_EVICTION_HARD
    if config.merge_default_eviction_settings:
        return {**DEFAULT_EVICTION_HARD, **config.eviction_hard}
    return config.eviction_hard


def _kills_whole_container(config: KubeletConfiguration) -> bool:
    if config.oom_group_kill is not None:
        return config.oom_group_kill
    return not config.single_process_oom_kill
