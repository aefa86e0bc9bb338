"""Rules for the names that a pod looks up: hostAliases, dnsPolicy and dnsConfig."""

import re
from typing import TYPE_CHECKING

from evenkeel.api.pod import PodDNSConfig, PodSpec
from evenkeel.api.problems import Problems, invalid, not_supported, required, shown, unusable
from evenkeel.api.validation.name_rules import dns_subdomain

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_MOST_NAMESERVERS, _MOST_SEARCHES, _LONGEST_SEARCHES = 3, 32, 2048
_WORD = re.compile(r"[!-~]+").fullmatch  # printable, without spaces: it becomes a word of a line


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
