"""Stop strings in a text that comes in pieces: what is safe to send, and where it ends.

The stop string that is complete first ends the text; of several that complete with the same character, the one that
began first. That does not depend on how the text was cut into pieces, so a stream and a whole answer end alike.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache


class StopAutomaton:
    """All the stop strings at once, one transition a character however they overlap (Aho and Corasick, 1975).

    A state is the longest prefix of a stop string that the text ends with; state 0 is the empty one. Stateless itself,
    so the sequences of a request share one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._children: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self.depth = [0]
        """Length of each state's prefix: so many characters may be part of a stop string yet."""
        self.ending: list[str | None] = [None]
        """The longest stop string that is complete in each state."""
        for stop in stops:
            self._add(stop)
        self._link()
        self.first = re.compile("[" + "".join(re.escape(char) for char in self._children[0]) + "]")
        """Finds a character with which a stop string begins."""

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self._children[state].get(char)
            if following is None:
                following = self._children[state][char] = len(self._children)
                self._children.append({})
                self._fallback.append(0)
                self.depth.append(self.depth[state] + 1)
                self.ending.append(None)
            state = following
        self.ending[state] = stop

    def _link(self) -> None:
        """For each state the longest proper suffix that is a state too, shorter ones first."""
        queue = deque(self._children[0].values())
        while queue:
            state = queue.popleft()
            for char, following in self._children[state].items():
                self._fallback[following] = self.step(self._fallback[state], char)
                queue.append(following)
            if self.ending[state] is None:
                self.ending[state] = self.ending[self._fallback[state]]

    def step(self, state: int, char: str) -> int:
        """The state behind `char`. Constant time on average over a text: each fall takes back an earlier rise."""
        while (following := self._children[state].get(char)) is None:
            if not state:
                return 0
            state = self._fallback[state]
        return following


@lru_cache(maxsize=8)
def _automaton(stops: tuple[str, ...]) -> StopAutomaton:
    return StopAutomaton(stops)


class StopStrings:
    """Looks for stop strings in one sequence's text. `stops` may be empty, but no stop string may be.

    Holds back what may turn out to be a stop string's beginning, unless `include` says that stop strings are part of
    the output: then nothing needs to wait.
    """

    __slots__ = ("_automaton", "_held", "_include", "_state", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        assert all(stops), "an empty stop string would end every text at once"
        self._automaton = _automaton(tuple(stops)) if stops else None
        self._include = include
        self._state = 0
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text, once one has."""

    def push(self, text: str) -> tuple[str, str | None]:
        """More text: what may be sent of all that was pushed, and the stop string that is now complete, if one is.

        Behind a match nothing is sent any more.
        """
        automaton = self._automaton
        if automaton is None:
            return text, None
        if self.matched is not None:
            return "", None
        state = self._state
        start = 0
        if not state:
            # Most pieces of text contain no stop string's first character.
            found = automaton.first.search(text)
            if found is None:
                return text, None
            start = found.start()
        for i in range(start, len(text)):
            state = automaton.step(state, text[i])
            stop = automaton.ending[state]
            if stop is not None:
                return self._end(text[: i + 1], stop)
        self._state = state
        if self._include:
            return text, None
        held = self._held + text if self._held else text
        cut = len(held) - automaton.depth[state]
        self._held = held[cut:]
        return held[:cut], None

    def _end(self, text: str, stop: str) -> tuple[str, str]:
        self.matched = stop
        held, self._held = self._held, ""
        if self._include:
            return text, stop
        return (held + text)[: -len(stop)], stop

    def flush(self) -> str:
        """What was held back, now that no text follows."""
        held, self._held, self._state = self._held, "", 0
        return held
