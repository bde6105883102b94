"""What every store must do, as tests: Umbel's own stores pass them, and so should yours.

    from umbel.actors.checkpoints.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self, tmp_path):
            store = MyStore(tmp_path)  # empty
            yield store
            await store.close()

        def address(self, store):  # only where other processes can open the same store
            return f"mine://{store.path}"

        plugin = "my_package.my_store"  # a module that calls register_store("mine", ...) when it is imported

It needs pytest, and pytest-asyncio in its ``auto`` mode.
``pytest.register_assert_rewrite("umbel.actors.checkpoints.conformance")``
in your ``conftest.py`` makes failures say more. Without an ``address`` the tests of several processes are skipped.
"""

from __future__ import annotations

from .keeping import Keeping
from .leases import Leases
from .processes import Processes
from .saving import Saving
from .superseding import Superseding


class StoreConformance(Saving, Superseding, Leases, Keeping, Processes):
    """Every test; subclass it with a name that begins with ``Test`` and a fixture ``store``."""


__all__ = ["StoreConformance"]
