"""Rules for ConfigMaps and Secrets. No message has a value: it may be a secret."""

from collections.abc import Mapping

from evenkeel.api.data_objects import SECRET, DataObject
from evenkeel.api.pod import ObjectMeta
from evenkeel.api.problems import Problems, invalid, required, shown, too_long
from evenkeel.api.validation.name_rules import data_key, dns_label, dns_subdomain, label_value, qualified_name

MOST_BYTES = 1 << 20  # of all values together, as in Kubernetes
_SERVICE_ACCOUNT = "kubernetes.io/service-account.name"
_JSON_KEYS = {
    "kubernetes.io/dockercfg": ".dockercfg",
    "kubernetes.io/dockerconfigjson": ".dockerconfigjson",
}


def validate_data(one: DataObject) -> Problems:
    """Every problem of the object; none if it is valid."""
    yield from metadata_problems(one.metadata, one.kind)
    for key in one.content:
        if wrong := data_key(key):
            yield invalid(f"data[{key[:60]}]", f"{shown(key)} {wrong}")
    size_bytes = sum(map(len, one.content.values()))
    if size_bytes > MOST_BYTES:
        yield too_long("data", f"has {size_bytes} bytes, and a {one.kind} may have {MOST_BYTES}")
    if one.kind == SECRET:
        yield from _of_type(one.type, one.content, one.metadata.annotations)


def metadata_problems(metadata: ObjectMeta, kind: str) -> Problems:
    """What is wrong with the name, namespace and labels of an object that is no pod."""
    if not metadata.name:
        yield required("metadata.name", f"a {kind} needs a name")
    elif wrong := dns_subdomain(metadata.name):
        yield invalid("metadata.name", f"{shown(metadata.name)} {wrong}")
    if wrong := dns_label(metadata.namespace):
        yield invalid("metadata.namespace", f"{shown(metadata.namespace)} {wrong}")
    for key, value in metadata.labels.items():
        if wrong := qualified_name(key):
            yield invalid("metadata.labels", f"{shown(key)} {wrong}")
        if wrong := label_value(value):
            yield invalid("metadata.labels", f"{shown(value)} of label {shown(key)} {wrong}")


def _of_type(type_: str, content: Mapping[str, bytes], annotations: Mapping[str, str]) -> Problems:
    """Some types of Secrets say which keys there must be."""
    if type_ == "kubernetes.io/service-account-token" and not annotations.get(_SERVICE_ACCOUNT):
        yield required(
            f"metadata.annotations[{_SERVICE_ACCOUNT}]", f"a Secret of type {type_} names its account"
        )
    elif type_ in _JSON_KEYS:
        key = _JSON_KEYS[type_]
        if key not in content:
            yield required(f"data[{key}]", f"a Secret of type {type_} has this key")
        elif not _is_json(content[key]):
            yield invalid(f"data[{key}]", "is not JSON")
    elif type_ == "kubernetes.io/basic-auth" and not {"username", "password"} & content.keys():
        yield required("data[username]", f"a Secret of type {type_} has username or password")
    elif type_ == "kubernetes.io/ssh-auth" and not content.get("ssh-privatekey"):
        yield required("data[ssh-privatekey]", f"a Secret of type {type_} has this key")
    elif type_ == "kubernetes.io/tls":
        for key in ("tls.crt", "tls.key"):
            if key not in content:
                yield required(f"data[{key}]", f"a Secret of type {type_} has this key")


def _is_json(value: bytes) -> bool:
    import json  # few objects need it, and short commands must not pay for it

    try:
        json.loads(value)
    except (ValueError, RecursionError):
        return False
    return True
