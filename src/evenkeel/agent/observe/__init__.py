"""What others see of the node: figures, their history, counters, and the story of a pod."""
