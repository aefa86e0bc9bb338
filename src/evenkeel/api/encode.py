"""From typed objects back to plain values, for JSON and YAML. Empty values are left out, as in Kubernetes."""

from collections.abc import Mapping

from evenkeel.api.scalars import Duration
from evenkeel.quantity import Quantity

# Names in which Kubernetes writes an abbreviation in capitals.
_camel = {
    "cgroups_per_qos": "cgroupsPerQOS",
    "client_ip": "clientIP",
    "cluster_ip": "clusterIP",
    "cluster_ips": "clusterIPs",
    "container_id": "containerID",
    "cpu_cfs_quota": "cpuCFSQuota",
    "server_tls_bootstrap": "serverTLSBootstrap",
    "client_ca_file": "clientCAFile",
    "cpu_cfs_quota_period": "cpuCFSQuotaPeriod",
    "downward_api": "downwardAPI",
    "external_ips": "externalIPs",
    "fail_cgroup_v1": "failCgroupV1",
    "fair_cpu_sharing": "fairCPUSharing",
    "host_ip": "hostIP",
    "host_ips": "hostIPs",
    "host_ipc": "hostIPC",
    "host_pid": "hostPID",
    "http_get": "httpGet",
    "image_gc_high_threshold_percent": "imageGCHighThresholdPercent",
    "image_gc_low_threshold_percent": "imageGCLowThresholdPercent",
    "image_id": "imageID",
    "load_balancer_ip": "loadBalancerIP",
    "pod_cidr": "podCIDR",
    "pod_ip": "podIP",
    "pod_ips": "podIPs",
    "image_maximum_gc_age": "imageMaximumGCAge",
    "image_minimum_gc_age": "imageMinimumGCAge",
    "registry_pull_qps": "registryPullQPS",
    "reserved_system_cpus": "reservedSystemCPUs",
    "single_process_oom_kill": "singleProcessOOMKill",
}


def camel(name: str) -> str:
    """The YAML name of the Python field `name`."""
    known = _camel.get(name)
    if known is None:
        head, *rest = name.split("_")
        known = _camel[name] = head + "".join(word.capitalize() for word in rest)
    return known


def encode(value: object) -> object:
    """`value` as dict, list, str, int, float, bool and None only."""
    if isinstance(value, Quantity | Duration):
        return str(value)
    fields: tuple[str, ...] | None = getattr(value, "_fields", None)
    if fields is not None:
        always: tuple[str, ...] = getattr(value, "always_there", ())
        pairs = ((name, getattr(value, name)) for name in fields)
        return {
            camel(name): encode(item)
            for name, item in pairs
            if name in always or not _is_absent(item, value, name)
        }
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset | set):
        return [encode(item) for item in value]
    return str(value) if isinstance(value, str) else value  # a member of a StrEnum becomes a plain text


def _is_absent(item: object, holder: object, name: str) -> bool:
    """`omitempty` of Kubernetes: no value, an empty text, list or mapping, or an object without any field, unless its
    presence has a meaning (`emptyDir: {}`)."""
    if item is None or item == "":
        return True
    if hasattr(item, "_fields"):
        defaults: Mapping[str, object] = getattr(holder, "_field_defaults", {})
        return defaults.get(name, item) is not None and not encode(item)
    return isinstance(item, tuple | list | Mapping) and not item
