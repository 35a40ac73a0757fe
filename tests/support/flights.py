"""The flights and the weather of one month."""

from __future__ import annotations

import pytest

from examples.demo.flights import dataset as data
from examples.demo.rows import InputMissing


@pytest.fixture(scope="module")
def january() -> data.Dataset:
    try:
        return data.load(1)
    except InputMissing as error:
        pytest.skip(str(error))
