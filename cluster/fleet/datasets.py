"""Ray Data datasets as tasks, streamed: blocks come as workers get free, never the whole dataset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from ...protocol.errors import ConfigurationError
from .formats import Item, parse_row
from .inputs import Columns

_ROWS = 256


def is_dataset(value: object) -> bool:
    """Whether it is a dataset of Ray Data, told without importing Ray."""
    return type(value).__module__.startswith("ray.data") and hasattr(value, "iter_batches")


def _hush() -> None:
    """The fleet shows its own progress."""
    from ray.data import DataContext

    DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)


def read_dataset(make: Callable[[], Any], name: str, columns: Columns) -> Iterator[Item]:
    """The tasks of a dataset; it is made when the first is asked for.

    Args:
        make: gives the dataset, on a process that has joined Ray.
        name: what to call it in messages.
        columns: which column is what.

    Raises:
        ConfigurationError: what ``make`` gives is no dataset.
    """
    _hush()
    dataset = make()
    if not is_dataset(dataset):
        raise ConfigurationError(f"{name}: expected a Ray Data dataset, found {type(dataset).__name__}")
    number = 0
    for batch in dataset.iter_batches(batch_size=_ROWS, batch_format="pyarrow", prefetch_batches=1):
        for row in batch.to_pylist():
            number += 1
            yield parse_row(row, columns, number, f"{name}, row {number}")
