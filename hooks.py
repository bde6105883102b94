"""``umbel.hooks``: the public names of ``actors/supervisor/hooks``."""

from .actors.supervisor.hooks import *  # noqa: F403
