"""The agent actor: model calls, their retries and rate limits."""
