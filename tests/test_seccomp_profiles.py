"""Seccomp profiles of the operator: what compiles, and what is refused with its reason."""

import json

import pytest

from evenkeel.runtime.process.seccomp import NoFilter
from evenkeel.runtime.process.seccomp_profiles import BadProfile, localhost_filter

ALLOW = {"defaultAction": "SCMP_ACT_ALLOW"}


def compiled(directory, profile: object, name: str = "p.json") -> int:
    (directory / name).write_text(json.dumps(profile))
    return localhost_filter(str(directory), name).length


def rule(**more: object) -> dict[str, object]:
    return {**ALLOW, "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", **more}]}


def test_a_profile_of_the_oci_format_compiles(tmp_path):
    bare = compiled(tmp_path, ALLOW)
    assert compiled(tmp_path, rule()) > bare
    one = {"index": 0, "value": 7, "op": "SCMP_CMP_EQ"}
    both = rule(args=[one, {**one, "index": 1}])
    any_of = rule(args=[one, {**one, "value": 8}])
    assert compiled(tmp_path, both) > compiled(tmp_path, rule())
    assert compiled(tmp_path, any_of) > compiled(tmp_path, rule())
    more = {**rule(), "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"]}
    assert compiled(tmp_path, more) > compiled(tmp_path, rule())


def test_rules_that_change_nothing_and_calls_that_nobody_knows_are_passed_over(tmp_path):
    same = {**ALLOW, "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_ALLOW", "args": []}]}
    unknown = {**ALLOW, "syscalls": [{"names": ["fly"], "action": "SCMP_ACT_KILL"}]}
    assert compiled(tmp_path, same) == compiled(tmp_path, unknown) == compiled(tmp_path, ALLOW)


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        ([], "not a JSON object"),
        ({}, "action None is not one of"),
        ({"defaultAction": "SCMP_ACT_NOTIFY"}, "SCMP_ACT_NOTIFY is not one of"),
        ({**ALLOW, "archMap": [{"architecture": "x"}]}, "'archMap', which is not in the OCI format"),
        (rule(includes={"caps": ["CAP_SYS_ADMIN"]}), "'includes'"),
        (rule(errnoRet=1 << 20), "must be from 0 to 65535"),
        (rule(args=[{"index": 0, "op": "SCMP_CMP_LIKE"}]), "must have an index"),
        ({**ALLOW, "syscalls": [{"action": "SCMP_ACT_KILL"}]}, "no names"),
        ({**ALLOW, "flags": ["FLY"]}, "flag FLY is not known"),
    ],
)
def test_a_profile_that_is_not_understood_is_refused(tmp_path, profile, words):
    with pytest.raises(BadProfile, match=r"seccomp profile 'p\.json'") as refused:
        compiled(tmp_path, profile)
    assert words in refused.value.message


def test_an_architecture_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(NoFilter, match="vax"):
        compiled(tmp_path, {**ALLOW, "architectures": ["SCMP_ARCH_VAX"]})


def test_a_profile_is_never_taken_from_elsewhere(tmp_path):
    root = tmp_path / "profiles"
    root.mkdir()
    (tmp_path / "outside.json").write_text(json.dumps(ALLOW))
    (root / "link.json").symlink_to("../outside.json")
    for name in ("../outside.json", "link.json", str(tmp_path / "outside.json"), "none.json"):
        with pytest.raises(BadProfile, match="cannot be read below"):
            localhost_filter(str(root), name)
