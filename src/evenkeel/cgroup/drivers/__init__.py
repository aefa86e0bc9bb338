"""The drivers, which make cgroups and write their settings: `v1`, `v2` and `systemd` behind one small interface.

A few parts write single files without a driver, which would be too slow or too large for them: the memory watch and its
guard kill, freeze and throttle (`pressure.memory.cgroup_writes`), processes enter their cgroup
(`supervisor.cgroup_entry`, `agent.node.own_cgroup`), and cgroup v1 is asked for notifications
(`host.memory_notifications`).
"""
