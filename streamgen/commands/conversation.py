"""A conversation in a terminal: what a line that was typed means, and what the model is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

HELP = "/exit leaves, /clear forgets the conversation, /system TEXT sets the system prompt, Ctrl-C stops an answer."


class Next(Enum):
    """What to do after a line."""

    ANSWER = "answer"
    READ = "read"
    LEAVE = "leave"


@dataclass
class Conversation:
    """Owned by the chat loop."""

    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}, *self.turns] if self.system else list(self.turns)

    def take(self, line: str) -> tuple[Next, str]:
        """What a typed line asks for, and what to tell the person who typed it."""
        text = line.strip()
        command, _, argument = text.partition(" ")
        if not text:
            return Next.READ, ""
        if command in {"/exit", "/quit"}:
            return Next.LEAVE, ""
        if command == "/clear":
            self.turns.clear()
            return Next.READ, "The conversation is forgotten."
        if command == "/system":
            self.system = argument.strip()
            self.turns.clear()
            return Next.READ, "A new conversation, with this system prompt." if self.system else "No system prompt."
        if command == "/help" or (command.startswith("/") and "/" not in command[1:] and not argument):
            return Next.READ, HELP
        self.turns.append({"role": "user", "content": text})
        return Next.ANSWER, ""

    def answered(self, text: str) -> None:
        """Keep an answer, cut short or not; a question that got none is taken back."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()
