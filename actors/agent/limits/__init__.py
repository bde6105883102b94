"""What an endpoint allows one account, kept by everybody who asks it: pace, fair queue, limiter, and the cluster's desk."""

from .desk import Desk
from .limiter import Limiter
from .pace import Pace
from .queue import FairQueue
from .told import Told
from .turns import Turn

__all__ = ["Desk", "FairQueue", "Limiter", "Pace", "Told", "Turn"]
