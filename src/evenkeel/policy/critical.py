"""Pods that the node itself cannot do without."""

from evenkeel.api.pod import CRITICAL_PRIORITIES, SYSTEM_CRITICAL_PRIORITY, SYSTEM_NODE_CRITICAL, Pod
from evenkeel.api.profile import Profile


def is_critical(pod: Pod, profile: Profile) -> bool:
    """Kubernetes counts every pod from the node's own files as critical. On a machine where all pods come from files
    that would make eviction impossible, so the documents profile goes by priority alone."""
    if (pod.spec.priority or 0) >= SYSTEM_CRITICAL_PRIORITY:
        return True
    if profile is Profile.DOCUMENTS:
        return pod.spec.priority is None and pod.spec.priority_class_name in CRITICAL_PRIORITIES
    annotations = pod.metadata.annotations
    source = annotations.get("kubernetes.io/config.source", "api")
    return source != "api" or "kubernetes.io/config.mirror" in annotations


def is_node_critical(pod: Pod, profile: Profile) -> bool:
    return is_critical(pod, profile) and pod.spec.priority_class_name == SYSTEM_NODE_CRITICAL
