"""Chat templates, which format messages as the tokens of a language model.

A template is an untrusted Jinja program of the model folder: it runs in Jinja's sandbox with the
messages and the names of the special tokens only. Messages that contain the text of a special token
are refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.errors import InputError, ModelError
from outrider.files import JsonFolder, Location, read_limited
from outrider.text.normalise import normalise_verbatim, well_formed
from outrider.text.tokenizer import SubwordTokenizer

TEMPLATE_BYTES = 1 << 20
RENDERED = 4_000_000
"""Limit of the characters of a formatted conversation."""


class Chat:
    """A chat template and its tokenizer."""

    def __init__(self, template: str, tokenizer: SubwordTokenizer, special: Mapping[str, str]):
        """Compile a template; `special` are the special tokens by name."""
        from jinja2 import TemplateError
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer as Pipeline

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols],
            autoescape=False,
        )
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise ModelError(f"the chat template is invalid: {error}") from error
        # The pipeline of the tokenizer reads special tokens as text; this copy does not.
        self._pipeline: Any = Pipeline.from_str(tokenizer.pipeline.to_str())
        self._pipeline.encode_special_tokens = False
        self._special = dict(special)
        added = self._pipeline.get_added_tokens_decoder().values()
        self._reserved = [token.content for token in added if token.special]

    def encode(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a conversation, up to the beginning of the answer."""
        clean = []
        for number, message in enumerate(messages):
            content = normalise_verbatim(well_formed(message["content"]))
            token = next((token for token in self._reserved if token in content), None)
            if token is not None:
                text = f"contains {token}, a token that only the template may write"
                raise InputError(f"messages.{number}.content: {text}; leave it out")
            clean.append({**message, "content": content})
        return list(self._pipeline.encode(self._render(clean), add_special_tokens=False).ids)

    def _render(self, messages: Sequence[Mapping[str, str]]) -> str:
        from jinja2 import TemplateError

        parts, size = [], 0
        try:
            for part in self._template.generate(
                messages=messages, add_generation_prompt=True, **self._special
            ):
                parts.append(part)
                size += len(part)
                if size > RENDERED:
                    raise InputError("messages: the chat template makes too much of them")
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"messages: the chat template refuses them: {reason}") from error
        return "".join(parts)


def load_chat(folder: Location, tokenizer: object) -> Chat | None:
    """Read the chat template of a model folder; None if it has none."""
    if not isinstance(tokenizer, SubwordTokenizer):
        return None
    files = JsonFolder.of(folder)
    values = files.json("tokenizer_config.json")
    template = values.get("chat_template")
    beside = files.path / "chat_template.jinja"
    if beside.exists():
        template = read_limited(beside, limit=TEMPLATE_BYTES).decode("utf-8", "replace")
    if isinstance(template, list):  # named templates
        template = next((t.get("template") for t in template if _is_default(t)), None)
    if not isinstance(template, str):
        return None
    special = {key: _content(values.get(key)) for key in values if key.endswith("_token")}
    return Chat(template, tokenizer, {key: token for key, token in special.items() if token})


def _is_default(template: Any) -> bool:
    return isinstance(template, dict) and template.get("name") == "default"


def _content(token: Any) -> str | None:
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _refuse(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(str(message))
