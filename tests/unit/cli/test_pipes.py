"""Output of commands in blocks: a descriptor that cannot be written stays so."""

from __future__ import annotations

import os

import pytest

from barnabas.cli.pipes import BlockOutput
from barnabas.cli.streams import OutputUnwritable


async def test_a_closed_output_is_not_opened_for_writing() -> None:
    """`repair_streams` opens a closed standard output for reading. Records written elsewhere would count as printed."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        output = BlockOutput(descriptor)
        with pytest.raises(OutputUnwritable, match="Bad file descriptor"):
            await output.write(b"a record\n")
        output.close()
        assert output.written == 0
    finally:
        os.close(descriptor)
