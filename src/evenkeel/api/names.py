"""Field names on both sides: `run_as_user` in Python is `runAsUser` in YAML."""

# Where Kubernetes writes an abbreviation in capitals.
_camel = {
    "cgroups_per_qos": "cgroupsPerQOS",
    "container_id": "containerID",
    "cpu_cfs_quota": "cpuCFSQuota",
    "cpu_cfs_quota_period": "cpuCFSQuotaPeriod",
    "fail_cgroup_v1": "failCgroupV1",
    "fair_cpu_sharing": "fairCPUSharing",
    "host_ip": "hostIP",
    "http_get": "httpGet",
    "image_id": "imageID",
    "reserved_system_cpus": "reservedSystemCPUs",
    "single_process_oom_kill": "singleProcessOOMKill",
}


def camel(name: str) -> str:
    """The name in YAML of the Python field `name`."""
    known = _camel.get(name)
    if known is None:
        head, *rest = name.split("_")
        known = _camel[name] = head + "".join(word.capitalize() for word in rest)
    return known
