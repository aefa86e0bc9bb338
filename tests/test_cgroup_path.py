"""Cgroups as users name them, and the error where that is not a path."""

import pytest

from evenkeel.api.scalars import path_fault


@pytest.mark.req("B5")
@pytest.mark.parametrize(
    "path, fault",
    [
        ("/", ""),
        ("/system.slice/kubelet.service", ""),
        ("kubepods", 'must be an absolute path, not "kubepods": write /kubepods'),
        ("../x", 'must be an absolute path, not "../x"'),  # nothing that would be refused as well is advised
        ("a//b", 'must be an absolute path, not "a//b"'),
        ("/a/../b", 'must be a plain path without . and .., not "/a/../b"'),
        (
            "system.slice",
            'must be an absolute path, not a name of systemd such as "system.slice": write /system.slice',
        ),
        ("/a b", "must hold letters, digits and - _ . : @ only, not ' '"),
    ],
)
def test_a_path_is_taken_or_told_what_would_be_right(path, fault):
    assert path_fault(path) == fault
