"""Rules for a whole pod: also for the names that it looks up (hostAliases, dnsPolicy and dnsConfig), and for its node
affinity. And rules for nodes."""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from evenkeel.api.config import Profile
from evenkeel.api.node import Node, Taint
from evenkeel.api.node_affinity import Affinity, NodeSelectorRequirement
from evenkeel.api.pod import ObjectMeta, Pod, PodDNSConfig, PodSpec, Toleration
from evenkeel.api.problems import (
    Problems,
    forbidden,
    invalid,
    not_supported,
    required,
    shown,
    too_long,
    unusable,
)
from evenkeel.api.validation.container_rules import RESTART_POLICIES, container_problems
from evenkeel.api.validation.name_rules import (
    dns_label,
    dns_subdomain,
    generated_name,
    label_value,
    name_prefix,
    qualified_name,
    uid,
)
from evenkeel.api.validation.resource_rules import overhead, pod_level
from evenkeel.api.validation.security_rules import pod_security
from evenkeel.api.validation.volume_rules import check_volumes

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

_GREATEST_INT32 = 2**31 - 1
_LONGEST_HOSTNAME = 64
_LONGEST_ANNOTATIONS_BYTES = 256 * 1024
_MIRROR = "kubernetes.io/config.mirror"
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_COST = re.compile(r"0|(?:[1-9]|-[0-9])[0-9]{0,20}", re.ASCII).fullmatch
_AFFINITY = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
_LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_MOST_NAMESERVERS, _MOST_SEARCHES, _LONGEST_SEARCHES = 3, 32, 2048
_WORD = re.compile(r"[!-~]+").fullmatch  # printable, without spaces: it becomes a word of a line


def validate_pod(pod: Pod, profile: Profile) -> Problems:
    """Every problem of `pod` after defaulting; none if the pod is valid."""
    yield from _metadata(pod.metadata)
    yield from _annotated(pod.metadata.annotations, pod.spec)
    yield from _spec(pod.spec, profile)


def _metadata(metadata: ObjectMeta) -> Problems:
    if metadata.generate_name:
        yield from _name("metadata.generateName", metadata.generate_name, name_prefix)
    if name := full_name(metadata):
        yield from _name("metadata.name", name, dns_subdomain)
    else:
        yield required("metadata.name", "a pod needs a name")
    if not metadata.namespace:
        yield required("metadata.namespace", "a pod is in a namespace: write default")
    else:
        yield from _name("metadata.namespace", metadata.namespace, dns_label)
    if metadata.uid and (wrong := uid(metadata.uid)):  # without one the node makes it
        yield unusable("metadata.uid", f"{shown(metadata.uid)} {wrong}")
    for key, value in metadata.labels.items():
        yield from _name("metadata.labels", key, qualified_name)
        if wrong := label_value(value):
            yield invalid("metadata.labels", f"{shown(value)} of label {shown(key)} {wrong}")
    yield from _annotations(metadata.annotations)


def full_name(metadata: ObjectMeta) -> str:
    if metadata.generate_name and not metadata.name:
        return generated_name(metadata.generate_name)
    return metadata.name


def _annotations(annotations: Mapping[str, str]) -> Problems:
    length_bytes = 0
    for key, value in annotations.items():
        if qualified_name(key.lower()):
            yield invalid("metadata.annotations", f"{shown(key)} {qualified_name(key.lower())}")
        length_bytes += len(key.encode(errors="replace")) + len(value.encode(errors="replace"))
    if length_bytes > _LONGEST_ANNOTATIONS_BYTES:
        yield too_long(
            "metadata.annotations",
            f"{length_bytes} bytes together are more than the {_LONGEST_ANNOTATIONS_BYTES} that are allowed",
        )


def _annotated(annotations: Mapping[str, str], spec: PodSpec) -> Problems:
    """Annotations that Kubernetes itself uses."""
    if _MIRROR in annotations and not spec.node_name:
        yield invalid(f"metadata.annotations[{_MIRROR}]", "a mirror pod is on a node: set spec.nodeName")
    cost = annotations.get(_DELETION_COST)
    if cost is not None and not (_COST(cost) and -_GREATEST_INT32 - 1 <= int(cost) <= _GREATEST_INT32):
        yield invalid(
            f"metadata.annotations[{_DELETION_COST}]", f"{shown(cost)} must be a whole number of 32 bits"
        )


def _name(path: str, seen: str, rule: Callable[[str], str]) -> Problems:
    wrong = rule(seen)
    if wrong:
        yield invalid(path, f"{shown(seen)} {wrong}")


def _spec(spec: PodSpec, profile: Profile) -> Problems:
    volumes = check_volumes(spec.volumes, "spec.volumes")
    yield from volumes.problems
    yield from container_problems(spec, volumes.names)
    yield from pod_level(spec, profile)
    yield from overhead(spec.overhead, "spec.overhead")
    if not spec.restart_policy:
        yield required("spec.restartPolicy", f"write {' or '.join(RESTART_POLICIES)}")
    elif spec.restart_policy not in RESTART_POLICIES:
        yield not_supported("spec.restartPolicy", spec.restart_policy, RESTART_POLICIES)
    grace = spec.termination_grace_period_seconds
    if grace is None:
        yield required("spec.terminationGracePeriodSeconds", "write a number of seconds")
    elif grace < 0:
        yield invalid("spec.terminationGracePeriodSeconds", f"{grace} must be 0 or more")
    deadline = spec.active_deadline_seconds
    if deadline is not None and not 1 <= deadline <= _GREATEST_INT32:
        yield invalid("spec.activeDeadlineSeconds", f"{deadline} must be from 1 to {_GREATEST_INT32}")
    if spec.priority_class_name:
        yield from _name("spec.priorityClassName", spec.priority_class_name, dns_subdomain)
    if spec.node_name:
        yield from _name("spec.nodeName", spec.node_name, dns_subdomain)
    if spec.hostname:
        yield from _name("spec.hostname", spec.hostname, dns_label)
    if spec.hostname_override is not None:
        yield from _hostname_override(spec.hostname_override, spec)
    if spec.service_account_name:
        yield from _name("spec.serviceAccountName", spec.service_account_name, dns_subdomain)
    if spec.runtime_class_name is not None:
        yield from _name("spec.runtimeClassName", spec.runtime_class_name, dns_subdomain)
    if spec.subdomain:
        yield from _name("spec.subdomain", spec.subdomain, dns_label)
    if spec.affinity is not None:
        yield from affinity_problems(spec.affinity)
    yield from network_problems(spec)
    yield from pod_security(spec)
    for index, toleration in enumerate(spec.tolerations):
        yield from _toleration(toleration, f"spec.tolerations[{index}]")


def _hostname_override(name: str, spec: PodSpec) -> Problems:
    path = "spec.hostnameOverride"
    if spec.host_network:
        yield forbidden(path, "with hostNetwork: true the pod has the name of the machine: leave it out")
    if len(name) > _LONGEST_HOSTNAME:
        yield too_long(
            path, f"{shown(name)} has {len(name)} characters, and a host name {_LONGEST_HOSTNAME} at most"
        )
    yield from _name(path, name, dns_subdomain)


def _toleration(toleration: Toleration, path: str) -> Problems:
    operator = toleration.operator
    if toleration.key:
        yield from _name(f"{path}.key", toleration.key, qualified_name)
    elif operator != "Exists":
        yield invalid(f"{path}.operator", f"{shown(operator)} must be Exists where there is no key")
    if toleration.toleration_seconds is not None and toleration.effect != "NoExecute":
        yield invalid(
            f"{path}.effect", f"{shown(toleration.effect)} must be NoExecute where tolerationSeconds is set"
        )
    if operator in ("", "Equal"):
        yield from _name(f"{path}.operator", toleration.value, label_value)
    elif operator != "Exists":
        yield not_supported(f"{path}.operator", operator, ("Equal", "Exists"))
    elif toleration.value:
        yield invalid(f"{path}.operator", f"Exists takes no value, and {shown(toleration.value)} is there")
    if toleration.effect and toleration.effect not in _EFFECTS:
        yield not_supported(f"{path}.effect", toleration.effect, _EFFECTS)


# Nodes


def validate_node(node: Node) -> Problems:
    """Every problem of a node that pods are scheduled to (`evenkeel schedule`)."""
    yield from _name("metadata.name", node.metadata.name, dns_subdomain)
    for index, taint in enumerate(node.spec.taints):
        yield from _taint(taint, f"spec.taints[{index}]")
    for field in ("capacity", "allocatable"):
        for name, amount in getattr(node.status, field).items():
            if amount.sign < 0:
                yield invalid(f"status.{field}[{name}]", f"{amount} is less than nothing: write 0 or more")


def _taint(taint: Taint, path: str) -> Problems:
    yield from _name(f"{path}.key", taint.key, qualified_name)
    yield from _name(f"{path}.value", taint.value, label_value)
    if taint.effect not in _EFFECTS:
        yield not_supported(f"{path}.effect", taint.effect, _EFFECTS)


def network_problems(spec: PodSpec) -> Problems:
    for index, alias in enumerate(spec.host_aliases):
        here = f"spec.hostAliases[{index}]"
        if not is_address(alias.ip):
            yield invalid(f"{here}.ip", f"{shown(alias.ip)} must be an address such as 10.0.0.7 or fd00::7")
        for place, name in enumerate(alias.hostnames):
            if wrong := dns_subdomain(name):
                yield invalid(f"{here}.hostnames[{place}]", f"{shown(name)} {wrong}")
    if spec.dns_policy and spec.dns_policy not in _POLICIES:
        yield not_supported("spec.dnsPolicy", spec.dns_policy, _POLICIES)
    config = spec.dns_config
    if spec.dns_policy == "None" and config is None:
        yield required("spec.dnsConfig", "dnsPolicy None needs it, with at least one nameserver")
    elif spec.dns_policy == "None" and config is not None and not config.nameservers:
        yield required("spec.dnsConfig.nameservers", "dnsPolicy None needs at least one nameserver")
    elif config is not None:
        yield from _dns_config(config, "spec.dnsConfig")


def _dns_config(config: PodDNSConfig, path: str) -> Problems:
    if len(config.nameservers) > _MOST_NAMESERVERS:
        yield invalid(
            f"{path}.nameservers", f"has {len(config.nameservers)}, and may have {_MOST_NAMESERVERS}"
        )
    for index, server in enumerate(config.nameservers):
        if not is_address(server):
            yield invalid(
                f"{path}.nameservers[{index}]", f"{shown(server)} must be an address such as 10.0.0.53"
            )
    if len(config.searches) > _MOST_SEARCHES or len(" ".join(config.searches)) > _LONGEST_SEARCHES:
        yield invalid(
            f"{path}.searches",
            f"may have {_MOST_SEARCHES} domains of {_LONGEST_SEARCHES} characters together",
        )
    for index, search in enumerate(config.searches):
        # A domain may end with a dot, and . alone is the root.
        if search != "." and (wrong := dns_subdomain(search.removesuffix(".").replace("_", "x"))):
            yield invalid(f"{path}.searches[{index}]", f"{shown(search)} {wrong}")
    for index, option in enumerate(config.options):
        if not option.name:
            yield required(f"{path}.options[{index}]", "an option needs a name, such as ndots")
        elif not _WORD(option.name) or (option.value and not _WORD(option.value)):
            yield unusable(f"{path}.options[{index}]", "must be of printable characters without spaces")


def is_address(text: str) -> bool:
    """Whether it is an address, without zeros before its numbers and not an IPv4 address within an IPv6 address."""
    address = address_of(text)
    return address is not None and (":" in text or str(address) == text) and not _is_mapped(address)


def address_of(text: str) -> "IPv4Address | IPv6Address | None":
    """The address that is meant; None if it is none. A part of an IPv4 address may begin with zeros."""
    from ipaddress import ip_address  # few pods need it, and short commands must not pay for it

    if "%" in text:
        return None
    if ":" not in text:
        text = ".".join(part.lstrip("0") or part[-1:] for part in text.split("."))
    try:
        return ip_address(text)
    except ValueError:
        return None


def _is_mapped(address: "IPv4Address | IPv6Address") -> bool:
    return address.version == 6 and address.ipv4_mapped is not None


def affinity_problems(affinity: Affinity) -> Problems:
    selector = affinity.required
    if selector is None:
        return
    if not selector.node_selector_terms:
        yield required(_AFFINITY, "write at least one term, or leave the affinity out")
    for number, term in enumerate(selector.node_selector_terms):
        for index, one in enumerate(term.match_expressions):
            yield from _label_requirement(one, f"{_AFFINITY}[{number}].matchExpressions[{index}]")
        for index, one in enumerate(term.match_fields):
            path = f"{_AFFINITY}[{number}].matchFields[{index}]"
            if one.key != "metadata.name":
                yield not_supported(f"{path}.key", one.key, ("metadata.name",))
            if one.operator not in ("In", "NotIn"):
                yield not_supported(f"{path}.operator", one.operator, ("In", "NotIn"))
            elif len(one.values) != 1:
                yield invalid(f"{path}.values", f"must be one name, not {len(one.values)}")


def _label_requirement(one: NodeSelectorRequirement, path: str) -> Problems:
    if not one.key:
        yield required(f"{path}.key", "write the label to compare")
    if one.operator not in _LABEL_OPERATORS:
        yield not_supported(f"{path}.operator", one.operator, _LABEL_OPERATORS)
    elif one.operator in ("In", "NotIn") and not one.values:
        yield required(f"{path}.values", f"{one.operator} needs values to compare with")
    elif one.operator in ("Exists", "DoesNotExist") and one.values:
        yield invalid(f"{path}.values", f"{one.operator} takes no values")
    elif one.operator in ("Gt", "Lt") and len(one.values) != 1:
        yield invalid(f"{path}.values", f"{one.operator} takes one number, not {len(one.values)} values")
