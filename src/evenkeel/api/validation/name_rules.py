"""Rules for names. Each function returns what the name must be, or an empty text if the name is valid.

Names of pods, namespaces, containers and volumes become parts of paths, as does the UID of a pod. They must not contain
a slash or `..`, so that such a path cannot leave its directory.
"""

_DIGITS = "0123456789"
_SMALL = "abcdefghijklmnopqrstuvwxyz"
_LETTERS = _SMALL + _SMALL.upper()
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))

_LONGEST_LABEL = 63
_LONGEST_SUBDOMAIN = 253
_LONGEST_PORT = 15
_LONGEST_UID = 128


def dns_label(name: str) -> str:
    if len(name) <= _LONGEST_LABEL and _is_part(name, _SMALL + _DIGITS, "-"):
        return ""
    return "must be 1 to 63 of a-z, 0-9 and -, with a letter or digit at both ends"


def dns_subdomain(name: str) -> str:
    if len(name) <= _LONGEST_SUBDOMAIN and all(
        _is_part(part, _SMALL + _DIGITS, "-") for part in name.split(".")
    ):
        return ""
    return "must be 1 to 253 of a-z, 0-9, - and ., with a letter or digit at both ends and around each ."


def name_prefix(prefix: str) -> str:
    """For `generateName`. It may end with -, because the API server appends more characters."""
    return dns_subdomain(f"{prefix[:-2]}a" if len(prefix) > 1 and prefix.endswith("-") else prefix)


def generated_name(prefix: str) -> str:
    """A name as the API server makes it from `generateName`: cut to the length of a label, with five more
    characters."""
    return f"{prefix[: _LONGEST_LABEL - 5]}xxxxx"


def qualified_name(name: str) -> str:
    """For keys of labels and names of resources: `name` or `example.com/name`."""
    prefix, slash, rest = name.rpartition("/")
    if slash and (wrong := dns_subdomain(prefix)):
        return f"must have a DNS name such as example.com before the /, which {wrong}"
    if len(rest) <= _LONGEST_LABEL and _is_part(rest, _LETTERS + _DIGITS, "-_."):
        return ""
    return "must be 1 to 63 letters, digits, -, _ and ., with a letter or digit at both ends"


def label_value(value: str) -> str:
    if not value or (len(value) <= _LONGEST_LABEL and _is_part(value, _LETTERS + _DIGITS, "-_.")):
        return ""
    return "must be empty, or up to 63 letters, digits, -, _ and ., with a letter or digit at both ends"


def environment_name(name: str) -> str:
    if name and "=" not in name and _is_of(name, _PRINTABLE):
        return ""
    return "must be of printable ASCII characters without ="


def data_key(key: str) -> str:
    """For keys of ConfigMaps and Secrets, which become names of files."""
    is_short = 0 < len(key) <= _LONGEST_SUBDOMAIN
    if is_short and _is_of(key, _LETTERS + _DIGITS + "-_.") and key != "." and not key.startswith(".."):
        return ""
    return "must be 1 to 253 letters, digits, -, _ and ., and not . or with .. at its beginning"


def port_name(name: str) -> str:
    is_short = len(name) <= _LONGEST_PORT and "--" not in name
    if is_short and _is_part(name, _SMALL + _DIGITS, "-") and not _is_of(name, _DIGITS + "-"):
        return ""
    return "must be 1 to 15 of a-z, 0-9 and single -, with at least one letter and no - at its ends"


def header_name(name: str) -> str:
    return "" if name and _is_of(name, _LETTERS + _DIGITS + "-") else "must be of letters, digits and -"


def uid(text: str) -> str:
    if len(text) <= _LONGEST_UID and _is_part(text, _LETTERS + _DIGITS, "-"):
        return ""
    return "must be 1 to 128 letters, digits and -, with a letter or digit at both ends"


def plain_text(text: str) -> str:
    """For texts that are passed to the kernel: paths and arguments cannot contain a NUL."""
    if "\0" in text:
        return "must not hold a NUL character"
    if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text):
        return ""
    return "must be Unicode, without halves of surrogate pairs"


def _is_part(name: str, ends: str, inner: str) -> bool:
    """Whether `name` consists of `ends` and `inner`, is not empty, and begins and ends with one of `ends`."""
    return bool(name) and name[0] in ends and name[-1] in ends and _is_of(name, ends + inner)


def _is_of(text: str, letters: str) -> bool:
    return not text.strip(letters)
