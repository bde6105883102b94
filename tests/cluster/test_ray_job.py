"""Inside a Ray job the runtime joins the cluster that runs the job; nothing is configured."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

JOB = """
import json, os
from umbel import Agent, Fleet, Runtime, tool
from umbel.testing import ScriptedModel, text, tool_call

@tool
async def where() -> int:
    '''The process.'''
    return os.getpid()

agent = Agent(ScriptedModel([tool_call("where"), text("done")]), [where])
result = agent.run_sync("go")
report = Fleet(agent, concurrency=8).run_sync([f"task {i}" for i in range(20)], out="results.jsonl")
import ray
print("RESULT", json.dumps({
    "message": result.message,
    "elsewhere": int(result.tool_executions[0].result) != os.getpid(),
    "ok": report.ok,
    "address": ray.get_runtime_context().gcs_address,
}))
"""


def test_a_submitted_job_runs_on_its_own_cluster(
    cluster: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    from ray.job_submission import JobStatus, JobSubmissionClient

    port, server = cluster
    (tmp_path / "job.py").write_text(JOB)
    end = time.monotonic() + 90
    while True:
        try:
            client = JobSubmissionClient(server)
            job = client.submit_job(
                entrypoint=f"exec {sys.executable} job.py", runtime_env={"working_dir": str(tmp_path)}, submission_id="one-job"
            )
            break
        except (ConnectionError, RuntimeError):  # the server answers before there is an agent to run a job
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
    while client.get_job_status(job) not in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED):
        assert time.monotonic() < end + 90, client.get_job_logs(job)
        time.sleep(0.5)
    logs = client.get_job_logs(job)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, logs
    line = next(line for line in logs.splitlines() if line.startswith("RESULT "))
    told = json.loads(line.removeprefix("RESULT "))
    assert told.pop("address").endswith(f":{port}")
    assert told == {"message": "done", "elsewhere": True, "ok": 20}
