"""Chat templates: messages to the prompt's text.

The text holds the special tokens that the template wrote, a BOS among them if the model wants one, so it is encoded
without adding any: `tokenizer.encode(text, add_special_tokens=False)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import jinja2
from jinja2 import meta

from streamgen.errors import InvalidRequestError
from streamgen.text.messages import ContentFormat, prepare_messages
from streamgen.text.template_environment import ChatEnvironment, TemplateRefusalError, render_bounded

TemplateSource: TypeAlias = "str | Mapping[str, str] | Sequence[Mapping[str, str]] | None"
"""One template, or several by name, as a mapping or as tokenizer_config.json's list of `{"name", "template"}`."""

MAX_PROMPT_CHARS = 64 * 2**20
_PROBE = "streamgen content probe"
_OPEN, _CUT = "\ue000streamgen open\ue000", "\ue000streamgen cut\ue000"
"""Mark where a continued message begins and ends. Private use, no whitespace at either end: no template trims them."""
_RESERVED = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "tokenize", "chat_template"}
)
_INTERNAL = frozenset({"message", "content", "reasoning_content", "role", "tool", "tool_call", "loop"})
"""What templates call their own variables: read before they are set in some branch, but not for clients to set."""


class ChatTemplate:
    """A model's chat template, or its named templates. Safe to use from several threads.

    `source` None, or a template that does not compile, makes one that refuses every chat with a clear error: the model
    still serves completions. `error` says why, or is None. Special tokens (`bos_token` and others, name to text) are
    variables of the template. `now` is the clock of templates that write the date.
    """

    def __init__(
        self,
        source: TemplateSource,
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
        max_chars: int = MAX_PROMPT_CHARS,
    ) -> None:
        self.error: str | None = None
        self.variables: frozenset[str] = frozenset()
        """Names that the templates read and that a client may set, such as `enable_thinking`."""
        self._special_tokens = dict(special_tokens)
        self._max_chars = max_chars
        self._templates: dict[str, jinja2.Template] = {}
        environment = ChatEnvironment(now)
        named = _named(source)
        if not named:
            self.error = (
                "This model has no chat template. Use /v1/completions, or start the server with --chat-template."
            )
            return
        read: set[str] = set()
        try:
            for name, text in named.items():
                self._templates[name] = environment.from_string(text)
                read |= meta.find_undeclared_variables(environment.parse(text))
        except jinja2.TemplateSyntaxError as error:
            self._templates = {}
            self.error = (
                f"This model's chat template cannot be used: {error.message} (line {error.lineno}). "
                "Start the server with --chat-template to give another."
            )
            return
        self.variables = frozenset(
            name for name in read - _RESERVED - _INTERNAL - self._special_tokens.keys() if not name.startswith("_")
        )
        self._formats: dict[str, ContentFormat] = {
            name: self._content_format(template) for name, template in self._templates.items()
        }

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """The prompt's text. `kwargs` are further variables of the template; those that it does not read are ignored.

        With `continue_final_message` (which needs `add_generation_prompt=False`) the text ends with the last message's
        content exactly, whitespace included, and the model goes on from there. Raises InvalidRequestError, with the
        template's own words where the template refuses.
        """
        if self.error is not None:
            raise InvalidRequestError(self.error, "messages")
        if not messages:
            raise InvalidRequestError("messages must have at least one message.", "messages")
        name = self._choose(tools)
        prepared = prepare_messages(messages, self._formats[name])
        variables = {
            **self.settable(kwargs),
            **self._special_tokens,
            "messages": prepared,
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        if not continue_final_message:
            return self._render(name, variables)
        if add_generation_prompt:
            raise InvalidRequestError(
                "add_generation_prompt and continue_final_message exclude each other.", "continue_final_message"
            )
        return self._continue(name, variables, prepared[-1])

    def settable(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Of a client's `chat_template_kwargs`, those that the template reads; others would do nothing.

        Raises InvalidRequestError for names that belong to the server.
        """
        if taken := sorted(kwargs.keys() & (_RESERVED | self._special_tokens.keys())):
            raise InvalidRequestError(f"chat_template_kwargs may not set {', '.join(taken)}.", "chat_template_kwargs")
        return {name: value for name, value in kwargs.items() if name in self.variables}

    def _choose(self, tools: Sequence[Mapping[str, Any]] | None) -> str:
        if tools and "tool_use" in self._templates:
            return "tool_use"
        if "default" in self._templates:
            return "default"
        if len(self._templates) == 1:
            return next(iter(self._templates))
        raise InvalidRequestError("This model has several chat templates, and none of them is the default.", "messages")

    def _continue(self, name: str, variables: dict[str, Any], final: dict[str, Any]) -> str:
        if final.get("tool_calls"):
            raise InvalidRequestError("A message with tool calls cannot be continued.", "messages")
        content = final["content"]
        prefix: str = content if isinstance(content, str) else content[-1]["text"]
        # The marks keep the prefix's whitespace from a template that trims. The first is set only where it is needed:
        # templates look at how a message begins.
        marked = (_OPEN if prefix[:1].isspace() else "") + prefix + _CUT
        final["content"] = marked if isinstance(content, str) else [{"type": "text", "text": marked}]
        before, mark, _ = self._render(name, variables).rpartition(_CUT)
        if not mark:
            raise InvalidRequestError("The chat template drops the message that is to be continued.", "messages")
        return before.replace(_OPEN, "")

    def _render(self, name: str, variables: dict[str, Any]) -> str:
        try:
            return render_bounded(self._templates[name], variables, self._max_chars)
        except TemplateRefusalError as error:
            raise InvalidRequestError(
                error.message or "The chat template refuses these messages.", "messages"
            ) from error
        except Exception as error:
            # A template is code that may raise anything at messages it does not expect.
            raise InvalidRequestError(f"The chat template cannot render these messages: {error}", "messages") from error

    def _content_format(self, template: jinja2.Template) -> ContentFormat:
        """Whether the template shows a message's content when it is a string, or only as a list of parts."""
        shapes: list[tuple[ContentFormat, Any]] = [("string", _PROBE), ("parts", [{"type": "text", "text": _PROBE}])]
        for shape, content in shapes:
            variables = {
                **self._special_tokens,
                "messages": [{"role": "user", "content": content}],
                "tools": None,
                "documents": None,
                "add_generation_prompt": True,
            }
            try:
                if _PROBE in render_bounded(template, variables, self._max_chars):
                    return shape
            except Exception:  # noqa: BLE001, S112 - a template that fails on this shape may take the other
                continue
        return "string"


def _named(source: TemplateSource) -> dict[str, str]:
    if not source:
        return {}
    if isinstance(source, str):
        return {"default": source}
    if isinstance(source, Mapping):
        return dict(source)
    return {entry["name"]: entry["template"] for entry in source}
