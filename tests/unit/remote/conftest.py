from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import respx

from pinfold import Runtime
from pinfold.remote import transport
from tests.support.wire import URL, FakeServer

Open = Callable[..., Runtime]


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[respx.Router]:
    """Nothing reaches a network: what no test mocked is 404. Retries come at once."""
    monkeypatch.setattr(transport, "_FIRST_WAIT", 0.0)
    monkeypatch.delenv("PINFOLD_API_KEY", raising=False)
    with respx.mock(assert_all_called=False) as mocked:
        yield mocked


@pytest.fixture
def server(router: respx.Router) -> FakeServer:
    return FakeServer(router)


@pytest.fixture
def opened(router: respx.Router) -> Iterator[Open]:
    """Opens Runtimes on fake servers and closes them."""
    made: list[Runtime] = []

    def open_one(model: str = URL, **options: Any) -> Runtime:
        router.route().mock(return_value=httpx.Response(404))  # behind every other route
        made.append(Runtime(model, **({"store": "off"} | options)))
        return made[-1]

    yield open_one
    for runtime in made:
        runtime.close()
