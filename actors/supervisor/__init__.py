"""The supervisor: runs the loop. Start reading in ``loop.py``."""
