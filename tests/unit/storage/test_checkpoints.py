from __future__ import annotations

import pytest

from barnabas.storage import checkpoints
from barnabas.storage.checkpoints import MalformedCheckpoint, MetaProperties
from barnabas.testing.world.disks import FaultyMemoryDisk


def test_offset_checkpoints_are_kafkas(disk: FaultyMemoryDisk) -> None:
    offsets = {("orders", 0): 5, ("my-topic.x", 12): 2**40}
    checkpoints.write_offsets(disk, checkpoints.RECOVERY_POINT_CHECKPOINT, offsets)
    assert disk.read("recovery-point-offset-checkpoint") == b"0\n2\norders 0 5\nmy-topic.x 12 1099511627776\n"
    assert checkpoints.read_offsets(disk, checkpoints.RECOVERY_POINT_CHECKPOINT) == offsets
    assert checkpoints.read_offsets(disk, checkpoints.CLEANER_OFFSET_CHECKPOINT) == {}
    disk.crash()
    assert checkpoints.read_offsets(disk, checkpoints.RECOVERY_POINT_CHECKPOINT) == offsets


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0 1",
        b"0\n1\na 0\n",
        b"0\nx\n",
        b"\xff\n0\n",
        b"0\n1\na 0 b\n",
    ],
)
def test_damaged_offset_checkpoints_are_refused_whole(disk: FaultyMemoryDisk, data: bytes) -> None:
    disk.replace("c", data)
    with pytest.raises(MalformedCheckpoint):
        checkpoints.read_offsets(disk, "c")


def test_an_empty_checkpoint_of_the_cleaner_is_that_of_a_new_kafka(disk: FaultyMemoryDisk) -> None:
    disk.replace(checkpoints.CLEANER_OFFSET_CHECKPOINT, b"")
    assert checkpoints.read_offsets(disk, checkpoints.CLEANER_OFFSET_CHECKPOINT) == {}


def test_epoch_checkpoints() -> None:
    data = checkpoints.format_epochs([(0, 0), (5, 12)])
    assert data == b"0\n2\n0 0\n5 12\n"
    assert checkpoints.parse_epochs(data) == [(0, 0), (5, 12)]
    for damaged in (data[:-1], data[:-3], b"0\n2\n5 12\n0 0\n", b"0\n1\n5\n", b"0\n2\n0 0\n1 0\n"):
        with pytest.raises(MalformedCheckpoint):
            checkpoints.parse_epochs(damaged)


def test_partition_metadata() -> None:
    topic_id = bytes(range(16))
    data = checkpoints.format_partition_metadata(topic_id)
    assert data == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert checkpoints.parse_partition_metadata(data) == topic_id
    assert checkpoints.parse_partition_metadata(data + b"\n") == topic_id
    for damaged in (b"", data[:-1], b"version: 1\n" + data[11:], bytes(len(data)), data + b"\nmore: 1"):
        with pytest.raises(MalformedCheckpoint):
            checkpoints.parse_partition_metadata(damaged)


def test_uuids_are_url_safe_base64_without_padding() -> None:
    assert checkpoints.encode_uuid(b"\xfb\xff" * 8) == "-__7__v_-__7__v_-__7_w"
    assert checkpoints.decode_uuid("-__7__v_-__7__v_-__7_w") == b"\xfb\xff" * 8
    for text in ("", "short", "-__7__v_-__7__v_-__7_!"):
        with pytest.raises(ValueError, match="22 characters"):
            checkpoints.decode_uuid(text)


def test_meta_properties_are_read_as_java_wrote_them(disk: FaultyMemoryDisk) -> None:
    assert checkpoints.read_meta_properties(disk) is None
    disk.replace(
        "meta.properties",
        b"#\n#Sat Nov 21 10:00:00 UTC 2026\ncluster.id=5L6g3nShT-eMCtKaX86swQ\nversion=1\n"
        b"directory.id=4ykYGRqsTsuBhU5FYpcTrA\nnode.id=1\n",
    )
    meta = MetaProperties("5L6g3nShT-eMCtKaX86swQ", 1, "4ykYGRqsTsuBhU5FYpcTrA")
    assert checkpoints.read_meta_properties(disk) == meta
    checkpoints.write_meta_properties(disk, meta)
    assert checkpoints.read_meta_properties(disk) == meta


@pytest.mark.parametrize("data", [b"", b"version=0\nbroker.id=1\n", b"version=1\ncluster.id=x\ndirectory.id=y\n"])
def test_other_meta_properties_are_refused(disk: FaultyMemoryDisk, data: bytes) -> None:
    disk.replace("meta.properties", data)
    with pytest.raises(MalformedCheckpoint, match=r"meta\.properties"):
        checkpoints.read_meta_properties(disk)


def test_the_mark_of_a_clean_stop_is_taken_once_and_for_good(disk: FaultyMemoryDisk) -> None:
    assert checkpoints.take_clean_shutdown(disk) is None
    checkpoints.write_clean_shutdown(disk, 42)
    assert disk.read(".kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":42}'
    disk.crash()
    assert checkpoints.take_clean_shutdown(disk) == 42
    disk.crash()  # the removal is durable: else the next start would trust torn files
    assert checkpoints.take_clean_shutdown(disk) is None
    assert disk.listdir("") in ([], [".kafka_cleanshutdown.taken"])


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"brokerEpoch":"x"}'])
def test_a_mark_without_an_epoch_is_a_mark_still(disk: FaultyMemoryDisk, data: bytes) -> None:
    disk.replace(".kafka_cleanshutdown", data)
    assert checkpoints.take_clean_shutdown(disk) == -1


def test_sizes_of_logs_belong_to_one_stop(disk: FaultyMemoryDisk) -> None:
    sizes = {("t", 0): checkpoints.LogSize(100, 34), ("u", 12): checkpoints.LogSize(0, 0)}
    assert checkpoints.read_log_sizes(disk, 7) == {}
    disk.replace(checkpoints.LOG_SIZE_CHECKPOINT, checkpoints.format_log_sizes(7, sizes))
    assert checkpoints.read_log_sizes(disk, 7) == sizes
    assert checkpoints.read_log_sizes(disk, 8) == {}
    disk.replace(checkpoints.LOG_SIZE_CHECKPOINT, checkpoints.format_log_sizes(-1, sizes))
    assert checkpoints.read_log_sizes(disk, -1) == {}, "no broker epoch names one stop"
    for damaged in (b"", b"0\n2\n7\nt 0 100\n", b"0\n2\n7\nt 0 x 34\n", b"0\n3\n7\nt 0 100 34\n"):
        disk.replace(checkpoints.LOG_SIZE_CHECKPOINT, damaged)
        with pytest.raises(MalformedCheckpoint):
            checkpoints.read_log_sizes(disk, 7)
