"""The cgroup tree: the desired tree as data (tree, plan, diff), and the drivers that write it."""
