"""Coordination patterns."""
