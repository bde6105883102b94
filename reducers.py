"""``umbel.reducers``: how several writes to a key of a graph's state become one value."""

from .patterns.graph.reducers import (
    REMOVE_ALL,
    Reducer,
    add,
    add_messages,
    append,
    append_unique,
    deep_merge,
    first,
    intersection,
    last,
    maximum,
    merge,
    minimum,
    reducer,
    remove_message,
    union,
)

__all__ = [
    "REMOVE_ALL",
    "Reducer",
    "add",
    "add_messages",
    "append",
    "append_unique",
    "deep_merge",
    "first",
    "intersection",
    "last",
    "maximum",
    "merge",
    "minimum",
    "reducer",
    "remove_message",
    "union",
]
