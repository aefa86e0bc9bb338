"""Which names are well formed. Each function returns what a name must be, or nothing for a good one.

Names of pods, namespaces, containers and volumes, and a pod's uid, become parts of paths; that they hold no
slash and no `..` is what keeps those paths where they belong.
"""

import re

_DNS_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?").fullmatch
_DNS_SUBDOMAIN = re.compile(
    r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
).fullmatch
_QUALIFIED = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?").fullmatch
_ENVIRONMENT = re.compile(r"[ -<>-~]+").fullmatch
_PORT = re.compile(r"(?!.*--)(?=.*[a-z])[a-z0-9](?:[-a-z0-9]*[a-z0-9])?").fullmatch
_HEADER = re.compile(r"[-A-Za-z0-9]+").fullmatch
_UID = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9]*[A-Za-z0-9])?").fullmatch

_LONGEST_LABEL = 63
_LONGEST_SUBDOMAIN = 253
_LONGEST_PORT = 15
_LONGEST_UID = 128


def dns_label(name: str) -> str:
    if len(name) > _LONGEST_LABEL or not _DNS_LABEL(name):
        return "must be 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends"
    return ""


def dns_subdomain(name: str) -> str:
    if len(name) > _LONGEST_SUBDOMAIN or not _DNS_SUBDOMAIN(name):
        return "must be 1 to 253 of a-z, 0-9, - and ., with a letter or digit at both ends and around each ."
    return ""


def name_prefix(prefix: str) -> str:
    """Of `generateName`, to which more will be added."""
    return dns_subdomain(prefix[:-1] + "a" if prefix.endswith("-") else prefix)


def qualified_name(name: str) -> str:
    """A label's key or a resource's name: `name`, or `example.com/name`."""
    prefix, slash, rest = name.rpartition("/")
    if slash and dns_subdomain(prefix):
        return f"must have a DNS name such as example.com before the /, which {dns_subdomain(prefix)}"
    if len(rest) > _LONGEST_LABEL or not _QUALIFIED(rest):
        return "must be 1 to 63 letters, digits, -, _ and ., with a letter or digit at both ends"
    return ""


def label_value(value: str) -> str:
    if value and (len(value) > _LONGEST_LABEL or not _QUALIFIED(value)):
        return "must be empty, or up to 63 letters, digits, -, _ and ., with a letter or digit at both ends"
    return ""


def environment_name(name: str) -> str:
    return "" if _ENVIRONMENT(name) else "must be of printable ASCII characters without ="


def port_name(name: str) -> str:
    if len(name) > _LONGEST_PORT or not _PORT(name):
        return "must be 1 to 15 of a-z, 0-9 and single -, with at least one letter and no - at its ends"
    return ""


def header_name(name: str) -> str:
    return "" if _HEADER(name) else "must be of letters, digits and -"


def uid(text: str) -> str:
    if len(text) > _LONGEST_UID or not _UID(text):
        return "must be 1 to 128 letters, digits and -, with a letter or digit at both ends"
    return ""


def plain_text(text: str) -> str:
    """What can be handed to the kernel: neither paths nor arguments can hold a NUL."""
    if "\0" in text:
        return "must not hold a NUL character"
    return "" if text.isascii() or _is_unicode(text) else "must be Unicode, without halves of surrogate pairs"


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
