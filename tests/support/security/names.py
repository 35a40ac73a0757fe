"""Subjects and mapping rules with the answers of Java and Kafka 4.3.1: the unit tests use them, the oracle test confirms them."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, ObjectIdentifier

Part = tuple[ObjectIdentifier, str]
Oid = NameOID
# Parts in the order of the certificate; a list of parts is one with several values.
SUBJECTS: list[tuple[list[list[Part]], str]] = [
    (
        [[(Oid.COUNTRY_NAME, "DE")], [(Oid.ORGANIZATION_NAME, "Ex, Inc.")], [(Oid.COMMON_NAME, "al")]],
        r"CN=al,O=Ex\, Inc.,C=DE",
    ),
    (
        [[(Oid.COMMON_NAME, " a b ")], [(Oid.ORGANIZATION_NAME, 'a"b+c=d<e>f;g\\h#i')]],
        r"O=a\"b\+c\=d\<e\>f\;g\\h\#i,CN=\ a b" + "\\ ",
    ),
    (
        [[(Oid.EMAIL_ADDRESS, "a@b.c")], [(Oid.SERIAL_NUMBER, "77")]],
        "2.5.4.5=#13023737,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    ([[(Oid.COMMON_NAME, "a"), (Oid.ORGANIZATIONAL_UNIT_NAME, "b")], [(Oid.USER_ID, "u1")]], "UID=u1,CN=a+OU=b"),
    ([[(Oid.DOMAIN_COMPONENT, "example")], [(Oid.DOMAIN_COMPONENT, "com")]], "DC=com,DC=example"),
    (
        [[(Oid.STREET_ADDRESS, "Road 1")], [(Oid.LOCALITY_NAME, "Köln ☃")], [(Oid.STATE_OR_PROVINCE_NAME, "NRW")]],
        "ST=NRW,L=Köln ☃,STREET=Road 1",
    ),
    ([[(Oid.COMMON_NAME, "x\ny\tz")]], "CN=x\ny\tz"),
    ([[(Oid.COMMON_NAME, "nul\0x")]], r"CN=nul\00x"),
    ([[(Oid.COMMON_NAME, "  ")]], "CN=\\ \\ "),
    ([[(ObjectIdentifier("2.999.3"), "own")], [(Oid.GIVEN_NAME, "g")]], "2.5.4.42=#0c0167,2.999.3=#0c036f776e"),
]
SUBJECT = r"CN=Alice,OU=Dev,O=Ex\, Inc.,C=DE"
# Rules and the name of SUBJECT by them; None: Kafka refuses the rules or the name.
RULES: list[tuple[str, str | None]] = [
    ("DEFAULT", SUBJECT),
    ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/", "Alice@Dev"),
    ("RULE:^CN=(.*?),.*$/$1/L", "alice"),
    ("RULE:^CN=(.*?),.*$/$1/U,DEFAULT", "ALICE"),
    ("RULE:^CN=bob.*$/x/ , RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT", "alice"),
    ("RULE:^CN=bob.*$/x/", None),
    ("RULE:.*/x/", "xx"),
    (r"RULE:^CN=(?<who>\w+),.*$/${who}/", "Alice"),
    (r"RULE:^CN=(.*?),.*$/a\/b$1/", "a/bAlice"),
    (r"RULE:^CN=(.*?),.*$/a\$1/", "a$1"),
    ("RULE:^CN=(.*?),.*$/$10/", "Alice0"),
    ("RULE:^CN=(.*?),.*$/$0/", SUBJECT),
    ("RULE:^CN=(.*?),(X)?.*$/[$2]/", "[]"),
    ("RULE:^CN=(.*?),.*$//", ""),
    ("RULE:(?i)^cn=(.*?),.*$/$1/", "Alice"),
    ("RULE:^CN=([A-Za-z]++),.*$/$1/", "Alice"),
    ("DEFAULT,DEFAULT", SUBJECT),
    ("RULE:^CN=(.*?),.*$/$1$9/", "Alice$9"),
    ("RULE:^CN=.*$/$1/", None),
    ("RULE:^CN=(.*?),.*$/$/", None),
    ("RULE:^CN=(.*?),.*$/$1", None),
    ("RULE:^CN=(.*?),.*$/$1/X", None),
    ("RULE:^CN=(.*?),.*$/$1/LU", None),
    ("RULE:(/b/", None),
    ("DEFAULT RULE:a/b/", None),
    ("DEFAULTX", None),
    ("nonsense", None),
    ("", None),
]


def certificate(parts: list[list[Part]]) -> bytes:
    """A certificate with this subject, as DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [x509.RelativeDistinguishedName([x509.NameAttribute(kind, text) for kind, text in part]) for part in parts]
    )
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(5).not_valid_before(begin).not_valid_after(begin.replace(year=2040))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
