"""The Ray job that this process runs in, if it does."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray's name: what it gives the driver of a submitted job
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"


def current_job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """The submission id of the job whose driver this process is; None outside of jobs."""
    try:
        config = json.loads(environ.get(JOB_CONFIG) or "{}")
        job_id = config["metadata"]["job_submission_id"]
    except (ValueError, KeyError, TypeError):
        return None
    return str(job_id) or None
