"""The flights and the weather of one month."""

from __future__ import annotations

import pytest

from barnabas.cli.flights import dataset as data
from barnabas.cli.rows import InputMissing


@pytest.fixture(scope="module")
def january() -> data.Dataset:
    try:
        return data.load(1)
    except InputMissing as error:
        pytest.skip(str(error))
