from __future__ import annotations

import umbel
from umbel import conversation


def test_the_module_and_the_root_offer_the_same_names() -> None:
    assert conversation.__all__ == sorted(conversation.__all__)
    for name in conversation.__all__:
        assert getattr(umbel, name) is getattr(conversation, name)
