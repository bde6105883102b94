"""State graphs: nodes that read and write a shared state, superstep by superstep."""
