"""Pods that the node itself cannot do without."""

from evenkeel.api.pod import SYSTEM_CRITICAL_PRIORITY, SYSTEM_NODE_CRITICAL, Pod


def is_critical(pod: Pod) -> bool:
    """Pods the node itself depends on: from the node's own files, or of one of the two system priorities."""
    source = pod.metadata.annotations.get("kubernetes.io/config.source")
    is_static = source is not None and source != "api"
    is_mirror = "kubernetes.io/config.mirror" in pod.metadata.annotations
    has_priority = pod.spec.priority is not None and pod.spec.priority >= SYSTEM_CRITICAL_PRIORITY
    return is_static or is_mirror or has_priority


def is_node_critical(pod: Pod) -> bool:
    return is_critical(pod) and pod.spec.priority_class_name == SYSTEM_NODE_CRITICAL
