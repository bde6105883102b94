"""``python -m umbel``: the command, where its script is not on the path, as in a job that brought Umbel along."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command, or say which package this Python lacks."""
    try:
        from umbel.cluster.cli.main import main as command
    except ModuleNotFoundError as error:
        sys.exit(
            f"umbel: this Python ({sys.executable}) has no {error.name!r}, which Umbel needs; install umbel there, or job.pip"
        )
    command()


if __name__ == "__main__":
    main()
