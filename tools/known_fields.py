"""Writes src/evenkeel/api/known_fields_table.py: every field that Kubernetes has, by type.

Run by hand when a new Kubernetes is out, in an environment that has the `kubernetes` Python client of that
release (its models are generated from Kubernetes' own API description). The client is not a dependency of
Evenkeel, neither to run nor to develop: only this tool needs it.

    python -m venv /tmp/client && /tmp/client/bin/pip install 'kubernetes==37.*'
    /tmp/client/bin/python tools/known_fields.py

What the client does not know stands below by hand: the kubelet's configuration, which strings are
quantities, and the untyped `List`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent.parent / "src/evenkeel/api/known_fields_table.py"

KINDS = (
    *("Pod", "PodTemplate", "Node", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"),
    *("ReplicationController", "Job", "CronJob", "Service"),
)

SCALARS = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "datetime": "date-time"}

# The client has `str` for a quantity, but YAML may hold a number there.
QUANTITIES = {
    "V1ContainerStatus": "allocatedResources",
    "V1EmptyDirVolumeSource": "sizeLimit",
    "V1NodeAllocatableMappedResources": "quantity",
    "V1NodeAllocatableOverheadResources": "perContainer perPod",
    "V1NodeStatus": "allocatable capacity",
    "V1PersistentVolumeClaimStatus": "allocatedResources capacity",
    "V1PodSpec": "overhead",
    "V1PodStatus": "allocatedResources",
    "V1ResourceFieldSelector": "divisor",
    "V1ResourceRequirements": "limits requests",
    "V1VolumeResourceRequirements": "limits requests",
}

# Types the client lacks: type → notation → the fields that have it. The kubelet's are those of
# kubelet.config.k8s.io/v1beta1 with the logging and tracing types of component-base.
BY_HAND = {
    "V1List": {"string": "apiVersion kind", "V1ListMeta": "metadata", "any[]": "items"},
    "KubeletConfiguration": {
        "string": """
            address apiVersion cgroupDriver cgroupRoot clusterDomain
            configMapAndSecretChangeDetectionStrategy containerLogMaxSize containerRuntimeEndpoint
            contentType cpuManagerPolicy hairpinMode healthzBindAddress
            imagePullCredentialsVerificationPolicy imageServiceEndpoint kind kubeReservedCgroup
            kubeletCgroups memoryManagerPolicy memoryReservationPolicy podCIDR podLogsDir providerID
            reservedSystemCPUs resolvConf showHiddenMetricsForVersion staticPodPath staticPodURL
            systemCgroups systemReservedCgroup tlsCertFile tlsMinVersion tlsPrivateKeyFile
            topologyManagerPolicy topologyManagerScope volumePluginDir""",
        "integer": """
            containerLogMaxFiles containerLogMaxWorkers eventBurst eventRecordQPS evictionMaxPodGracePeriod
            healthzPort imageGCHighThresholdPercent imageGCLowThresholdPercent iptablesDropBit
            iptablesMasqueradeBit kubeAPIBurst kubeAPIQPS maxOpenFiles maxParallelImagePulls maxPods
            nodeLeaseDurationSeconds nodeStatusMaxImages oomScoreAdj podPidsLimit podsPerCore port
            readOnlyPort registryBurst registryPullQPS""",
        "number": "memoryThrottlingFactor",
        "boolean": """
            cgroupsPerQOS cpuCFSQuota enableContentionProfiling enableControllerAttachDetach
            enableDebugFlagsHandler enableDebuggingHandlers enableProfilingHandler enableServer
            enableSystemLogHandler enableSystemLogQuery failCgroupV1 failSwapOn kernelMemcgNotification
            localStorageCapacityIsolation makeIPTablesUtilChains mergeDefaultEvictionSettings
            protectKernelDefaults registerNode rotateCertificates runOnce seccompDefault serializeImagePulls
            serverTLSBootstrap singleProcessOOMKill""",
        "duration": """
            containerLogMonitorInterval cpuCFSQuotaPeriod cpuManagerReconcilePeriod draManagerReconcilePeriod
            evictionPressureTransitionPeriod fileCheckFrequency httpCheckFrequency imageMaximumGCAge
            imageMinimumGCAge nodeStatusReportFrequency nodeStatusUpdateFrequency runtimeRequestTimeout
            shutdownGracePeriod shutdownGracePeriodCriticalPods streamingConnectionIdleTimeout syncFrequency
            volumeStatsAggPeriod""",
        "string[]": """
            allowedUnsafeSysctls clusterDNS enforceNodeAllocatable preloadedImagesVerificationAllowlist
            tlsCipherSuites""",
        "integer[]": "tlsCurvePreferences",
        "{string}": """
            cpuManagerPolicyOptions evictionHard evictionMinimumReclaim evictionSoft evictionSoftGracePeriod
            kubeReserved qosReserved systemReserved topologyManagerPolicyOptions""",
        "{boolean}": "featureGates",
        "{string[]}": "staticPodURLHeader",
        "CrashLoopBackOffConfig": "crashLoopBackOff",
        "KubeletAuthentication": "authentication",
        "KubeletAuthorization": "authorization",
        "LoggingConfiguration": "logging",
        "MemoryReservation[]": "reservedMemory",
        "MemorySwapConfiguration": "memorySwap",
        "ShutdownGracePeriodByPodPriority[]": "shutdownGracePeriodByPodPriority",
        "TracingConfiguration": "tracing",
        "UserNamespaces": "userNamespaces",
        "V1Taint[]": "registerWithTaints",
    },
    "CrashLoopBackOffConfig": {"duration": "maxContainerRestartPeriod"},
    "KubeletAuthentication": {
        "KubeletAnonymousAuthentication": "anonymous",
        "KubeletWebhookAuthentication": "webhook",
        "KubeletX509Authentication": "x509",
    },
    "KubeletAnonymousAuthentication": {"boolean": "enabled"},
    "KubeletWebhookAuthentication": {"boolean": "enabled", "duration": "cacheTTL"},
    "KubeletX509Authentication": {"string": "clientCAFile"},
    "KubeletAuthorization": {"string": "mode", "KubeletWebhookAuthorization": "webhook"},
    "KubeletWebhookAuthorization": {"duration": "cacheAuthorizedTTL cacheUnauthorizedTTL"},
    "LoggingConfiguration": {
        "string": "format",
        "int-or-string": "flushFrequency",
        "integer": "verbosity",
        "VModuleItem[]": "vmodule",
        "FormatOptions": "options",
    },
    "VModuleItem": {"string": "filePattern", "integer": "verbosity"},
    "FormatOptions": {"OutputRoutingOptions": "json text"},
    "OutputRoutingOptions": {"boolean": "splitStream", "quantity": "infoBufferSize"},
    "MemoryReservation": {"integer": "numaNode", "{quantity}": "limits"},
    "MemorySwapConfiguration": {"string": "swapBehavior"},
    "ShutdownGracePeriodByPodPriority": {"integer": "priority shutdownGracePeriodSeconds"},
    "TracingConfiguration": {"string": "endpoint", "integer": "samplingRatePerMillion"},
    "UserNamespaces": {"integer": "idsPerPod"},
}


def main() -> None:
    """Write the table, or say what is missing."""
    try:
        import kubernetes
    except ImportError:
        sys.exit(
            "known_fields: the `kubernetes` Python client is not installed here, and is no dependency of "
            "this project: make a throw-away environment with it (see the top of this file) and use that"
        )
    release = f"1.{kubernetes.__version__.split('.')[0]}"
    types = client_types(kubernetes.client.models) | by_hand()
    DATA.write_text(as_text(release, types))
    print(f"{DATA.name}: Kubernetes {release}, {len(types)} types, {sum(map(len, types.values()))} fields")


def by_hand() -> dict[str, dict[str, str]]:
    """`BY_HAND`, turned to type → field → notation."""
    return {
        name: {field: notation for notation, fields in groups.items() for field in fields.split()}
        for name, groups in BY_HAND.items()
    }


def client_types(models: Any) -> dict[str, dict[str, str]]:  # noqa: ANN401 (a module of the client)
    """Every type that can be reached from `KINDS`, as type → field → notation."""
    found: dict[str, dict[str, str]] = {}
    waiting = [f"V1{kind}{suffix}" for kind in KINDS for suffix in ("", "List")]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        model = getattr(models, name)
        fields = found[name] = {}
        for attribute, client_type in model.openapi_types.items():
            notation = notation_of(client_type, model, attribute)
            fields[model.attribute_map[attribute]] = notation
            waiting += re.findall(r"\b[A-Z]\w+", notation)
        for field in QUANTITIES.get(name, "").split():
            fields[field] = fields[field].replace("string", "quantity")
    if gone := QUANTITIES.keys() - found.keys():
        sys.exit(f"known_fields: this client has no {', '.join(sorted(gone))}: mend QUANTITIES")
    return found


def notation_of(client_type: str, model: Any, attribute: str) -> str:  # noqa: ANN401 (a model of the client)
    """The client's `List[str]`, `Dict[str, str]`, `V1Container` in our notation."""
    if listed := re.fullmatch(r"List\[(.+)\]", client_type):
        return notation_of(listed[1], model, attribute) + "[]"
    if mapped := re.fullmatch(r"Dict\[str, (.+)\]", client_type):
        return "{" + notation_of(mapped[1], model, attribute) + "}"
    if client_type == "object":  # the annotation tells whether it is a number or a string, or anything
        annotation = repr(model.model_fields[attribute].annotation)
        return "int-or-string" if re.search(r"\bint\b.*\bstr\b", annotation) else "any"
    if client_type in SCALARS:
        return SCALARS[client_type]
    if not client_type[0].isupper():
        sys.exit(f"known_fields: {model.__name__}.{attribute} is {client_type!r}, new to this tool: add it")
    return client_type


def as_text(release: str, types: dict[str, dict[str, str]]) -> str:
    """Python with a line a type, sorted, so that a new release is a small diff. Compiled once, it loads in a fraction
    of the time that JSON takes, which every manifest with a field we do not honour would pay at every start."""
    lines = "\n".join(
        f"    {json.dumps(name)}: {json.dumps(types[name], sort_keys=True)}," for name in sorted(types)
    )
    return (
        '"""Every field that Kubernetes has, by type. Made by tools/known_fields.py; do not edit."""\n\n'
        f'RELEASE = "{release}"\n\nTYPES: dict[str, dict[str, str]] = {{\n{lines}\n}}\n'
    )


if __name__ == "__main__":
    main()
