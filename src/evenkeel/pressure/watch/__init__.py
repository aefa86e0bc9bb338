"""The memory watch as a process, `evenkeel-watch`: its program, its guard, and its protocol with the agent."""
