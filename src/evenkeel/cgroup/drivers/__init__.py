"""The only code that writes cgroup files: `v1`, `v2` and `systemd` behind one small interface."""
