"""The JSON schemas of Kubernetes' Summary API (stats/v1alpha1)."""

from evenkeel.server.schema_types import ANY, NUMBER, TEXT, TIME, WHOLE, Schema, listed, object_of, ref

_PSI_LINE = object_of({"total": WHOLE, "avg10": NUMBER, "avg60": NUMBER, "avg300": NUMBER})
PSI = object_of({"some": _PSI_LINE, "full": _PSI_LINE})

SUMMARY_SCHEMAS: Schema = {
    "CPUStats": object_of(
        {"time": TIME}, {"usageNanoCores": WHOLE, "usageCoreNanoSeconds": WHOLE, "psi": PSI}
    ),
    "MemoryStats": object_of(
        {"time": TIME},
        {
            "availableBytes": WHOLE,
            "usageBytes": WHOLE,
            "workingSetBytes": WHOLE,
            "rssBytes": WHOLE,
            "pageFaults": WHOLE,
            "majorPageFaults": WHOLE,
            "psi": PSI,
        },
    ),
    "SwapStats": object_of({"time": TIME}, {"swapAvailableBytes": WHOLE, "swapUsageBytes": WHOLE}),
    "IOStats": object_of({"time": TIME}, {"psi": PSI}),
    "FsStats": object_of(
        {"time": TIME},
        {
            "availableBytes": WHOLE,
            "capacityBytes": WHOLE,
            "usedBytes": WHOLE,
            "inodesFree": WHOLE,
            "inodes": WHOLE,
            "inodesUsed": WHOLE,
        },
    ),
    "ContainerStats": object_of(
        {"name": TEXT, "startTime": TIME},
        {
            "cpu": ref("CPUStats"),
            "memory": ref("MemoryStats"),
            "io": ref("IOStats"),
            "swap": ref("SwapStats"),
            "rootfs": ref("FsStats"),
            "logs": ref("FsStats"),
        },
    ),
    "PodStats": object_of(
        {
            "podRef": object_of({"name": TEXT, "namespace": TEXT, "uid": TEXT}),
            "startTime": TIME,
            "containers": listed(ref("ContainerStats")),
        },
        {
            "cpu": ref("CPUStats"),
            "memory": ref("MemoryStats"),
            "io": ref("IOStats"),
            "swap": ref("SwapStats"),
            "volume": listed(ref("FsStats")),
            "ephemeral-storage": ref("FsStats"),
            "process_stats": object_of({}, {"process_count": WHOLE}),
        },
    ),
    "NodeStats": object_of(
        {"nodeName": TEXT, "startTime": TIME},
        {
            "systemContainers": listed(ref("ContainerStats")),
            "cpu": ref("CPUStats"),
            "memory": ref("MemoryStats"),
            "io": ref("IOStats"),
            "swap": ref("SwapStats"),
            "network": object_of({"time": TIME}, {"name": TEXT, "interfaces": listed(ANY)}),
            "fs": ref("FsStats"),
            "runtime": object_of({}, {"imageFs": ref("FsStats"), "containerFs": ref("FsStats")}),
            "rlimit": object_of({"time": TIME}, {"maxpid": WHOLE, "curproc": WHOLE}),
        },
    ),
    "Summary": object_of({"node": ref("NodeStats"), "pods": listed(ref("PodStats"))}),
}
