"""``umbel.termination``: the public names of ``protocol/termination.py``."""

from .protocol.termination import *  # noqa: F403
