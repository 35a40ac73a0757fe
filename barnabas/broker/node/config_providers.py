"""Resolves `${provider:path:key}` in settings (KIP-297, KIP-421) with Kafka's three providers: files, directories, variables."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.properties import parse_properties
from barnabas.errors import BrokerError, ErrorCode

_PLACEHOLDER: Final = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")  # Kafka's expression
_PREFIX: Final = "config.providers."
_CLASSES: Final = "org.apache.kafka.common.config.provider."


class ConfigProviders:
    """The providers in `config.providers`, with `config.providers.<name>.class` and `.param.<parameter>`; without a class none, as in Kafka.

    Raises BrokerError(INVALID_CONFIG) for a class that is not Kafka's, or an invalid parameter.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._providers: dict[str, Callable[[str, str], str | None]] = {}
        for name in list_of(settings, "config.providers"):
            key = f"{_PREFIX}{name}.class"
            java_class = settings.get(key, "").strip()
            if not java_class:
                continue
            paths, allowlist = (f"{_PREFIX}{name}.param.{each}" for each in ("allowed.paths", "allowlist.pattern"))
            if java_class == f"{_CLASSES}EnvVarConfigProvider":
                found: Callable[[str, str], str | None] = partial(_variable, _pattern(allowlist, settings))
            elif java_class == f"{_CLASSES}FileConfigProvider":
                found = partial(_of_file, _allowed(paths, settings))
            elif java_class == f"{_CLASSES}DirectoryConfigProvider":
                found = partial(_of_directory, _allowed(paths, settings))
            else:
                served = "FileConfigProvider, DirectoryConfigProvider or EnvVarConfigProvider"
                raise _invalid(key, java_class, f"other classes are not loaded: use {served} of {_CLASSES[:-1]}")
            self._providers[name] = found

    def resolve(self, settings: Mapping[str, str]) -> dict[str, str]:
        """As in Kafka, placeholders without a value stay, and values are not resolved again. Raises BrokerError(INVALID_CONFIG): an unreadable file."""
        return {name: _PLACEHOLDER.sub(self._value, text) if "${" in text else text for name, text in settings.items()}

    def _value(self, placeholder: re.Match[str]) -> str:
        provider, path, key = placeholder.groups(default="")
        found = self._providers[provider](path, key) if provider in self._providers else None
        return placeholder[0] if found is None else found


def broker_config(settings: Mapping[str, str]) -> BrokerConfig:
    """Also resolves placeholders of dynamic settings. Raises BrokerError(INVALID_CONFIG)."""
    providers = ConfigProviders(settings)
    return BrokerConfig(providers.resolve(settings), providers.resolve)


def list_of(settings: Mapping[str, str], name: str) -> list[str]:
    return [each.strip() for each in settings.get(name, "").split(",") if each.strip()]


def _of_file(allowed: list[str] | None, path: str, key: str) -> str | None:
    return parse_properties(_text(path)).get(key) if path and _may_read(allowed, path) else None


def _of_directory(allowed: list[str] | None, path: str, key: str) -> str | None:
    if not path or not _may_read(allowed, path) or not os.path.isdir(path) or key not in os.listdir(path):
        return None
    file = os.path.join(path, key)
    return _text(file) if os.path.isfile(file) else None


def _variable(pattern: re.Pattern[str] | None, path: str, key: str) -> str | None:
    if path:
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"${{…:{path}:{key}}}: variables have no path: write ${{…:{key}}}")
    return os.environ.get(key) if pattern is None or pattern.fullmatch(key) else None


def _may_read(allowed: list[str] | None, path: str) -> bool:
    normal = os.path.normpath(path)
    return allowed is None or any(Path(normal).is_relative_to(each) for each in allowed)


def _text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text in UTF-8"
        raise BrokerError(ErrorCode.INVALID_CONFIG, f"A config provider cannot read {path}: {reason}") from None


def _allowed(key: str, settings: Mapping[str, str]) -> list[str] | None:
    """None: all paths."""
    found = [os.path.normpath(each) for each in list_of(settings, key)]
    for each in found:
        if not os.path.isabs(each) or not os.path.exists(each):
            raise _invalid(key, settings[key], f"{each} must be an absolute path that exists")
    return found or None


def _pattern(key: str, settings: Mapping[str, str]) -> re.Pattern[str] | None:
    text = settings.get(key)
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise _invalid(key, str(text), f"it is no regular expression: {error}") from None


def _invalid(name: str, text: str, wrong: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {name}: {wrong}")
