"""Python's cyclic garbage collector, tuned for many small values that are freed by their reference counts.

With a thousand runs in flight the collector's default setting costs half as much CPU as the runs themselves: every 700
allocations it looks through the youngest values, and again and again through all that was ever imported. Conversations and
states are trees, so there is little to find.
"""

from __future__ import annotations

import gc
import os

PYTHON_DEFAULT = (700, 10, 10)
RELAXED = (20_000, 20, 20)


def relax(threshold: tuple[int, int, int] = RELAXED) -> None:
    """Leave out what is alive now, and look for cycles less often.

    It changes nothing where the program has chosen a setting of its own, or with ``UMBEL_GC=default`` in the environment.

    Args:
        threshold: as for ``gc.set_threshold``.
    """
    if gc.get_threshold() == PYTHON_DEFAULT and os.environ.get("UMBEL_GC") != "default":
        gc.collect()
        gc.freeze()
        gc.set_threshold(*threshold)
