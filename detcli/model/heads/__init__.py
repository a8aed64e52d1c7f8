"""The head of a detector: what it is, how it is found in a graph, and what its nodes show."""
