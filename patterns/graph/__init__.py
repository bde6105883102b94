"""State graphs: nodes that read and write a shared state, superstep by superstep. Source: PAT-30 to PAT-63, OURS-28."""

from .bodies import NodeFailure, emit, interrupt
from .builder import StateGraph
from .commands import END, PARENT, START, Command, Send, finish, goto, proceed, resume_with
from .compiled import CompiledGraph
from .options import CachePolicy, NodeRetry
from .result import GraphResult, NodeResult
from .state_view import GraphState
from .structure import EdgeView, NodeView, Structure

__all__ = [
    "END",
    "PARENT",
    "START",
    "CachePolicy",
    "Command",
    "CompiledGraph",
    "EdgeView",
    "GraphResult",
    "GraphState",
    "NodeFailure",
    "NodeResult",
    "NodeRetry",
    "NodeView",
    "Send",
    "StateGraph",
    "Structure",
    "emit",
    "finish",
    "goto",
    "interrupt",
    "proceed",
    "resume_with",
]
