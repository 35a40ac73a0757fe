"""Child process that opens TLS stores with a password.
PKCS12 holds Python's lock during the key derivation, whose iterations (up to days) the store sets.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import Final

from barnabas.runtime.tls import TlsSettings, TlsStores, client_context
from barnabas.runtime.tls_stores import KeyStore, TlsError

OPENING_S_MAX: Final = 20.0
_PROGRAM: Final = f"from {__name__} import main; main()"


def stores_beside(settings: TlsSettings, *, opening_s_max: float = OPENING_S_MAX) -> TlsStores:
    """Reads the stores of the settings, with a password in at most `opening_s_max`. Raises TlsError."""
    if not (settings.keystore_password or settings.key_password or settings.truststore_password):
        return settings.stores()
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM],
            input=json.dumps(dataclasses.asdict(settings)).encode(),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=opening_s_max,
            check=False,
        )
        answer = json.loads(ended.stdout)
    except subprocess.TimeoutExpired:
        raise TlsError(
            f"{settings.prefix}ssl stores could not be opened in {opening_s_max:g} s: make them anew with fewer iterations for the password"
        ) from None
    except (OSError, ValueError) as error:
        raise TlsError(
            f"{settings.prefix}ssl stores could not be opened by a process: {type(error).__name__}"
        ) from None
    if "error" in answer:
        raise TlsError(answer["error"])
    key = answer["key"]
    return TlsStores(key and KeyStore(key[0], tuple(key[1]), key[2], tuple(key[3]), key[4]), answer["trust"])


def main() -> None:
    """The child: settings from stdin, stores to stdout."""
    fields = json.load(sys.stdin)
    for name in ("enabled_protocols", "cipher_suites"):
        fields[name] = tuple(fields[name])
    settings = TlsSettings(**fields)
    try:
        stores = settings.stores()
        client_context(settings, stores)  # a key in PEM text is decrypted here
        answer = {"key": stores.key, "trust": stores.trust}
    except TlsError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)
