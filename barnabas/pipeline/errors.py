"""The pipeline's refusals: each names the option, its value and what would be right.

Raised on the driver before any task starts wherever that is possible. What comes from the cluster while data is read or
written is one of `barnabas.client.errors`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from barnabas.errors import BarnabasError

__all__ = ["PipelineError", "writing_to"]

_SECRETS = ("password", "jaas", "secret", "token")
_VALUE_LENGTH_MAX = 200


class PipelineError(BarnabasError):
    """An option, an argument or a state of the world that the pipeline cannot work with.

    Attributes:
        option: the option (or argument, or environment variable) concerned, as the user spells it.
        value: its value; None where it is missing.
        remedy: what to do about it, a sentence.
        problem: what is wrong, as the rest of a sentence that begins with the option and its value.
    """

    def __init__(self, option: str, value: object, remedy: str, problem: str = "cannot be used") -> None:
        super().__init__(option, value, remedy, problem)  # all of them are args, so that the error can be pickled
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
    """Raises PipelineError for what the operating system refuses where files are written to the directory that `option` names."""
    try:
        yield
    except OSError as error:
        remedy = "give a directory that driver and tasks share and may write, with room for the rows"
        raise PipelineError(option, path, remedy, f"cannot be written ({error})") from error
