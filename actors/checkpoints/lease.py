"""Who may write to a thread: the rules of leases, fencing tokens and tombstones, the same in every store.

A thread's token only ever grows: by one with each new owner, and by one when the thread is deleted. So a write that names an
earlier token comes from somebody who has lost the thread without noticing, however late it arrives. Source: OURS-15, OURS-23.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from ...protocol.commands import SaveCheckpoint
from ...protocol.errors import ConfigurationError, StaleWriter, ThreadBusy
from ...protocol.storage import LeaseTaken, ReleaseLease, TakeLease


@dataclass(frozen=True, slots=True)
class Lease:
    """What a store keeps of a thread beside its checkpoints. A thread that nobody leased or deleted has the defaults.

    Attributes:
        token: the thread's fencing token.
        owner: who took the lease last; None when it was given back.
        expires_at: seconds since the epoch, by the store's clock.
        deleted_at: the tombstone: when the thread was deleted; None again once it is begun anew.
    """

    token: int = 0
    owner: str | None = None
    expires_at: float = 0.0
    deleted_at: float | None = None

    def holder(self, now: float) -> str | None:
        """Who holds the lease at ``now``."""
        return self.owner if self.expires_at > now else None

    def refusal(self, thread_id: str, token: int, now: float) -> StaleWriter | None:
        """Why a writer with ``token`` must not write, None when it may."""
        holder = self.holder(now)
        if token not in {self.token, 0}:
            why = f"its lease has token {token}, the newest is {self.token}"
        elif token == 0 and self.deleted_at is not None:
            why = "the thread was deleted, and only a writer with a new lease may begin it anew"
        elif token == 0 and holder is not None:
            why = "it has no lease"
        else:
            return None
        held = f"; {holder!r} holds it" if holder is not None else ""
        return StaleWriter(
            f"thread {thread_id!r} is not this writer's any more: {why}{held}",
            thread_id=thread_id,
            token=token,
            found=self.token,
            owner=holder,
        )

    def taken(self, request: TakeLease, now: float) -> Lease:
        """The lease once ``request`` is granted.

        Raises:
            ThreadBusy: somebody else holds it.
            ConfigurationError: the request makes no sense.
        """
        if not (isfinite(request.seconds) and request.seconds > 0) or not request.owner:
            raise ConfigurationError(
                f"a lease of thread {request.thread_id!r} needs an owner and seconds above 0,"
                f" not {request.owner!r} and {request.seconds}"
            )
        expires_at = now + request.seconds
        if self.owner == request.owner:
            return replace(self, expires_at=expires_at)
        holder = self.holder(now)
        if holder is not None and not request.steal:
            raise ThreadBusy(
                f"thread {request.thread_id!r} is held by {holder!r}; wait until it is done, or cancel it",
                owner=holder,
                expires_at=self.expires_at,
                thread_id=request.thread_id,
            )
        return replace(self, token=self.token + 1, owner=request.owner, expires_at=expires_at)

    def released(self, request: ReleaseLease) -> Lease:
        """The lease without its owner, if that is who gives it back."""
        return self._given_back(request.owner, request.token)

    def _given_back(self, owner: str, token: int) -> Lease:
        if (owner, token) != (self.owner, self.token):
            return self
        return replace(self, owner=None, expires_at=0.0)

    def deleted(self, now: float) -> Lease:
        """The tombstone of a thread that is deleted at ``now``."""
        return Lease(token=self.token + 1, deleted_at=now)

    def after(self, save: SaveCheckpoint) -> Lease:
        """The lease once ``save`` is stored: the thread is there (again), and its writer may have given it back."""
        lease = self.begun()
        return lease if save.release is None else lease._given_back(save.release, save.token)

    def begun(self) -> Lease:
        """The lease of a thread that has a checkpoint again: from here on its parents keep late writers out."""
        return self if self.deleted_at is None else replace(self, deleted_at=None)

    def is_forgotten(self, tombstones: float, now: float) -> bool:
        """Whether this is a tombstone of more than ``tombstones`` seconds that nobody is about to replace."""
        return self.deleted_at is not None and self.deleted_at < now - tombstones and self.holder(now) is None

    def answer(self, *, unused: bool = False) -> LeaseTaken:
        """What its owner is told."""
        return LeaseTaken.trusted(token=self.token, expires_at=self.expires_at, unused=unused)
