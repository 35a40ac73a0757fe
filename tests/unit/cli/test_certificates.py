"""`barnabas certificates`: an authority, certificates that it has issued, and what it refuses."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest

from barnabas.cli.certificates import certificates


def shown(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    out, err = capsys.readouterr()
    return out, err


def handshake(server_file: Path, authority: Path, host: str) -> ssl.SSLObject:
    """A handshake in memory, in which the client checks the host."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server_file)
    asking = ssl.create_default_context(cafile=str(authority))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = asking.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return client


def test_a_client_that_trusts_the_authority_accepts_the_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "secrets"
    assert certificates(folder, "broker-1=broker-1,localhost,127.0.0.1", "alice") == 0
    files = [folder / name for name in ("ca.pem", "broker-1.pem", "alice.pem")]
    assert shown(capsys)[0].split() == [str(file) for file in files]
    for host in ("broker-1", "localhost", "127.0.0.1"):
        assert handshake(files[1], files[0], host).version() == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="broker-2"):
        handshake(files[1], files[0], "broker-2")


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    assert certificates(tmp_path / "s", "a") == 0
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "s").iterdir()}
    assert modes["ca.key"] == modes["a.pem"] == 0o600
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_a_second_call_keeps_what_is_good_and_adds_what_is_missing(tmp_path: Path) -> None:
    assert certificates(tmp_path, "a=localhost", "b=localhost") == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert certificates(tmp_path, "a=localhost", "b=localhost,other", "c") == 0
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    kept = {name for name in before if after[name] == before[name]}
    assert kept == {"ca.pem", "ca.key", "a.pem"}
    assert handshake(tmp_path / "b.pem", tmp_path / "ca.pem", "other").version() == "TLSv1.3"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), "name 1 to"),
        (("../a",), "letters"),
        (("a=",), "NAME=HOST"),
        (("a=b c",), "NAME=HOST"),
        (("ca",), "choose another"),
        (("a" * 65,), "letters"),
    ],
    ids=["none", "path", "no-host", "space", "ca", "long"],
)
def test_wrong_names_are_refused_before_anything_is_made(
    names: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certificates(tmp_path / "s", *names) == 2
    assert said in shown(capsys)[1]
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("damage", ["no key", "other key", "no PEM"])
def test_an_authority_that_is_damaged_is_named_and_kept(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certificates(tmp_path / "s", "a") == 0
    assert certificates(tmp_path / "other", "a") == 0
    key = tmp_path / "s" / "ca.key"
    if damage == "no key":
        key.unlink()
    else:
        key.write_text((tmp_path / "other" / "ca.key").read_text() if damage == "other key" else "x")
    authority = (tmp_path / "s" / "ca.pem").read_text()
    assert certificates(tmp_path / "s", "b") == 1
    assert "ca.key" in shown(capsys)[1]
    assert (tmp_path / "s" / "ca.pem").read_text() == authority
    assert not (tmp_path / "s" / "b.pem").exists()


def test_a_directory_that_cannot_be_written_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    for directory, reason in ((file / "x", "Not a directory"), (file, "File exists")):
        assert certificates(directory, "a") == 1
        assert shown(capsys) == (
            "",
            f"barnabas certificates: cannot write into {directory}: {reason}; name a directory that you can write to\n",
        )
    assert file.read_text() == "kept"
