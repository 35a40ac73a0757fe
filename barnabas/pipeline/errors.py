"""PipelineError: names the option, its value and the remedy; raised before any task starts, if possible."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from barnabas.client.errors import KafkaError
from barnabas.errors import BarnabasError

_SECRETS = ("password", "passphrase", "jaas", "secret", "token", "keystore.key")
_VALUE_LENGTH_MAX = 200


class PipelineError(BarnabasError):
    """The pipeline cannot work with an option, an argument or the state of its environment.

    Attributes:
        option: the option, argument or environment variable, as the user spells it.
        value: None if it is missing.
        remedy: what to do, as a sentence.
        problem: a predicate about the option and its value.
    """

    def __init__(self, option: str, value: object, remedy: str, problem: str = "cannot be used") -> None:
        super().__init__(option, value, remedy, problem)  # all four are args, so that the error can be pickled
        self.option = option
        self.value = value
        self.remedy = remedy
        self.problem = problem

    def __str__(self) -> str:
        if self.value is None:
            shown = f"option {self.option!r}"
        elif any(word in self.option.lower() for word in _SECRETS):
            shown = f"option {self.option!r} (its value is not shown)"
        else:
            text = str(self.value)
            if len(text) > _VALUE_LENGTH_MAX:
                text = text[:_VALUE_LENGTH_MAX] + "…"
            shown = f"option {self.option!r} = {text!r}"
        return f"{shown} {self.problem}: {self.remedy}"


@contextmanager
def writing_to(option: str, path: str) -> Iterator[None]:
    """Converts an OSError of writes to the directory of `option` into a PipelineError."""
    try:
        yield
    except OSError as error:
        remedy = "give a directory that driver and tasks share and may write, with room for the rows"
        raise PipelineError(option, path, remedy, f"cannot be written ({error})") from error


@contextmanager
def cause_first() -> Iterator[None]:
    """Around what Spark calls in its Python processes: Spark reports our errors by their text alone, on its first line.

    Spark reads this variable when it formats the error; the process ends with it. All other errors keep their traceback.
    """
    try:
        yield
    except (KafkaError, PipelineError):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise
