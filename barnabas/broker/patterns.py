"""Regular expressions of clients, matched in linear time: the part of RE2's syntax that is useful for names.

Python's own matcher backtracks: a pattern of ten characters can block it, and with it the whole broker, without end. This is
Thompson's construction with a cache of reached state sets (a lazy DFA), as in RE2. `google-re2` has no wheels for musl (Alpine), where
every other dependency of a broker has them.

Known: literals, `.`, classes with ranges, negation and POSIX names, \\d \\w \\s and their opposites, \\Q…\\E, groups of every kind,
alternation, the repetitions * + ? {n} {n,} {n,m} and their lazy forms, ^ $ \\A \\z, the flags i and s.
Refused though RE2 knows them: \\p{…}, \\b, \\B, the flag m. Refused as in RE2: look-around, back references, repetitions above 1,000.
"""

from __future__ import annotations

from typing import NamedTuple

from barnabas.errors import BrokerError, ErrorCode

PATTERN_LENGTH_MAX = 1_000  # characters
REPEAT_MAX = 1_000  # as in RE2
STATES_MAX = 10_000  # of one pattern, after {n,m} is written out
CACHE_MAX = 10_000  # steps in the cache; a full cache is cleared
DEPTH_MAX = 100  # of nested groups

_CHARACTER, _SPLIT, _EMPTY, _START, _END, _MATCH = range(6)

Ranges = tuple[tuple[int, int], ...]

_DIGIT: Ranges = ((48, 57),)
_WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 10), (12, 13), (32, 32))
_POSIX: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)),
    "alpha": ((65, 90), (97, 122)),
    "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)),
    "cntrl": ((0, 31), (127, 127)),
    "digit": _DIGIT,
    "graph": ((33, 126),),
    "lower": ((97, 122),),
    "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),),
    "word": _WORD,
    "xdigit": ((48, 57), (65, 70), (97, 102)),
}
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}


class _Set(NamedTuple):
    """Characters that one state accepts."""

    ranges: Ranges
    negated: bool
    folded: bool  # either case

    def has(self, character: str) -> bool:
        code = ord(character)
        found = any(low <= code <= high for low, high in self.ranges)
        if not found and self.folded:
            others = (ord(other) for other in (character.lower(), character.upper()) if len(other) == 1)
            found = any(low <= other <= high for other in others for low, high in self.ranges)
        return found is not self.negated


_ANY = _Set((), True, False)
_NOT_NEWLINE = _Set(((10, 10),), True, False)


class _Fragment(NamedTuple):
    """A part of the machine: its first state, and its last, which has no successor yet."""

    first: int
    last: int


def compile_pattern(text: str) -> Pattern:
    """Compiles a pattern to a machine.

    Raises:
        BrokerError: INVALID_REGULAR_EXPRESSION, with the error and its position.
    """
    if len(text) > PATTERN_LENGTH_MAX:
        raise _refusal(f"a pattern of {len(text)} characters is longer than {PATTERN_LENGTH_MAX}")
    return _Compiler(text).compile()


def _refusal(why: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REGULAR_EXPRESSION, why)


class Pattern:
    """A compiled pattern."""

    def __init__(self, kinds: list[int], sets: list[_Set | None], ways: list[list[int]], first: int) -> None:
        self._kinds = kinds
        self._sets = sets
        self._ways = ways
        self._first = first
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def fullmatch(self, text: str) -> bool:
        """Whether the pattern matches all of `text`."""
        steps = self._steps
        states = self._reach([self._first], at_start=True, at_end=not text)
        for character in text:
            following = steps.get((states, character))
            if following is None:
                if len(steps) >= CACHE_MAX:
                    steps.clear()
                following = steps[states, character] = self._step(states, character)
            if not following:
                return False
            states = following
        return any(self._kinds[state] == _MATCH for state in self._reach(list(states), at_start=False, at_end=True))

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        taken = []
        for state in states:
            taking = self._sets[state]
            if taking is not None and taking.has(character):
                taken += self._ways[state]
        return self._reach(taken, at_start=False, at_end=False)

    def _reach(self, states: list[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """The states and all that can be reached from them without a character. States that wait for the end stay in the set."""
        seen: set[int] = set()
        while states:
            state = states.pop()
            if state in seen:
                continue
            seen.add(state)
            kind = self._kinds[state]
            if kind in (_SPLIT, _EMPTY) or (kind == _START and at_start) or (kind == _END and at_end):
                states += self._ways[state]
        return frozenset(seen)


class _Compiler:
    """Recursive descent over the pattern, building the machine as it goes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._folded = False
        self._dot_all = False
        self._kinds: list[int] = []
        self._sets: list[_Set | None] = []
        self._ways: list[list[int]] = []

    def compile(self) -> Pattern:
        whole = self._alternation()
        if self._at < len(self._text):
            raise _refusal(f"an unexpected ) at {self._at}")
        end = self._state(_MATCH)
        self._ways[whole.last].append(end)
        return Pattern(self._kinds, self._sets, self._ways, whole.first)

    # --- the machine ------------------------------------------------------------------------------------------------

    def _state(self, kind: int, taking: _Set | None = None) -> int:
        if len(self._kinds) >= STATES_MAX:
            raise _refusal(f"the pattern needs more than {STATES_MAX} states")
        self._kinds.append(kind)
        self._sets.append(taking)
        self._ways.append([])
        return len(self._kinds) - 1

    def _one(self, kind: int, taking: _Set | None = None) -> _Fragment:
        state = self._state(kind, taking)
        return _Fragment(state, state)

    def _join(self, first: _Fragment, second: _Fragment) -> _Fragment:
        self._ways[first.last].append(second.first)
        return _Fragment(first.first, second.last)

    def _optional(self, piece: _Fragment) -> _Fragment:
        start, end = self._state(_SPLIT), self._state(_EMPTY)
        self._ways[start] += [piece.first, end]
        self._ways[piece.last].append(end)
        return _Fragment(start, end)

    def _repeated(self, piece: _Fragment) -> _Fragment:
        """Repeats a piece any number of times, including none."""
        split, end = self._state(_SPLIT), self._state(_EMPTY)
        self._ways[split] += [piece.first, end]
        self._ways[piece.last].append(split)
        return _Fragment(split, end)

    # --- the syntax -------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _alternation(self) -> _Fragment:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _refusal(f"groups are nested deeper than {DEPTH_MAX}")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        start, end = self._state(_SPLIT), self._state(_EMPTY)
        for branch in branches:
            self._ways[start].append(branch.first)
            self._ways[branch.last].append(end)
        return _Fragment(start, end)

    def _sequence(self) -> _Fragment:
        whole = self._one(_EMPTY)
        while self._peek() not in ("", "|", ")"):
            whole = self._join(whole, self._repetition())
        return whole

    def _repetition(self) -> _Fragment:
        began = self._at
        flags = (self._folded, self._dot_all)
        piece = self._atom()
        counts = self._counts()
        if counts is None:
            return piece
        self._take("?")  # lazy: the same set of matches
        if self._peek() in ("*", "+", "?"):
            raise _refusal(f"nothing to repeat at {self._at}")
        ended = self._at
        least, most = counts

        def again() -> _Fragment:
            # Copies are made by reading the same text once more.
            self._at, (self._folded, self._dot_all) = began, flags
            return self._atom()

        whole = self._one(_EMPTY)
        pieces = 0
        for _ in range(least):
            whole = self._join(whole, piece if pieces == 0 else again())
            pieces += 1
        if most is None:
            whole = self._join(whole, self._repeated(piece if pieces == 0 else again()))
        else:
            tail: _Fragment | None = None
            for _ in range(most - least):  # from the inside out: (x(x(x)?)?)?
                inner = piece if pieces == 0 else again()
                pieces += 1
                tail = self._optional(inner if tail is None else self._join(inner, tail))
            if tail is not None:
                whole = self._join(whole, tail)
        self._at = ended
        return whole

    def _counts(self) -> tuple[int, int | None] | None:
        """The counts of a repetition: (least, most), most None if unbounded; None if no repetition follows."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._peek() in simple:
            self._at += 1
            return simple[self._text[self._at - 1]]
        if self._peek() != "{":
            return None
        end = self._text.find("}", self._at)
        body = self._text[self._at + 1 : end] if end > 0 else ""
        low, comma, high = body.partition(",")
        if not (low.isascii() and low.isdigit()) or (high and not (high.isascii() and high.isdigit())):
            return None  # a literal brace
        self._at = end + 1
        least = int(low) if len(low) < 6 else REPEAT_MAX + 1
        most: int | None = least
        if comma:
            most = None if not high else int(high) if len(high) < 6 else REPEAT_MAX + 1
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise _refusal(f"repetition {{{body}}} at {self._at}")
        return least, most

    def _atom(self) -> _Fragment:
        character = self._peek()
        self._at += 1
        if character == "(":
            return self._group()
        if character == "[":
            return self._one(_CHARACTER, self._class())
        if character == ".":
            return self._one(_CHARACTER, _ANY if self._dot_all else _NOT_NEWLINE)
        if character == "^":
            return self._one(_START)
        if character == "$":
            return self._one(_END)
        if character in ("*", "+", "?"):
            raise _refusal(f"nothing to repeat at {self._at - 1}")
        if character == "\\":
            return self._escape()
        return self._literal(character)

    def _literal(self, character: str) -> _Fragment:
        code = ord(character)
        return self._one(_CHARACTER, _Set(((code, code),), False, self._folded))

    def _group(self) -> _Fragment:
        flags = (self._folded, self._dot_all)
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                end = self._text.find(">", self._at)
                if end < 0 or not self._text[self._at : end].isidentifier():
                    raise _refusal(f"a group without a name at {self._at}")
                self._at = end + 1
            elif not self._flags():
                return self._one(_EMPTY)  # (?i): from here to the end of the group around it
        inner = self._alternation()
        if not self._take(")"):
            raise _refusal("a group is not closed")
        self._folded, self._dot_all = flags
        return inner

    def _flags(self) -> bool:
        """Reads flags up to : or ). Returns whether a group follows."""
        value = True
        while True:
            character = self._peek()
            self._at += 1
            if character == "-" and value:
                value = False
            elif character == "i":
                self._folded = value
            elif character == "s":
                self._dot_all = value
            elif character == "U":
                pass  # greedy or lazy: the same set of matches
            elif character in (":", ")"):
                return character == ":"
            else:
                raise _refusal(f"an unknown kind of group at {self._at - 1}")

    def _escape(self) -> _Fragment:
        character = self._peek()
        self._at += 1
        if character == "A":
            return self._one(_START)
        if character == "z":
            return self._one(_END)
        if character == "Q":
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at : end if end >= 0 else len(self._text)]
            self._at = end + 2 if end >= 0 else len(self._text)
            whole = self._one(_EMPTY)
            for one in quoted:
                whole = self._join(whole, self._literal(one))
            return whole
        if character.lower() in _CLASSES and character:
            return self._one(_CHARACTER, _Set(_CLASSES[character.lower()], character.isupper(), False))
        self._at -= 1
        return self._literal(self._escaped())

    def _escaped(self) -> str:
        """The one character of an escape."""
        character = self._peek()
        self._at += 1
        if character in _CONTROL:
            return _CONTROL[character]
        if character == "x":
            braced = self._take("{")
            end = self._text.find("}", self._at) if braced else self._at + 2
            digits = self._text[self._at : end] if end > 0 else ""
            try:
                code = int(digits, 16) if digits.isalnum() and len(digits) <= 6 else -1
            except ValueError:
                code = -1
            if not 0 <= code <= 0x10FFFF or (not braced and len(digits) != 2):
                raise _refusal(f"a character by number at {self._at}")
            self._at = end + 1 if braced else end
            return chr(code)
        if not character or character.isalnum():
            raise _refusal(f"an unknown escape at {self._at - 1}")
        return character

    def _class(self) -> _Set:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or self._peek() != "]":
            if not self._peek():
                raise _refusal("a class is not closed")
            first = False
            if self._take("[:"):
                ranges += self._posix()
                continue
            whole = self._class_escape()
            if whole is not None:
                ranges += whole
                continue
            low = self._class_character()
            high = low
            if self._peek() == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._class_character()
                if high < low:
                    raise _refusal(f"a range the wrong way round at {self._at}")
            ranges.append((ord(low), ord(high)))
        self._at += 1
        return _Set(tuple(ranges), negated, self._folded)

    def _class_character(self) -> str:
        if self._take("\\"):
            return self._escaped()
        character = self._peek()
        if not character:
            raise _refusal("a class is not closed")
        self._at += 1
        return character

    def _class_escape(self) -> Ranges | None:
        """\\d and similar escapes within a class."""
        following = self._text[self._at + 1 : self._at + 2]
        if self._peek() != "\\" or not following or following.lower() not in _CLASSES:
            return None
        self._at += 2
        ranges = _CLASSES[following.lower()]
        return _complement(ranges) if following.isupper() else ranges

    def _posix(self) -> Ranges:
        end = self._text.find(":]", self._at)
        name = self._text[self._at : end] if end > 0 else ""
        opposite = name.startswith("^")
        ranges = _POSIX.get(name.removeprefix("^"))
        if ranges is None:
            raise _refusal(f"an unknown class at {self._at}")
        self._at = end + 2
        return _complement(ranges) if opposite else ranges


def _complement(ranges: Ranges) -> Ranges:
    """All characters outside the ranges, which ascend."""
    result = []
    following = 0
    for low, high in ranges:
        if low > following:
            result.append((following, low - 1))
        following = high + 1
    return (*result, (following, 0x10FFFF))
