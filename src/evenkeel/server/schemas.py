"""The JSON schemas of the answers, for the OpenAPI description. Those of Kubernetes' Summary API (stats/v1alpha1) come
first.
"""

from evenkeel.server.schema_types import (
    ANY,
    MAYBE,
    NUMBER,
    TEXT,
    TIME,
    WHOLE,
    YES_NO,
    Schema,
    by_name,
    kubernetes_object,
    listed,
    object_of,
    ref,
)

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
_AMOUNTS = by_name(WHOLE)

SCHEMAS: Schema = {
    "Error": object_of(
        {"message": TEXT, "hint": TEXT},
        {"problems": listed(object_of({"field": TEXT, "message": TEXT}))},
    ),
    "Pod": kubernetes_object(
        "Pod",
        {
            "metadata": object_of(
                {"name": TEXT},
                {"namespace": TEXT, "uid": TEXT, "labels": by_name(TEXT), "annotations": by_name(TEXT)},
            ),
            "spec": object_of(
                {"containers": listed(object_of({"name": TEXT}, {"image": TEXT, "resources": ANY}))}
            ),
        },
    ),
    "PodList": kubernetes_object("PodList", {"metadata": ANY, "items": listed(ref("Pod"))}),
    "Node": kubernetes_object(
        "Node",
        {
            "metadata": object_of({"name": TEXT}),
            "status": object_of(
                {
                    "capacity": by_name(TEXT),
                    "allocatable": by_name(TEXT),
                    "conditions": listed(
                        object_of({"type": TEXT, "status": TEXT}, {"reason": TEXT, "message": TEXT})
                    ),
                }
            ),
        },
    ),
    "Applied": object_of(
        {
            "pods": listed(object_of({"pod": TEXT, "outcome": TEXT})),
            "objects": listed(object_of({"kind": TEXT, "name": TEXT, "outcome": TEXT})),
            "warnings": listed(ANY),
        }
    ),
    "ConfigMap": kubernetes_object("ConfigMap", {"metadata": object_of({"name": TEXT})}),
    "ConfigMapList": kubernetes_object("ConfigMapList", {"metadata": ANY, "items": listed(ref("ConfigMap"))}),
    "Secret": kubernetes_object("Secret", {"metadata": object_of({"name": TEXT}), "type": TEXT}),
    "SecretList": kubernetes_object("SecretList", {"metadata": ANY, "items": listed(ref("Secret"))}),
    "Service": kubernetes_object("Service", {"metadata": object_of({"name": TEXT})}),
    "ServiceList": kubernetes_object("ServiceList", {"metadata": ANY, "items": listed(ref("Service"))}),
    "PersistentVolumeClaim": kubernetes_object(
        "PersistentVolumeClaim", {"metadata": object_of({"name": TEXT})}
    ),
    "PersistentVolumeClaimList": kubernetes_object(
        "PersistentVolumeClaimList", {"metadata": ANY, "items": listed(ref("PersistentVolumeClaim"))}
    ),
    "Workload": object_of(
        {
            "apiVersion": TEXT,
            "kind": TEXT,
            "metadata": object_of({"name": TEXT, "namespace": TEXT}),
            "spec": ANY,
            "status": ANY,
        }
    ),
    "WorkloadList": object_of(
        {"apiVersion": TEXT, "kind": TEXT, "metadata": ANY, "items": listed(ref("Workload"))}
    ),
    "Scale": object_of(
        {
            "apiVersion": TEXT,
            "kind": TEXT,
            "metadata": object_of({"name": TEXT, "namespace": TEXT}),
            "spec": object_of({}, {"replicas": WHOLE}),
            "status": object_of({"replicas": WHOLE}),
        }
    ),
    "DeletedObject": object_of({"kind": TEXT, "name": TEXT, "outcome": TEXT}),
    "Deleted": object_of({"pod": TEXT, "outcome": TEXT}),
    "Happening": object_of(
        {"at": NUMBER, "type": TEXT, "reason": TEXT},
        {
            "message": TEXT,
            "pod": TEXT,
            "uid": TEXT,
            "container": TEXT,
            "figures": ANY,
            "number": WHOLE,
            "times": WHOLE,
        },
    ),
    "Usage": object_of(
        {"at": NUMBER, "capacityBytes": WHOLE, "availableBytes": WHOLE, "capacityMillicpu": WHOLE},
        {"pods": ANY, "containers": listed(object_of({"pod": TEXT, "statistics": ANY}))},
    ),
    "Configuration": object_of({"kubeletconfig": ANY}),
    "Advice": object_of(
        {"since": NUMBER, "at": NUMBER, "watchedSeconds": NUMBER},
        {
            "requests": listed(
                object_of(
                    {
                        "pod": TEXT,
                        "container": TEXT,
                        "resource": TEXT,
                        "requested": WHOLE,
                        "used": WHOLE,
                        "suggested": WHOLE,
                        "text": TEXT,
                        "reason": TEXT,
                    }
                )
            ),
            "reservations": listed(
                object_of(
                    {
                        "daemons": TEXT,
                        "resource": TEXT,
                        "reserved": WHOLE,
                        "used": WHOLE,
                        "reason": TEXT,
                    },
                    {"flag": TEXT, "requirement": TEXT},
                )
            ),
        },
    ),
    "Snapshot": ANY,
    "Description": object_of({"openapi": TEXT, "info": ANY, "paths": ANY}),
    # The view
    "Figures": {
        **object_of(
            {
                "cpuMillicores": {"type": "number", "nullable": True},
                "cpuUsageUs": WHOLE,
                "cpuThrottledUs": WHOLE,
                "memoryBytes": WHOLE,
                "workingSetBytes": WHOLE,
                "droppableBytes": WHOLE,
                "rssBytes": WHOLE,
                "pids": WHOLE,
                "pageFaults": WHOLE,
                "majorPageFaults": WHOLE,
                "oomKills": WHOLE,
                "swapBytes": MAYBE,
            },
            {"stalls": by_name(listed(NUMBER))},
        ),
        "nullable": True,
    },
    "Setting": object_of(
        {"file": TEXT, "asked": TEXT, "rule": TEXT, "reason": TEXT},
        {"applied": TEXT, "isApplied": YES_NO},
    ),
    "Cgroup": object_of(
        {
            "path": TEXT,
            "parent": TEXT,
            "name": TEXT,
            "kind": TEXT,
            "qosClass": TEXT,
            "requests": _AMOUNTS,
            "limits": _AMOUNTS,
            "settings": listed(ref("Setting")),
        },
        {
            "figures": ref("Figures"),
            "pod": TEXT,
            "container": TEXT,
            "memoryQosClass": TEXT,
            "cpuQosClass": TEXT,
        },
    ),
    "View": object_of(
        {
            "number": WHOLE,
            "at": NUMBER,
            "node": TEXT,
            "cgroupVersion": TEXT,
            "cgroupDriver": TEXT,
            "profile": TEXT,
            "resources": by_name(_AMOUNTS),
            "pressure": object_of(
                {
                    "stalls": {"type": "object", "nullable": True},
                    "conditions": listed(ANY),
                    "thresholds": listed(
                        object_of(
                            {
                                "signal": TEXT,
                                "threshold": TEXT,
                                "isHard": YES_NO,
                                "graceSeconds": NUMBER,
                                "isCrossed": YES_NO,
                            },
                            {"available": WHOLE, "capacity": WHOLE, "thresholdAmount": WHOLE},
                        )
                    ),
                }
            ),
            "daemons": by_name(ANY),
            "happenings": listed(ref("Happening")),
            "pods": listed(
                object_of(
                    {
                        "pod": TEXT,
                        "uid": TEXT,
                        "path": TEXT,
                        "phase": TEXT,
                        "qosClass": TEXT,
                        "requests": _AMOUNTS,
                        "limits": _AMOUNTS,
                        "storageBytes": MAYBE,
                    }
                )
            ),
            "cgroups": listed(ref("Cgroup")),
        }
    ),
    "Explanation": object_of(
        {
            "pod": TEXT,
            "uid": TEXT,
            "phase": TEXT,
            "qosClass": TEXT,
            "requests": _AMOUNTS,
            "limits": _AMOUNTS,
            "cgroups": listed(ref("Cgroup")),
        },
        {"reason": TEXT, "message": TEXT},
    ),
    "Story": object_of(
        {"pod": TEXT, "isHeld": YES_NO},
        {
            "phase": TEXT,
            "reason": TEXT,
            "chapters": listed(
                object_of(
                    {"at": NUMBER, "reason": TEXT},
                    {"message": TEXT, "type": TEXT, "stayed": listed(ANY)},
                )
            ),
        },
    ),
    "Images": object_of(
        {
            "images": listed(
                object_of(
                    {"id": TEXT, "names": listed(TEXT), "sizeBytes": WHOLE, "isInUse": {"type": "boolean"}}
                )
            ),
            "pulls": listed(object_of({"image": TEXT, "receivedBytes": WHOLE, "seconds": NUMBER})),
        }
    ),
    **SUMMARY_SCHEMAS,
}
