"""Connection errors with their remedy: TLS, other protocols, addresses."""

from __future__ import annotations

import ssl

from barnabas.client.errors import AuthenticationFailed, BrokerUnreachable, KafkaError, NotKafka


def connect_failure(error: OSError | TimeoutError, host: str, port: int, *, broker: int, tls: bool) -> KafkaError:
    if isinstance(error, ssl.SSLError):
        return tls_failure(error, host, port, broker=broker)
    reason = "timed out" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
    if isinstance(error, ConnectionRefusedError):
        reason = "connection refused"
    if tls and isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        reason = (
            "it closed the connection during the TLS handshake: does this listener use TLS? For one without TLS set "
            "security_protocol to 'PLAINTEXT' or 'SASL_PLAINTEXT'"
        )
    elif tls and isinstance(error, TimeoutError):
        reason = "timed out, with the TLS handshake: does this listener use TLS?"
    return BrokerUnreachable(f"cannot connect to {host}:{port}: {reason}", broker=broker)


def tls_failure(error: ssl.SSLError, host: str, port: int, *, broker: int) -> KafkaError:
    where = f"{host}:{port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return AuthenticationFailed(
            f"the certificate of {where} is not accepted: {_verification(error)}", broker=broker
        )
    reason = (error.reason or str(error)).upper().replace(" ", "_")
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason or "RECORD_LAYER_FAILURE" in reason:
        return NotKafka(
            f"{where} does not answer with TLS: is this a listener without TLS? Set security_protocol to 'PLAINTEXT' or "
            f"'SASL_PLAINTEXT', or use the address of a listener with TLS",
            broker=broker,
        )
    set_one = "set ssl_certfile and ssl_keyfile (ssl.keystore.location) to one of an authority that the broker trusts"
    if "CERTIFICATE_EXPIRED" in reason:
        set_one = "make a new one and set ssl_certfile and ssl_keyfile (ssl.keystore.location) to it"
    if "CERTIFICATE_REQUIRED" in reason:
        text = f"requires a certificate of this client: {set_one}"
    elif "BAD_CERTIFICATE" in reason:  # Java's response to a client without a certificate, too
        text = f"requires a certificate of this client, or refuses the one it has: {set_one}"
    elif any(each in reason for each in ("UNKNOWN_CA", "CERTIFICATE_UNKNOWN", "CERTIFICATE_EXPIRED")):
        text = (
            f"refuses this client's certificate ({reason.partition('ALERT_')[2].replace('_', ' ').lower()}): {set_one}"
        )
    elif "HANDSHAKE_FAILURE" in reason:
        text = "refused the TLS handshake: does it require a certificate of this client (ssl_certfile, ssl.keystore.location), or other ciphers?"
    elif "PROTOCOL_VERSION" in reason or "UNSUPPORTED_PROTOCOL" in reason:
        text = "speaks no TLS version that this client allows (1.2 and 1.3)"
    else:
        text = f"ended the TLS connection: {error.reason or error}"
        return BrokerUnreachable(f"{where} {text}", broker=broker)
    return AuthenticationFailed(f"{where} {text}", broker=broker)


def _verification(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message or str(error)
    if error.verify_code in (62, 64):  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
        return f"{said}; connect to a name in the certificate, or switch the check off if you know the risk (ssl_check_hostname, ssl.endpoint.identification.algorithm)"
    if error.verify_code in (18, 19, 20, 21):  # self-signed, or its issuer is unknown
        return (
            f"{said}; set ssl_cafile (ssl.truststore.location) to the certificate of the authority that issued it"
            + ("" if error.verify_code in (18, 19) else ", or let the broker send its whole chain")
        )
    if error.verify_code in (9, 10):  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
        return f"{said}; the broker needs a new certificate, unless the clock of this machine is wrong"
    return said


def other_protocol(first: bytes) -> str | None:
    if first.startswith(b"HTTP"):
        return "it speaks HTTP; use the address of a broker's Kafka listener"
    if first[:2] == b"\x15\x03":
        return "it speaks TLS; set security_protocol to 'SSL' or 'SASL_SSL' (for a command: --command-config FILE with security.protocol), or use the address of a plaintext listener"
    return None
