"""The Ray job that this process runs in, if it does."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ..actors.checkpoints.registry import resolve_url
from ..actors.checkpoints.url import StoreUrl

JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray's name: what it gives the driver of a submitted job
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"


def is_fleeting(url: str | None, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the store of that URL is in the folder that Ray unpacked for this job, and deletes some time later."""
    if url is None or current_job_id(environ) is None or not url.startswith(("sqlite:", "file:")):
        return False
    here = Path.cwd()
    return "working_dir_files" in here.parts and StoreUrl.parse(resolve_url(url)).file().is_relative_to(here)


def current_job_id(environ: Mapping[str, str] = os.environ) -> str | None:
    """The submission id of the job whose driver this process is; None outside of jobs."""
    try:
        config = json.loads(environ.get(JOB_CONFIG) or "{}")
        job_id = config["metadata"]["job_submission_id"]
    except (ValueError, KeyError, TypeError):
        return None
    return str(job_id) or None
