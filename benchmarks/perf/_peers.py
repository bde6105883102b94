"""The peers' harness: the same work on other frameworks, each in a virtual environment of its own, started beside ours."""

from __future__ import annotations

import os
import re
from pathlib import Path

# our workload -> the harness's. It has no 10,000 at once; peers are faster at 1,000, and that is what ours is held against.
WORKLOADS = {
    "w1": "w1",
    "w2": "w2",
    "w3_1000": "w3_1000",
    "w3_10000": "w3_1000",
    "w4": "w4",
    "w5": "w5",
    "w6": "w6",
    "w6_200": "w6_fleet200",
    "import": "import",
}


class PeersMissing(Exception):
    """The harness, an adapter or its virtual environment is not there; the message says how to get it."""


class Peers:
    """The harness in ``folder`` (its ``bench.py``), for some of its adapters.

    Args:
        folder: where the harness is.
        adapters: names of modules in its ``fw/``.

    Raises:
        PeersMissing: something is not there.
    """

    def __init__(self, folder: Path | None, adapters: list[str]) -> None:
        if folder is None:
            raise PeersMissing("--compare needs the peers' harness: give its folder with --peers DIR or UMBEL_PEERS_DIR")
        self._folder = folder.expanduser().absolute()
        if not (self._folder / "bench.py").is_file() or not (self._folder / "venvs.sh").is_file():
            raise PeersMissing(f"{self._folder} is not the peers' harness: it has no bench.py and venvs.sh")
        home = Path(os.environ.get("PEERS_HOME") or "~/.cache/umbel-peers").expanduser()
        venvs = dict(re.findall(r"\[(\w+)\]=\$V/(\w+)", (self._folder / "venvs.sh").read_text()))
        self.adapters = adapters
        self._pythons: dict[str, Path] = {}
        for adapter in adapters:
            if adapter not in venvs:
                raise PeersMissing(f"the harness has no adapter {adapter!r}; it has {', '.join(sorted(venvs))}")
            python = home / "venvs" / venvs[adapter] / "bin" / "python"
            if not python.is_file():
                raise PeersMissing(
                    f"{adapter} is not installed: {python} is missing. Install it with\n"
                    f"    {self._folder / 'install.sh'} {venvs[adapter]}\n"
                    "(PEERS_HOME says where; default ~/.cache/umbel-peers)"
                )
            self._pythons[adapter] = python

    def command(self, adapter: str, workload: str) -> list[str]:
        """What measures one of the harness's workloads and prints one JSON line."""
        return [str(self._pythons[adapter]), "-W", "ignore", str(self._folder / "bench.py"), adapter, WORKLOADS[workload]]
