"""The commands in docs/security.md that make and convert certificates are run as they are printed; a node can use what they make."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from barnabas.runtime.tls import TlsError, TlsSettings, client_context, server_context
from tests.support.snippets import snippets

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
SECONDS_MAX = 60


def run(script: str, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the first block makes."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("recipes")
    run(block("openssl req"), folder)
    return folder


def block(beginning: str) -> str:
    """The block of commands that begins so."""
    (found,) = (each for each in snippets(PAGE, "bash") if each.startswith(beginning))
    return found


def usable(folder: Path, **keystore: Any) -> None:
    """A client that trusts the authority accepts a listener with this key store."""
    server = server_context(TlsSettings(**keystore))
    client = client_context(TlsSettings(truststore_type="PEM", truststore_location=str(folder / "ca.pem")))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="broker-1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for each in ends:
            try:
                each.do_handshake()
            except ssl.SSLWantReadError:
                pass
    assert ends[0].getpeercert() is not None


def test_openssl_makes_what_a_node_reads(made: Path) -> None:
    usable(made, keystore_type="PEM", keystore_location=str(made / "node.pem"))


def test_stores_of_java_are_converted(made: Path) -> None:
    """The error about a JKS store names the command, which asks for the passwords; that of the page names them."""
    if shutil.which("keytool") is None:
        pytest.skip("keytool is not installed")
    store = "openssl pkcs12 -export -in broker-1.crt -inkey broker-1.key -name node -passout pass:changeit -out old.p12"
    java = "keytool -importkeystore -noprompt -srckeystore old.p12 -srcstoretype PKCS12 -srcstorepass changeit"
    run(f"{store}; {java} -destkeystore node.jks -deststoretype JKS -deststorepass changeit", made)
    jks = str(made / "node.jks")
    with pytest.raises(TlsError, match="convert it with: keytool") as refused:
        server_context(TlsSettings(keystore_location=jks, keystore_password="changeit"))
    said = re.search(r"with: (keytool .*?); then set", str(refused.value))
    assert said is not None
    run(f"printf 'changeit\\nchangeit\\nchangeit\\n' | {said[1]}", made)
    pkcs12: Any = {
        "keystore_type": "PKCS12",
        "keystore_location": str(made / "node.p12"),
        "keystore_password": "changeit",
    }
    usable(made, **pkcs12)
    (made / "node.p12").unlink()
    run(block("keytool"), made)
    usable(made, **pkcs12)
    usable(made, keystore_type="PEM", keystore_location=str(made / "from-store.pem"))
