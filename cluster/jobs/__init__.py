"""Fleets as jobs of a Ray cluster: what is sent there, how a job is submitted, watched and stopped."""
