"""The HTTP interface of the agent: at its Unix socket, over TCP, and for the dashboard."""
