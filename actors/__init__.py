"""The four actors of Umbel and what each of them hosts: supervisor, agent, tool executor, checkpointer."""
