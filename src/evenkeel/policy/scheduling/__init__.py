"""Which node a pod goes to: what must be free there (A9), and which of the nodes that have it is best (A10).

The rules stand in `fit` and `score` as plain integers; `cluster` walks the nodes one by one with them, and
`arrays` takes all nodes in one pass and must choose the same.
"""
