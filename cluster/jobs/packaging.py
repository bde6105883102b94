"""What a job takes along: the user's working directory, and Umbel itself."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...protocol.errors import ConfigurationError

MAX_BYTES = 500 * 1024 * 1024  # Ray's own limit of a package
EXCLUDES = (".git", ".venv", "venv", "node_modules", "__pycache__", "*.pyc", ".mypy_cache", ".ruff_cache", ".pytest_cache")
_SKIPPED = frozenset({"__pycache__", "build", "dist", "examples", "out", "tests"})


def copy_package(target: Path) -> Path:
    """Copy the running Umbel to ``target/umbel``, whatever its own folder is called; only packages, as in a wheel.

    Returns:
        The copy.
    """
    root = Path(__file__).resolve().parents[2]
    copy = target / "umbel"
    for folder in _packages(root):
        into = copy / folder.relative_to(root)
        into.mkdir(parents=True)
        for file in sorted(folder.iterdir()):
            if file.is_file() and _belongs(file, folder == root):
                shutil.copy2(file, into / file.name)
    return copy


def check_excludes(excludes: Sequence[str]) -> None:
    """Refuse patterns that would leave out parts of Umbel: Ray applies them to everything that is sent.

    Raises:
        ConfigurationError: names the pattern.
    """
    from pathspec import GitIgnoreSpec

    root = Path(__file__).resolve().parents[2]
    files = [f"umbel/{folder.relative_to(root).as_posix()}" for folder in _packages(root)]
    for pattern in excludes:
        hit = next((file for file in files if GitIgnoreSpec.from_lines([pattern]).match_file(f"{file}/x.py")), None)
        if hit is not None:
            raise ConfigurationError(
                f"job.excludes: {pattern!r} would also leave out {hit} of Umbel, which travels along; write it in .rayignore"
            )


def _packages(folder: Path) -> Iterator[Path]:
    yield folder
    for inner in sorted(folder.iterdir()):
        if inner.is_dir() and inner.name not in _SKIPPED and (inner / "__init__.py").is_file():
            yield from _packages(inner)


def _belongs(file: Path, at_root: bool) -> bool:
    if at_root:  # of a checkout the root also has what is no part of the package
        return file.suffix == ".py" or file.name == "py.typed"
    return not file.name.startswith(".") and file.suffix != ".pyc"


def check_folder(folder: Path, excludes: Sequence[str] = (), needed: Sequence[Path] = ()) -> int:
    """Bytes of a working directory without what is not sent.

    Args:
        folder: the working directory.
        excludes: patterns of what stays at home, as in ``.gitignore``.
        needed: files that the job reads.

    Raises:
        ConfigurationError: it is no directory, it is more than Ray takes (names the largest entries), or a file that is needed
            is not in it or left out.
    """
    if not folder.is_dir():
        raise ConfigurationError(f"--working-dir {folder}: there is no such folder")
    sizes: dict[str, int] = {}
    missing = {file.resolve() for file in needed}
    for file in _files_sent(folder.resolve(), excludes):
        top = file.relative_to(folder.resolve()).parts[0]
        sizes[top] = sizes.get(top, 0) + file.lstat().st_size
        missing.discard(file)
    for file in missing:
        inside = file.is_relative_to(folder.resolve())
        why = "is left out by .gitignore, .rayignore or excludes" if inside else "is outside the working directory"
        raise ConfigurationError(f"the job needs {file}, which {why} ({folder}): the cluster would not have it")
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
        listed = ", ".join(f"{name} ({size / 2**20:,.0f} MiB)" for name, size in largest)
        raise ConfigurationError(
            f"the working directory {folder} has {total / 2**20:,.0f} MiB and Ray takes {MAX_BYTES // 2**20}; "
            f"largest are {listed}. Leave out what the job does not need: a line each in .rayignore, or job.excludes"
        )
    return total


def _files_sent(root: Path, excludes: Sequence[str]) -> Iterator[Path]:
    """The files that Ray packs: all but those that a ``.gitignore`` or ``.rayignore`` on the way names, and ``excludes``."""
    from pathspec import GitIgnoreSpec

    def walk(folder: Path, rules: tuple[tuple[Path, GitIgnoreSpec], ...]) -> Iterator[Path]:
        for name in (".gitignore", ".rayignore"):
            with contextlib.suppress(OSError):
                lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
                rules = (*rules, (folder, GitIgnoreSpec.from_lines(lines)))
        for entry in sorted(folder.iterdir()):
            is_folder = entry.is_dir() and not entry.is_symlink()
            slash = "/" if is_folder else ""
            if any(spec.match_file(entry.relative_to(base).as_posix() + slash) for base, spec in rules):
                continue
            if is_folder:
                yield from walk(entry, rules)
            elif entry.is_file():
                yield entry

    return walk(root, ((root, GitIgnoreSpec.from_lines([*EXCLUDES, *excludes])),))
