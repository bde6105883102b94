"""``umbel.errors``: the public names of ``protocol/errors.py``."""

from .protocol.errors import *  # noqa: F403
