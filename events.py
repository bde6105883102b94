"""``umbel.events``: the public names of ``protocol/events.py``."""

from .protocol.events import *  # noqa: F403
