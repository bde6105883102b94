"""Hooks: code that sees, changes or stops what a run does (``base.py`` says what a hook may rely on)."""

from .base import CALLBACKS, Hook, PerRun, Priority
from .content_filter import ContentFilterHook
from .dispatch import (
    MAX_MODEL_ATTEMPTS,
    Hooks,
    after_invocation_all,
    as_result_text,
    before_invocation_all,
    call,
    replacement,
    with_feedback,
)
from .events import AfterModelCall, AfterToolCall, BeforeCompaction, BeforeModelCall, BeforeToolCall, HookEvent
from .guardrails import GuardrailsHook, Violation
from .logging import LoggingHook, StructuredLoggingHook
from .model_retry import ModelRetryHook
from .output_filter import OutputFilterHook
from .plugin import Plugin, hook
from .registry import HookRegistry
from .steering import Decision, SteeringHook
from .telemetry import TelemetryHook
from .trace_context import child_metadata, trace_context

__all__ = [
    "CALLBACKS",
    "MAX_MODEL_ATTEMPTS",
    "AfterModelCall",
    "AfterToolCall",
    "BeforeCompaction",
    "BeforeModelCall",
    "BeforeToolCall",
    "ContentFilterHook",
    "Decision",
    "GuardrailsHook",
    "Hook",
    "HookEvent",
    "HookRegistry",
    "Hooks",
    "LoggingHook",
    "ModelRetryHook",
    "OutputFilterHook",
    "PerRun",
    "Plugin",
    "Priority",
    "SteeringHook",
    "StructuredLoggingHook",
    "TelemetryHook",
    "Violation",
    "after_invocation_all",
    "as_result_text",
    "before_invocation_all",
    "call",
    "child_metadata",
    "hook",
    "replacement",
    "trace_context",
    "with_feedback",
]
