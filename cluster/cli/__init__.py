"""The command ``umbel``."""
