from __future__ import annotations

from barnabas.storage.aborted import AbortedTxn, decode_aborted, encode_aborted

ENTRIES = [AbortedTxn(7, 100, 120, 110), AbortedTxn(8, 110, 125, 126)]


def test_entries_are_34_bytes_of_version_0() -> None:
    data = encode_aborted(ENTRIES)
    assert data[:34] == bytes.fromhex("0000 0000000000000007 0000000000000064 0000000000000078 000000000000006e")
    assert len(data) == 68
    assert decode_aborted(data, 100) == ENTRIES


def test_damaged_files_are_refused() -> None:
    data = encode_aborted(ENTRIES)
    assert decode_aborted(b"", 0) == []
    assert decode_aborted(data[:-1], 100) is None
    assert decode_aborted(data[34:] + data[:34], 100) is None  # markers go down
    assert decode_aborted(b"\0\1" + data[2:], 100) is None
    assert decode_aborted(bytes(34) + data, 100) is None  # zeros of a torn write
    assert decode_aborted(data, 121) is None  # a marker below the segment
