"""The JSON schemas of the answers, for the OpenAPI description."""

from collections.abc import Mapping

Schema = dict[str, object]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_YES_NO: Schema = {"type": "boolean"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_MAYBE: Schema = {"type": "integer", "nullable": True}
_ANY: Schema = {"type": "object"}


def listed(of: Schema) -> Schema:
    return {"type": "array", "items": of}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _by_name(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


def _object(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        **({"required": list(required)} if required else {}),
    }


def _kubernetes(kind: str, fields: Mapping[str, Schema]) -> Schema:
    return _object(
        {
            "apiVersion": {"type": "string", "enum": ["v1"]},
            "kind": {"type": "string", "enum": [kind]},
            **fields,
        }
    )


_AMOUNTS = _by_name(_WHOLE)
_PSI_LINE = _object({"total": _WHOLE, "avg10": _NUMBER, "avg60": _NUMBER, "avg300": _NUMBER})
_PSI = _object({"some": _PSI_LINE, "full": _PSI_LINE})

SCHEMAS: Schema = {
    "Error": _object(
        {"message": _TEXT, "hint": _TEXT},
        {"problems": listed(_object({"field": _TEXT, "message": _TEXT}))},
    ),
    "Pod": _kubernetes(
        "Pod",
        {
            "metadata": _object(
                {"name": _TEXT},
                {"namespace": _TEXT, "uid": _TEXT, "labels": _by_name(_TEXT), "annotations": _by_name(_TEXT)},
            ),
            "spec": _object(
                {"containers": listed(_object({"name": _TEXT}, {"image": _TEXT, "resources": _ANY}))}
            ),
        },
    ),
    "PodList": _kubernetes("PodList", {"metadata": _ANY, "items": listed(_ref("Pod"))}),
    "Node": _kubernetes(
        "Node",
        {
            "metadata": _object({"name": _TEXT}),
            "status": _object(
                {
                    "capacity": _by_name(_TEXT),
                    "allocatable": _by_name(_TEXT),
                    "conditions": listed(
                        _object({"type": _TEXT, "status": _TEXT}, {"reason": _TEXT, "message": _TEXT})
                    ),
                }
            ),
        },
    ),
    "Applied": _object(
        {
            "pods": listed(_object({"pod": _TEXT, "outcome": _TEXT})),
            "objects": listed(_object({"kind": _TEXT, "name": _TEXT, "outcome": _TEXT})),
            "warnings": listed(_ANY),
        }
    ),
    "ConfigMap": _kubernetes("ConfigMap", {"metadata": _object({"name": _TEXT})}),
    "ConfigMapList": _kubernetes("ConfigMapList", {"metadata": _ANY, "items": listed(_ref("ConfigMap"))}),
    "Secret": _kubernetes("Secret", {"metadata": _object({"name": _TEXT}), "type": _TEXT}),
    "SecretList": _kubernetes("SecretList", {"metadata": _ANY, "items": listed(_ref("Secret"))}),
    "Service": _kubernetes("Service", {"metadata": _object({"name": _TEXT})}),
    "ServiceList": _kubernetes("ServiceList", {"metadata": _ANY, "items": listed(_ref("Service"))}),
    "PersistentVolumeClaim": _kubernetes("PersistentVolumeClaim", {"metadata": _object({"name": _TEXT})}),
    "PersistentVolumeClaimList": _kubernetes(
        "PersistentVolumeClaimList", {"metadata": _ANY, "items": listed(_ref("PersistentVolumeClaim"))}
    ),
    "Workload": _object(
        {
            "apiVersion": _TEXT,
            "kind": _TEXT,
            "metadata": _object({"name": _TEXT, "namespace": _TEXT}),
            "spec": _ANY,
            "status": _ANY,
        }
    ),
    "WorkloadList": _object(
        {"apiVersion": _TEXT, "kind": _TEXT, "metadata": _ANY, "items": listed(_ref("Workload"))}
    ),
    "Scale": _object(
        {
            "apiVersion": _TEXT,
            "kind": _TEXT,
            "metadata": _object({"name": _TEXT, "namespace": _TEXT}),
            "spec": _object({}, {"replicas": _WHOLE}),
            "status": _object({"replicas": _WHOLE}),
        }
    ),
    "DeletedObject": _object({"kind": _TEXT, "name": _TEXT, "outcome": _TEXT}),
    "Deleted": _object({"pod": _TEXT, "outcome": _TEXT}),
    "Happening": _object(
        {"at": _NUMBER, "type": _TEXT, "reason": _TEXT},
        {
            "message": _TEXT,
            "pod": _TEXT,
            "uid": _TEXT,
            "container": _TEXT,
            "figures": _ANY,
            "number": _WHOLE,
            "times": _WHOLE,
        },
    ),
    "Usage": _object(
        {"at": _NUMBER, "capacityBytes": _WHOLE, "availableBytes": _WHOLE, "capacityMillicpu": _WHOLE},
        {"pods": _ANY, "containers": listed(_object({"pod": _TEXT, "statistics": _ANY}))},
    ),
    "Configuration": _object({"kubeletconfig": _ANY}),
    "Advice": _object(
        {"since": _NUMBER, "at": _NUMBER, "watchedSeconds": _NUMBER},
        {
            "requests": listed(
                _object(
                    {
                        "pod": _TEXT,
                        "container": _TEXT,
                        "resource": _TEXT,
                        "requested": _WHOLE,
                        "used": _WHOLE,
                        "suggested": _WHOLE,
                        "text": _TEXT,
                        "reason": _TEXT,
                    }
                )
            ),
            "reservations": listed(
                _object(
                    {
                        "daemons": _TEXT,
                        "resource": _TEXT,
                        "reserved": _WHOLE,
                        "used": _WHOLE,
                        "reason": _TEXT,
                    },
                    {"flag": _TEXT, "requirement": _TEXT},
                )
            ),
        },
    ),
    "Snapshot": _ANY,
    "Description": _object({"openapi": _TEXT, "info": _ANY, "paths": _ANY}),
    # The view
    "Figures": {
        **_object(
            {
                "cpuMillicores": {"type": "number", "nullable": True},
                "cpuUsageUs": _WHOLE,
                "cpuThrottledUs": _WHOLE,
                "memoryBytes": _WHOLE,
                "workingSetBytes": _WHOLE,
                "droppableBytes": _WHOLE,
                "rssBytes": _WHOLE,
                "pids": _WHOLE,
                "pageFaults": _WHOLE,
                "majorPageFaults": _WHOLE,
                "oomKills": _WHOLE,
                "swapBytes": _MAYBE,
            },
            {"stalls": _by_name(listed(_NUMBER))},
        ),
        "nullable": True,
    },
    "Setting": _object(
        {"file": _TEXT, "asked": _TEXT, "rule": _TEXT, "reason": _TEXT},
        {"applied": _TEXT, "isApplied": _YES_NO},
    ),
    "Cgroup": _object(
        {
            "path": _TEXT,
            "parent": _TEXT,
            "name": _TEXT,
            "kind": _TEXT,
            "qosClass": _TEXT,
            "requests": _AMOUNTS,
            "limits": _AMOUNTS,
            "settings": listed(_ref("Setting")),
        },
        {
            "figures": _ref("Figures"),
            "pod": _TEXT,
            "container": _TEXT,
            "memoryQosClass": _TEXT,
            "cpuQosClass": _TEXT,
        },
    ),
    "View": _object(
        {
            "number": _WHOLE,
            "at": _NUMBER,
            "node": _TEXT,
            "cgroupVersion": _TEXT,
            "cgroupDriver": _TEXT,
            "profile": _TEXT,
            "resources": _by_name(_AMOUNTS),
            "pressure": _object(
                {
                    "stalls": {"type": "object", "nullable": True},
                    "conditions": listed(_ANY),
                    "thresholds": listed(
                        _object(
                            {
                                "signal": _TEXT,
                                "threshold": _TEXT,
                                "isHard": _YES_NO,
                                "graceSeconds": _NUMBER,
                                "isCrossed": _YES_NO,
                            },
                            {"available": _WHOLE, "capacity": _WHOLE, "thresholdAmount": _WHOLE},
                        )
                    ),
                }
            ),
            "daemons": _by_name(_ANY),
            "happenings": listed(_ref("Happening")),
            "pods": listed(
                _object(
                    {
                        "pod": _TEXT,
                        "uid": _TEXT,
                        "path": _TEXT,
                        "phase": _TEXT,
                        "qosClass": _TEXT,
                        "requests": _AMOUNTS,
                        "limits": _AMOUNTS,
                        "storageBytes": _MAYBE,
                    }
                )
            ),
            "cgroups": listed(_ref("Cgroup")),
        }
    ),
    "Explanation": _object(
        {
            "pod": _TEXT,
            "uid": _TEXT,
            "phase": _TEXT,
            "qosClass": _TEXT,
            "requests": _AMOUNTS,
            "limits": _AMOUNTS,
            "cgroups": listed(_ref("Cgroup")),
        },
        {"reason": _TEXT, "message": _TEXT},
    ),
    "Story": _object(
        {"pod": _TEXT, "isHeld": _YES_NO},
        {
            "phase": _TEXT,
            "reason": _TEXT,
            "chapters": listed(
                _object(
                    {"at": _NUMBER, "reason": _TEXT},
                    {"message": _TEXT, "type": _TEXT, "stayed": listed(_ANY)},
                )
            ),
        },
    ),
    # Kubernetes' stats/v1alpha1
    "CPUStats": _object(
        {"time": _TIME}, {"usageNanoCores": _WHOLE, "usageCoreNanoSeconds": _WHOLE, "psi": _PSI}
    ),
    "MemoryStats": _object(
        {"time": _TIME},
        {
            "availableBytes": _WHOLE,
            "usageBytes": _WHOLE,
            "workingSetBytes": _WHOLE,
            "rssBytes": _WHOLE,
            "pageFaults": _WHOLE,
            "majorPageFaults": _WHOLE,
            "psi": _PSI,
        },
    ),
    "SwapStats": _object({"time": _TIME}, {"swapAvailableBytes": _WHOLE, "swapUsageBytes": _WHOLE}),
    "IOStats": _object({"time": _TIME}, {"psi": _PSI}),
    "FsStats": _object(
        {"time": _TIME},
        {
            "availableBytes": _WHOLE,
            "capacityBytes": _WHOLE,
            "usedBytes": _WHOLE,
            "inodesFree": _WHOLE,
            "inodes": _WHOLE,
            "inodesUsed": _WHOLE,
        },
    ),
    "ContainerStats": _object(
        {"name": _TEXT, "startTime": _TIME},
        {
            "cpu": _ref("CPUStats"),
            "memory": _ref("MemoryStats"),
            "io": _ref("IOStats"),
            "swap": _ref("SwapStats"),
            "rootfs": _ref("FsStats"),
            "logs": _ref("FsStats"),
        },
    ),
    "PodStats": _object(
        {
            "podRef": _object({"name": _TEXT, "namespace": _TEXT, "uid": _TEXT}),
            "startTime": _TIME,
            "containers": listed(_ref("ContainerStats")),
        },
        {
            "cpu": _ref("CPUStats"),
            "memory": _ref("MemoryStats"),
            "io": _ref("IOStats"),
            "swap": _ref("SwapStats"),
            "volume": listed(_ref("FsStats")),
            "ephemeral-storage": _ref("FsStats"),
            "process_stats": _object({}, {"process_count": _WHOLE}),
        },
    ),
    "NodeStats": _object(
        {"nodeName": _TEXT, "startTime": _TIME},
        {
            "systemContainers": listed(_ref("ContainerStats")),
            "cpu": _ref("CPUStats"),
            "memory": _ref("MemoryStats"),
            "io": _ref("IOStats"),
            "swap": _ref("SwapStats"),
            "network": _object({"time": _TIME}, {"name": _TEXT, "interfaces": listed(_ANY)}),
            "fs": _ref("FsStats"),
            "runtime": _object({}, {"imageFs": _ref("FsStats"), "containerFs": _ref("FsStats")}),
            "rlimit": _object({"time": _TIME}, {"maxpid": _WHOLE, "curproc": _WHOLE}),
        },
    ),
    "Images": _object(
        {
            "images": listed(
                _object(
                    {"id": _TEXT, "names": listed(_TEXT), "sizeBytes": _WHOLE, "isInUse": {"type": "boolean"}}
                )
            ),
            "pulls": listed(_object({"image": _TEXT, "receivedBytes": _WHOLE, "seconds": _NUMBER})),
        }
    ),
    "Summary": _object({"node": _ref("NodeStats"), "pods": listed(_ref("PodStats"))}),
}
