"""The files /etc/hosts and /etc/resolv.conf of a pod that asks for its own: hostAliases, dnsPolicy and
dnsConfig, a host name, or a network of its own. Pure.

Other pods have the machine's. Without a cluster there is no cluster DNS: `ClusterFirst` is then the same as `Default`,
as in kubelet.
"""

from evenkeel.api.pod import Pod, PodDNSConfig
from evenkeel.policy.service_names import wants_names
from evenkeel.runtime.environment import hostname
from evenkeel.runtime.images.references import is_of_registry

HOSTS, RESOLV_CONF = "hosts", "resolv.conf"
# In the directory of an attempt of the process runtime: it has these files, and counts as its disk.
ETC = "etc"
# The first line is kubelet's: some programs look for it before they change the file.
_OWN_HOSTS = """\
# Kubernetes-managed hosts file.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::0\tip6-localnet
ff02::1\tip6-allnodes
ff02::2\tip6-allrouters
"""
_NONE = "None"  # a dnsPolicy: nothing of the machine's
_MOST_NAMESERVERS, _MOST_SEARCHES = 3, 32  # what the C library reads, and what kubelet writes


def own_files(pod: Pod) -> tuple[str, ...]:
    """Returns the names in /etc of the files that the pod has for itself."""
    spec = pod.spec
    names = []
    if spec.host_aliases or _has_own_address(pod) or _is_named(pod) or _may_get_names(pod):
        names.append(HOSTS)
    if spec.dns_config is not None or spec.dns_policy == _NONE:
        names.append(RESOLV_CONF)
    return tuple(names)


def file_text(name: str, pod: Pod, of_host: str) -> str:
    """Returns the content of a file. `of_host` is the machine's."""
    return hosts_text(pod, of_host) if name == HOSTS else resolv_conf_text(pod, of_host)


def hosts_text(pod: Pod, of_host: str) -> str:
    """Returns the machine's file and the pod's own lines, each with an address and its names. The pod's own name is
    there, unless it has the machine's. A pod with a network of its own has nothing else of the machine's."""
    before = _OWN_HOSTS if _has_own_address(pod) else of_host
    if before and not before.endswith("\n"):
        before += "\n"
    if not pod.spec.host_network:
        before += "".join(f"{one.ip}\t{_own_names(pod)}\n" for one in pod.status.pod_ips)
    if not pod.spec.host_aliases:
        return before
    lines = ("\t".join((alias.ip, *alias.hostnames)) for alias in pod.spec.host_aliases)
    return f"{before}\n# Entries of hostAliases and of Services.\n" + "".join(f"{line}\n" for line in lines)


def _own_names(pod: Pod) -> str:
    """The pod's host name, and before it the name with its domain, as kubelet has them."""
    name = hostname(pod)
    domain = pod.spec.subdomain if pod.spec.hostname_override is None else ""
    return f"{name}.{domain}.{pod.metadata.namespace}.svc.cluster.local\t{name}" if domain else name


def _is_named(pod: Pod) -> bool:
    """Whether the manifest gives the pod a host name. Programs look it up, such as `hostname -f` or Java."""
    return bool(pod.spec.hostname or pod.spec.subdomain) and not pod.spec.host_network


def _may_get_names(pod: Pod) -> bool:
    """Whether names of Services may have to be written while it runs. Programs of the machine (`image: host`) are
    excluded: they have the names of the time when they start."""
    return wants_names(pod) and any(is_of_registry(one.image) for one in pod.spec.every_container)


def _has_own_address(pod: Pod) -> bool:
    return pod.status.pod_ip not in ("", pod.status.host_ip)


def resolv_conf_text(pod: Pod, of_host: str) -> str:
    """Returns the pod's file: the machine's settings, unless dnsPolicy is None, then those of dnsConfig. An option of
    dnsConfig replaces the machine's of the same name."""
    nameservers: list[str] = []
    searches: list[str] = []
    options: dict[str, str] = {}
    if pod.spec.dns_policy != _NONE:
        nameservers, searches, options = _parsed(of_host)
    config = pod.spec.dns_config or PodDNSConfig()
    nameservers += config.nameservers
    searches += config.searches
    options.update({one.name: one.value or "" for one in config.options})
    lines = [f"nameserver {one}" for one in [*dict.fromkeys(nameservers)][:_MOST_NAMESERVERS]]
    if searches:
        lines.append(f"search {' '.join([*dict.fromkeys(searches)][:_MOST_SEARCHES])}")
    if options:
        words = (f"{name}:{value}" if value else name for name, value in options.items())
        lines.append(f"options {' '.join(words)}")
    return "".join(f"{line}\n" for line in lines)


def _parsed(text: str) -> tuple[list[str], list[str], dict[str, str]]:
    """Reads nameservers, search domains and options, as resolv.conf(5) describes them. The last search counts."""
    nameservers: list[str] = []
    searches: list[str] = []
    options: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith(("#", ";")):
            continue
        words = line.split()
        if words[:1] == ["nameserver"]:
            nameservers += words[1:2]
        elif words[:1] in (["search"], ["domain"]):
            searches = words[1:]
        elif words[:1] == ["options"]:
            for word in words[1:]:
                name, _, value = word.partition(":")
                options[name] = value
    return nameservers, searches, options
