"""Where a model keeps its chat template, and what `--chat-template` says instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamgen.errors import ConfigError, ModelLoadError
from streamgen.loader.json_file import read_json_object

TEMPLATE_FILE = "chat_template.jinja"
MORE_TEMPLATES = "additional_chat_templates"
LEGACY_FILE = "chat_template.json"

ChatTemplates = str | dict[str, str] | None
"""One template, several by name, or none."""


def find_chat_templates(folder: Path, tokenizer_config: dict[str, Any]) -> ChatTemplates:
    """The templates of a Hugging Face folder: files of their own first, then tokenizer_config.json's.

    There it is a string or a list of {"name", "template"}. Raises ModelLoadError for anything else.
    """
    own = folder / TEMPLATE_FILE
    more = sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    if own.is_file() or more:
        named = {path.stem: _read(path) for path in more}
        if own.is_file():
            named["default"] = _read(own)
        return named["default"] if set(named) == {"default"} else named
    value = tokenizer_config.get("chat_template")
    source: Path = folder / "tokenizer_config.json"
    if value is None and (folder / LEGACY_FILE).is_file():
        source = folder / LEGACY_FILE
        value = read_json_object(source).get("chat_template")
    if value is None or isinstance(value, str):
        return value
    listed = {}
    for item in value if isinstance(value, list) else [value]:
        name, template = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(template, str):
            raise ModelLoadError(f"{source}: chat_template is neither a template nor a list of named ones.")
        listed[name] = template
    return listed or None


def chat_template_from_flag(value: str) -> str:
    """`--chat-template`: a file, or the template itself. Raises ConfigError if it is neither."""
    if "{%" in value or "{{" in value or "\n" in value:
        return value
    path = Path(value).expanduser()
    if not path.is_file():
        raise ConfigError(f"--chat-template must be a file or a Jinja template; there is no file {value!r}.")
    return _read(path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"Cannot read the chat template {path}: {error}.") from error
