"""Models that tests share: a kernel, an agent without a machine, snapshots of a node, records of pods."""
