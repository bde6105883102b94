"""Every form in which servers say when to come back."""

from __future__ import annotations

import httpx
import pytest

from umbel.actors.agent.models.retry_after import retry_after_seconds

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.case(24)
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 2.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"Retry-After": "0"}, 0.0),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "2s"}, 2.0),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:25 GMT"}, 5.0),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:10 GMT"}, 0.0),
        ({"Retry-After": "Tue, 14 Nov 2023 23:00:05 GMT", "Date": "Tue, 14 Nov 2023 23:00:00 GMT"}, 5.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": ""}, None),
        ({"retry-after-ms": "150", "Retry-After": "1"}, 0.15),
        ({"retry-after-ms": "x", "Retry-After": "1"}, 1.0),
        ({"x-ratelimit-reset-requests": "2s"}, 2.0),
        ({"x-ratelimit-reset-tokens": "150ms"}, 0.15),
        ({"x-ratelimit-reset-tokens": "1m30s"}, 90.0),
        ({"x-ratelimit-reset-tokens": "1h0m0.5s"}, 3600.5),
        ({"x-ratelimit-reset": "7"}, 7.0),
        ({"x-ratelimit-reset": str(int(NOW) + 9)}, 9.0),
        ({"x-ratelimit-reset": str((int(NOW) + 9) * 1000)}, 9.0),
        ({"x-ratelimit-reset-requests": "2s", "x-ratelimit-reset-tokens": "6s"}, 6.0),
        (
            {
                "x-ratelimit-reset-requests": "2s",
                "x-ratelimit-remaining-requests": "0",
                "x-ratelimit-reset-tokens": "6s",
                "x-ratelimit-remaining-tokens": "900",
            },
            2.0,
        ),
        ({"x-ratelimit-reset-requests": "later"}, None),
    ],
)
def test_forms(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(httpx.Headers(headers), NOW) == (None if seconds is None else pytest.approx(seconds))
