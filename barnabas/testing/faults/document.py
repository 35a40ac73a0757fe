"""Faults as documents: the vocabulary shared by YAML, HTTP and Python, and its validation. Keys are those of `Faults.on`, one action and its options:
{"api": "EndTxn", "txn": "orders-*", "nth": 3, "error": "REQUEST_TIMED_OUT", "after": "apply"}. A function of `rewrite` has no JSON form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from barnabas.testing.errors import KitError, unknown
from barnabas.testing.faults.rule import Rule

DOCUMENT_BYTES_MAX: Final = 256 * 1024
FAULTS_MAX: Final = 1_000  # in one document, and installed at a time
DEPTH_MAX: Final = 10  # of nested values in YAML
SELECTION: Final = ("client", "txn", "topic", "group", "partition", "nth", "times", "probability", "broker", "strict")


@dataclass(frozen=True)
class Action:
    """An action as a test writes it."""

    sets: str | None = None  # field of Rule that the value sets; None: the value is `true`
    default: object = None  # meaning of `true`; None: a value is required
    options: Mapping[str, str] = field(default_factory=dict)  # keyword → field of Rule


ACTIONS: Final[dict[str, Action]] = {
    "error": Action("error", options={"after": "after"}),
    "disconnect": Action("at", default="received"),
    "delay": Action("seconds", options={"jitter": "jitter_s"}),
    "hold": Action(),
    "drop": Action(),
    "duplicate": Action(),
    "late": Action("until"),
    "throttle": Action("throttle_ms"),
}
_OPTIONS: Final = {option: name for name, action in ACTIONS.items() for option in action.options}
KEYS: Final = ("api", *SELECTION, *ACTIONS, *_OPTIONS)


def with_action(rule: Rule, name: str, value: object, options: Mapping[str, object]) -> Rule:
    """`name` is a key of ACTIONS. Raises KitError."""
    if name not in ACTIONS:
        raise KitError(unknown("action", name, ACTIONS))
    action = ACTIONS[name]
    fields: dict[str, Any] = {action.options[option]: given for option, given in options.items()}
    if "after" in fields:
        if fields["after"] not in (None, "apply"):
            raise KitError(f'after={fields["after"]!r}: "apply" or nothing')
        fields["after"] = fields["after"] == "apply"
    if value is True:
        value = action.default
        if action.sets is not None and value is None:
            raise KitError(f"{name} has no value: write one, for example {_EXAMPLES[name]}")
    elif action.sets is None:
        raise KitError(f"{name}={value!r}: {name} takes no value, so write true, or leave it out")
    if action.sets is not None:
        fields[action.sets] = value
    return replace(rule, action=name, **fields).check()


_EXAMPLES: Final = {
    "error": "error: NOT_LEADER_OR_FOLLOWER",
    "delay": "delay: 0.5",
    "late": "late: InitProducerId",
    "throttle": "throttle: 2000",
}


def wanted(document: object) -> list[Rule]:
    """Parses one fault, a list, or {"faults": [...]}. Raises KitError."""
    if isinstance(document, Mapping) and "faults" in document:
        extra = [each for each in document if each != "faults"]
        if extra:
            raise KitError(f"{unknown('key', extra[0], ['faults'])}; a document has 'faults' alone, or is one fault")
        document = document["faults"]
        if not isinstance(document, list):
            raise KitError(f"faults={_shown(document)}: write a list of faults")
    if isinstance(document, Mapping):
        return [_wanted(document)]
    if not isinstance(document, list):
        raise KitError(
            f"{_shown(document)} is no fault: write keys and values, for example {{api: EndTxn, drop: true}}"
        )
    if len(document) > FAULTS_MAX:
        raise KitError(f"{len(document)} faults: {FAULTS_MAX} are possible")
    found = []
    for number, each in enumerate(document, 1):
        if not isinstance(each, Mapping):
            raise KitError(f"fault {number}: {_shown(each)} is no fault: write keys and values")
        try:
            found.append(_wanted(each))
        except KitError as error:
            raise KitError(f"fault {number}: {error}") from None
    return found


_NO_API: Final = "api is missing: the name of an API, for example EndTxn, or * for every one"


def _wanted(document: Mapping[Any, object]) -> Rule:
    for key in document:
        if key == "rewrite":
            raise KitError("rewrite takes a function, so only Python in mode 'thread' has it")
        if key not in KEYS:
            also = "" if "api" in document else f"; {_NO_API}"
            raise KitError(unknown("key", key[:50] if isinstance(key, str) else key, KEYS) + also)
    if "api" not in document:
        raise KitError(_NO_API)
    actions = [each for each in ACTIONS if document.get(each, False) is not False]
    if len(actions) != 1:
        found = f"the actions {' and '.join(actions)}: write one of them" if actions else "no action: add one of "
        raise KitError(f"the fault on {_shown(document['api'])} has {found}{'' if actions else ', '.join(ACTIONS)}")
    for option, owner in _OPTIONS.items():
        if option in document and owner != actions[0]:
            raise KitError(f"{option} is an option of {owner}, and the action is {actions[0]}")
    filters: dict[str, Any] = {key: document[key] for key in ("api", *SELECTION) if key in document}
    rule = Rule(**filters, action="drop").check()
    options = {option: document[option] for option in ACTIONS[actions[0]].options if option in document}
    return with_action(rule, actions[0], document[actions[0]], options)


def written(rule: Rule) -> dict[str, Any]:
    """Inverse of `wanted`, without defaults. A rewriting fault has `rewrite: true`."""
    given: dict[str, Any] = {"api": rule.api}
    given |= {key: getattr(rule, key) for key in SELECTION if getattr(rule, key) != getattr(_NOTHING, key)}
    action = ACTIONS.get(rule.action, Action())
    given[rule.action] = True if action.sets is None else getattr(rule, action.sets)
    for option, name in action.options.items():
        if getattr(rule, name) != getattr(_NOTHING, name):
            given[option] = "apply" if option == "after" else getattr(rule, name)
    return given


_NOTHING: Final = Rule("*")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


# -- texts


def parse_json(text: bytes) -> object:
    """Raises KitError: no JSON in UTF-8, duplicate keys, or a document that is too large or too deep."""
    _check_size(text)
    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except KitError:
        raise
    except (ValueError, RecursionError) as error:  # also of UTF-8, and of a number with too many digits
        why = "it is nested too deep" if isinstance(error, RecursionError) else error
        raise KitError(f"this is no JSON: {why}") from None


def _check_size(text: bytes) -> None:
    if len(text) > DOCUMENT_BYTES_MAX:
        raise KitError(f"{len(text)} bytes: a document has at most {DOCUMENT_BYTES_MAX}")


def _without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise KitError(f"the key '{next(each for each in keys if keys.count(each) > 1)}' is there twice")
    return found


def _no_constant(text: str) -> None:
    raise KitError(f"{text} is no number of JSON")


def read(path: str | Path) -> list[Rule]:
    """JSON if the name ends with .json, else YAML. Raises KitError, which begins with the path."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(DOCUMENT_BYTES_MAX + 1)
        _check_size(text)
        return wanted(parse_json(text) if str(path).endswith(".json") else _parse_yaml(text))
    except OSError as error:
        raise KitError(f"{path} cannot be read: {error.strerror}") from None
    except KitError as error:
        raise KitError(f"{path}: {error}") from None


def _parse_yaml(text: bytes) -> object:
    try:
        import yaml
    except ImportError:
        raise KitError(
            "YAML needs the package PyYAML: pip install 'barnabas[lab]', or write the file as .json"
        ) from None
    loader = None
    try:
        _check_events(yaml, text)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check_keys(yaml, node)
        return None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
        raise KitError(f"this is no YAML: {' '.join(str(error).split())}") from None
    finally:
        if loader is not None:
            loader.dispose()


def _check_events(yaml: Any, text: bytes) -> None:
    """Raises KitError for anchors, aliases, tags and deep nesting: a document must not grow while it is parsed."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise KitError(f"line {line}: anchors and aliases are not possible here: write the values out")
        if getattr(event, "tag", None) is not None:
            raise KitError(f"line {line}: the tag {event.tag} is not possible here")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            raise KitError(f"line {line}: values are nested deeper than {DEPTH_MAX}")


def _check_keys(yaml: Any, node: Any) -> None:
    """Raises KitError for a duplicate key, which PyYAML would accept."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise KitError(f"line {key.start_mark.line + 1}: a key is a word")
            if key.value in seen:
                raise KitError(f"line {key.start_mark.line + 1}: the key '{key.value}' is there twice")
            seen.add(key.value)
            _check_keys(yaml, value)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check_keys(yaml, each)
