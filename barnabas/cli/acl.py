"""`barnabas acl …`: lists, adds and removes ACLs, and explains which of them decides about an operation."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from ipaddress import ip_address
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from barnabas.broker.api.access import OPERATIONS
from barnabas.broker.authorization.authorizer import Authorizer, Ruling, java_address
from barnabas.broker.config.authorizer_settings import AuthorizerSettings
from barnabas.broker.image.image import AclImage, MetadataImage, difference
from barnabas.cli.client_properties import WrongCall
from barnabas.cli.confirmation import Yes, confirm
from barnabas.cli.render import Cell, Json, Report, print_json
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.cli.streams import printable
from barnabas.client.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
)
from barnabas.work import finished

CLUSTER_NAME: Final = "kafka-cluster"
_LEGAL_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]+")
_TYPES: Final = {each.name.lower().replace("_", "-"): each for each in AclResourceType if each > AclResourceType.ANY}
_OPERATIONS: Final = {each.name.lower().replace("_", "-"): each for each in AclOperation if each > AclOperation.ANY}

app = App(
    name="acl",
    help_epilogue="Examples:\n\n- `barnabas acl list`\n- `barnabas acl add User:alice read,write topic:orders`\n"
    "- `barnabas acl explain User:alice read topic:orders`",
)

Who = Annotated[str, Parameter(help="Principal, such as User:alice; User:* is everyone.")]
What = Annotated[
    str, Parameter(help="Operations, separated by commas, such as read,write; all stands for all of them.")
]
Where = Annotated[
    str,
    Parameter(
        help="TYPE:NAME, such as topic:orders, group:billing, topic:*; or cluster. Types: " + ", ".join(_TYPES) + "."
    ),
]
Prefixed = Annotated[bool, Parameter(help="For all resources whose name begins with NAME.")]
Host = Annotated[str, Parameter(help="Address of clients; * for all.")]
Deny = Annotated[bool, Parameter(help="Deny instead of allow.")]


@app.command(
    name=["list", "ls"],
    help_epilogue="Examples:\n\n- `barnabas acl list`\n- `barnabas acl list --resource topic:orders --match --json`\n"
    "- `barnabas acl list --principal User:alice`",
)
@client_command("acl list")
async def list_(
    *,
    resource: Annotated[str | None, Parameter(help="Only of TYPE:NAME, or of a type.")] = None,
    match: Annotated[bool, Parameter(help="With --resource: all that match the name, also prefixes and *.")] = False,
    principal: Annotated[str | None, Parameter(help="Only of this principal.")] = None,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """List ACLs."""
    kind, name = (AclResourceType.ANY, None) if resource is None else _resource(resource, partial=True)
    pattern = PatternType.MATCH if match else PatternType.ANY
    wanted = AclBindingFilter(kind, name, principal, pattern_type=pattern)
    async with connection.admin() as admin:
        ACLS.show(await admin.describe_acls(wanted), json_)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas acl add User:alice read,write topic:orders`\n"
    "- `barnabas acl add User:bob read group:billing- --prefixed`\n"
    "- `barnabas acl add 'User:*' all topic:secret --deny --host 10.0.0.7`"
)
@client_command("acl add")
async def add(
    principal: Who,
    operations: What,
    *resources: Where,
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = "*",
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Add ACLs: one for each operation and resource. One that exists stays as it is."""
    acls = _acls(principal, operations, resources, prefixed=prefixed, deny=deny, host=_compared_host(host))
    _check_effect(acls)
    async with connection.admin() as admin:
        await admin.create_acls(acls)
    ACLS.show(acls, json_)


@app.command(
    name="remove",
    help_epilogue="Examples:\n\n- `barnabas acl remove User:alice write topic:orders`\n"
    "- `barnabas acl remove User:bob read group:billing- --prefixed --yes`",
)
@client_command("acl remove")
async def remove_acls(
    principal: Who,
    operations: What,
    *resources: Where,
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = "*",
    yes: Yes = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Remove ACLs, named as `acl add` names them. Prints those that were removed."""
    acls = _acls(principal, operations, resources, prefixed=prefixed, deny=deny, host=host)
    confirm(yes, f"remove {len(acls)} ACLs of {principal}?")
    async with connection.admin() as admin:
        removed = await admin.delete_acls([AclBindingFilter(**asdict(each)) for each in acls])
    if not removed:
        raise WrongCall("nothing to remove: there is no such ACL")
    ACLS.show(removed, json_)


@app.command(
    help_epilogue="Examples:\n\n- `barnabas acl explain User:alice read topic:orders`\n"
    "- `barnabas acl explain User:alice write topic:orders --host 10.0.0.7 --super-user User:admin --json`"
)
@client_command("acl explain")
async def explain(
    principal: Who,
    operation: Annotated[str, Parameter(help="One operation, such as read.")],
    resource: Where,
    *,
    host: Annotated[str, Parameter(help="Address of the client.")] = "127.0.0.1",
    super_user: Annotated[
        list[str] | None,
        Parameter(help="A principal of super.users, which brokers do not tell; may be given several times."),
    ] = None,
    allow_if_no_acl: Annotated[bool, Parameter(help="The brokers have allow.everyone.if.no.acl.found=true.")] = False,
    json_: Json = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Say whether a client may do something, and which ACL decides. Works with any Kafka: it applies Kafka's rules to its ACLs."""
    asked, *others = _acls(principal, operation, [resource], prefixed=False, deny=False, host=host)
    if others or asked.operation == AclOperation.ALL:
        raise WrongCall(f"{operation!r} is not one operation: name one, such as read")
    settings = AuthorizerSettings(frozenset(super_user or ()), allow_if_no_acl)
    wanted = AclBindingFilter(asked.resource_type, asked.resource_name, pattern_type=PatternType.MATCH)
    async with connection.admin() as admin:
        acls = await admin.describe_acls(wanted)
    ruling = _ruling(acls, asked, settings)
    if not settings.super_users:
        print("super users are not known: brokers do not tell them; name them with --super-user", file=sys.stderr)
    if json_:
        print_json(_explained(asked, ruling, settings))
        return
    verb = "may" if ruling.allowed else "may not"
    print(f"{principal} {verb} {_word(asked.operation)} {_place(asked)} from {host}")
    print(printable(f"rule: {_reason(ruling)}"))


def _ruling(acls: Sequence[AclBinding], asked: AclBinding, settings: AuthorizerSettings) -> Ruling:
    """The decision of the broker's own authorizer with these ACLs."""
    authorizer = Authorizer(settings, lambda: True)
    images = [
        AclImage(
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission,
        )
        for each in acls
    ]
    image = MetadataImage(acls={number.to_bytes(16, "big"): each for number, each in enumerate(images)})
    authorizer.on_image(MetadataImage(), image, finished(difference(MetadataImage(), image)))
    return authorizer.explain(
        asked.principal, java_address(asked.host), asked.operation, asked.resource_type, asked.resource_name
    )


def _reason(ruling: Ruling) -> str:
    if ruling.super_user:
        return "the principal is a super user"
    if ruling.acl is None:
        return (
            "no ACL is about the resource, and allow.everyone.if.no.acl.found=true"
            if ruling.allowed
            else "no ACL allows it"
        )
    acl = _binding(ruling.acl)
    verb = "allows" if ruling.allowed else "denies"
    host = "every host" if acl.host == "*" else acl.host
    return f"an ACL {verb} {_word(acl.operation)} on {_place(acl)} to {acl.principal} from {host}"


def _binding(acl: AclImage) -> AclBinding:
    return AclBinding(
        AclResourceType(acl.resource_type),
        acl.resource_name,
        acl.principal,
        AclOperation(acl.operation),
        AclPermission(acl.permission_type),
        PatternType(acl.pattern_type),
        acl.host,
    )


def _explained(asked: AclBinding, ruling: Ruling, settings: AuthorizerSettings) -> dict[str, Any]:
    rule = "super_user" if ruling.super_user else "default" if ruling.acl is None else "acl"
    return {
        "allowed": ruling.allowed,
        "rule": rule,
        "super_user": ruling.super_user if settings.super_users else None,
        "acl": None if ruling.acl is None else ACLS.document(_binding(ruling.acl)),
        "principal": asked.principal,
        "host": asked.host,
        "operation": _word(asked.operation),
        "resource_type": _word(asked.resource_type),
        "resource_name": asked.resource_name,
    }


def _acls(
    principal: str, operations: str, resources: Sequence[str], *, prefixed: bool, deny: bool, host: str
) -> list[AclBinding]:
    """The ACLs that the arguments name. Raises WrongCall."""
    if ":" not in principal[1:] or principal.endswith(":"):
        raise WrongCall(f"{principal!r} is no principal: write TYPE:NAME, such as User:alice")
    if not resources:
        raise WrongCall("name a resource, such as topic:orders")
    if not host:
        raise WrongCall("an empty text is no host: write an address, or * for all")
    names = [each.strip().lower().replace("_", "-") for each in operations.split(",")]
    unknown = [each for each in names if each not in _OPERATIONS]
    if unknown:
        raise WrongCall(f"unknown operation {unknown[0]!r}; the operations are {', '.join(_OPERATIONS)}")
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    found = []
    for resource in resources:
        kind, resource_name = _resource(resource)
        for name in dict.fromkeys(names):
            permission = AclPermission.DENY if deny else AclPermission.ALLOW
            found.append(AclBinding(kind, resource_name or "", principal, _OPERATIONS[name], permission, pattern, host))
    return list(dict.fromkeys(found))


def _check_effect(acls: Sequence[AclBinding]) -> None:
    """Raises WrongCall if an ACL could match nothing, although it looks as if it did."""
    principal = acls[0].principal
    kind, _, name = principal.partition(":")
    if kind != "User" and kind.lower() == "user":
        raise WrongCall(f"{principal!r} is no client: principals are compared as texts; write User:{name}")
    for acl in acls:
        what, named = _word(acl.resource_type), acl.resource_name
        known = OPERATIONS[acl.resource_type]
        if not any(each.operation in (AclOperation.ALL, *known) for each in acls if _same_place(each, acl)):
            possible = ", ".join(map(_word, known))
            raise WrongCall(f"{what} has no operation {_word(acl.operation)}; it has {possible}")
        if not any(
            each.operation in (AclOperation.ALL, *OPERATIONS[each.resource_type])
            for each in acls
            if each.operation == acl.operation
        ):
            raise WrongCall(f"none of the resources has an operation {_word(acl.operation)}")
        literal = acl.pattern_type == PatternType.LITERAL
        if named.endswith("*") and not (literal and named == "*"):
            form = f"{what}:{named[:-1]} --prefixed" if named != "*" else f"{what}:* without --prefixed"
            raise WrongCall(f"{what}:{named}: * is a wildcard only as the whole name; write {form}")
        if acl.resource_type == AclResourceType.TOPIC and named != "*" and not _LEGAL_TOPIC.fullmatch(named):
            raise WrongCall(f"{named!r} is no name of a topic: letters, digits, '.', '_' and '-' are possible")
        if acl.resource_type == AclResourceType.USER and literal and named != "*" and ":" not in named:
            raise WrongCall(f"user:{named} is no principal: write user:User:{named}")


def _same_place(one: AclBinding, other: AclBinding) -> bool:
    return (one.resource_type, one.resource_name) == (other.resource_type, other.resource_name)


def _compared_host(host: str) -> str:
    """A host as brokers compare it with a client's address: as a text. Raises WrongCall for one that no client can have."""
    if host in ("*", ""):
        return host
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        raise WrongCall(
            f"{host!r} is no address, and names and ranges match no client: write an IPv4 or IPv6 address, or * for all"
        ) from None
    return java_address(host)


def _resource(text: str, *, partial: bool = False) -> tuple[AclResourceType, str | None]:
    """Reads TYPE:NAME; with `partial` the name may be missing. Raises WrongCall."""
    word, colon, name = text.partition(":")
    kind = _TYPES.get(word.lower().replace("_", "-"))
    if kind is None:
        raise WrongCall(
            f"{text!r} is no resource: write TYPE:NAME, such as topic:orders; the types are {', '.join(_TYPES)}"
        )
    if kind == AclResourceType.CLUSTER:
        if name not in ("", CLUSTER_NAME):
            raise WrongCall(f"the only cluster is {CLUSTER_NAME}: write cluster")
        return kind, CLUSTER_NAME
    if not name and not (partial and not colon):
        raise WrongCall(f"{text!r} names no {word}: write {word}:NAME")
    return kind, name or None


def _word(value: AclOperation | AclResourceType | AclPermission | PatternType) -> str:
    return value.name.lower().replace("_", "-")


def _place(acl: AclBinding) -> str:
    if acl.resource_type == AclResourceType.CLUSTER:
        return "the cluster"
    kind = _word(acl.resource_type)
    if acl.pattern_type == PatternType.PREFIXED:
        return f"every {kind} that begins with {acl.resource_name}"
    return f"every {kind}" if acl.resource_name == "*" else f"{kind} {acl.resource_name}"


ACLS: Final = Report[AclBinding](
    Cell("resource", text=lambda acl: f"{_word(acl.resource_type)}:{acl.resource_name}", shrinks=True),
    Cell("", "resource_type", lambda acl: _word(acl.resource_type)),
    Cell("", "resource_name"),
    Cell("pattern", "pattern_type", lambda acl: _word(acl.pattern_type)),
    Cell("principal", "principal", shrinks=True),
    Cell("host", "host"),
    Cell("operation", "operation", lambda acl: _word(acl.operation)),
    Cell("permission", "permission", lambda acl: _word(acl.permission)),
)
