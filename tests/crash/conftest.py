from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.kit import Template


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.close()
