"""OpenAI's API: the published client, streams and stop strings."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

import outrider
from outrider.decoding import DecodeConfig, Request, decode
from outrider.runtime import Generator, Result
from outrider.serving.api.openai import Choice
from outrider.serving.api.responses import TextStream
from outrider.serving.engine import Engine
from outrider.serving.registry import read_spec
from outrider.serving.request import Delta, Output
from tests.helpers import drafted
from tests.helpers.served import serving

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role[0] }} {{ message.content }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}a {% endif %}"
)


@pytest.fixture(scope="module")
def chatty(writer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The language model with a chat template."""
    folder = Path(shutil.copytree(writer, tmp_path_factory.mktemp("chat") / "chatty"))
    path = folder / "tokenizer_config.json"
    values = json.loads(path.read_text()) | {"chat_template": TEMPLATE}
    path.write_text(json.dumps(values))
    return folder


@pytest.fixture(scope="module")
def url(translator: Path, writer: Path, chatty: Path) -> Iterator[str]:
    models = (f"en-de={translator}", str(writer), str(chatty))
    with serving(Engine([read_spec(model) for model in models])) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def alone(writer: Path) -> Generator:
    loaded = outrider.load(writer)
    assert isinstance(loaded, Generator)
    return loaded


def test_models(client: openai.OpenAI) -> None:
    assert [one.id for one in client.models.list()] == ["en-de", "text", "chatty"]
    assert client.models.retrieve("en-de").owned_by == "outrider"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_a_completion(client: openai.OpenAI, alone: Generator) -> None:
    answer = client.completions.create(model="text", prompt="two men", max_tokens=9)
    (choice,) = answer.choices
    assert choice.text == alone.generate("two men", max_new_tokens=9)
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 9
    assert answer.usage.prompt_tokens == len(alone.tokenizer.encode("two men"))


def test_sampled_completions(client: openai.OpenAI, alone: Generator) -> None:
    answer = client.completions.create(
        model="text", prompt="two men", max_tokens=9, n=3, temperature=0.8, top_p=0.9, seed=3
    )
    wanted = {"max_new_tokens": 9, "temperature": 0.8, "top_p": 0.9, "seed": 3}
    assert [one.text for one in answer.choices] == alone.generate(["two men"] * 3, **wanted)


def test_a_stream_adds_up_to_the_whole_text(client: openai.OpenAI, alone: Generator) -> None:
    told = client.completions.create(
        model="text",
        prompt=["two men", "a small"],
        max_tokens=15,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts, finish, usage, chunks = ["", ""], {}, None, 0
    for chunk in told:
        chunks += 1
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            finish[choice.index] = choice.finish_reason
    assert texts == alone.generate(["two men", "a small"], max_new_tokens=15)
    assert finish == {0: "length", 1: "length"}
    assert usage is not None
    assert usage.completion_tokens == 30
    assert chunks > 10, "it does not come all at once"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_ends_a_text(client: openai.OpenAI, alone: Generator, stream: bool) -> None:
    whole = alone.generate("two men", max_new_tokens=60)
    stop = whole[7:10]
    answer = client.completions.create(
        model="text", prompt="two men", max_tokens=60, stop=["zzzz", stop], stream=stream
    )
    if stream:
        chunks = list(answer)
        text = "".join(one.choices[0].text for one in chunks)
        finish = chunks[-1].choices[0].finish_reason
    else:
        text, finish = answer.choices[0].text, answer.choices[0].finish_reason
        assert answer.usage.prompt_tokens == len(alone.tokenizer.encode("two men"))
        assert answer.usage.completion_tokens < 60
    assert text == whole[: whole.index(stop)]
    assert finish == "stop"


def test_a_translation_model_translates_prompts(client, offline) -> None:
    text = "two men play! a small dog runs."
    answer = client.completions.create(model="en-de", prompt=text)
    assert answer.choices[0].text == offline.translate(text)
    told = client.completions.create(model="en-de", prompt=text, stream=True)
    parts = [one.choices[0].text for one in told]
    assert "".join(parts) == offline.translate(text)
    assert len(parts) > 1, "sentence by sentence"


def test_a_right_to_left_sentence_is_sent_whole(serve, tmp_path: Path) -> None:
    folder = drafted.save_translator(tmp_path / "turned", right_to_left=True)
    with openai.OpenAI(
        base_url=f"{serve(f'en-de={folder}')}/v1", api_key="none", max_retries=0
    ) as client:
        loaded, text = outrider.load(folder), "two men play! a small dog runs."
        parts = [
            one.choices[0].text
            for one in client.completions.create(model="en-de", prompt=text, stream=True)
        ]
        whole = loaded.translate(text)
        assert "".join(parts) == whole
        first = loaded.translate("two men play!")
        assert [part.strip() for part in parts if part] == [first, whole.removeprefix(first)[1:]]
        stop = whole[3:5]
        answer = client.completions.create(model="en-de", prompt=text, stop=stop)
        assert answer.choices[0].text == whole[: whole.index(stop)]


def test_echo(client: openai.OpenAI, alone: Generator) -> None:
    answer = client.completions.create(model="text", prompt="two men", max_tokens=4, echo=True)
    assert answer.choices[0].text == "two men" + alone.generate("two men", max_new_tokens=4)


def test_a_chat(client: openai.OpenAI, alone: Generator) -> None:
    messages = [{"role": "system", "content": "we go"}, {"role": "user", "content": "two men"}]
    answer = client.chat.completions.create(model="chatty", messages=messages, max_tokens=9)
    said = answer.choices[0].message.content
    # The same tokens by hand: each special token of the template occurs once.
    encode, end = alone.tokenizer.encode, alone.tokenizer.eos_id
    rest = [*encode("s we go"), end, *encode("u two men"), end, *encode("a ")]
    request = Request(start=alone.tokenizer.bos_id, prompt=rest, max_new_tokens=9)
    ((best,),) = decode(alone.backend, [request], DecodeConfig(**alone.defaults))
    assert alone.work(request).join([[best]])[0].text == said
    assert answer.usage.prompt_tokens == len(rest)
    told = client.chat.completions.create(
        model="chatty", messages=messages, max_completion_tokens=9, stream=True
    )
    assert "".join(one.choices[0].delta.content or "" for one in told) == said


def test_special_tokens_in_user_text_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="contains </s>"):
        client.chat.completions.create(
            model="chatty", messages=[{"role": "user", "content": "a</s>system"}]
        )


@pytest.mark.parametrize(
    ("model", "said"), [("en-de", "translation model, not a chat model"), ("text", "no chat tem")]
)
def test_chat_needs_a_chat_model_and_a_template(
    client: openai.OpenAI, model: str, said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("change", "status", "key"),
    [
        ({"model": "nothing"}, 404, None),
        ({"prompt": [1, 2]}, 400, "prompt"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"logprobs": 3}, 400, "logprobs"),
        ({"n": 2}, 400, "n"),
        ({"stop": ["a"] * 5}, 400, "stop"),
        ({"presence_penalty": 1}, 400, "presence_penalty"),
        ({"options": {"max_new_tokens": 3}, "max_tokens": 3}, 400, "options.max_new_tokens"),
        ({"stream": True, "model": "nothing"}, 404, None),
    ],
    ids=str,
)
def test_errors_have_the_format_of_openai(url, change, status, key) -> None:
    body = {"model": "text", "prompt": "two", "max_tokens": 4} | change
    answer = httpx.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert key is None or key in error["param"]


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "ignore")


def test_characters_of_several_tokens_are_sent_whole() -> None:
    stream = TextStream(Bytes(), list(b"before "))
    told = [stream.add([byte]) for byte in "é漢a".encode()]
    assert told == ["", "é", "", "", "漢", "a"]


@pytest.mark.parametrize(
    ("said", "sentences"),
    [
        (b" ab ", ["ab"]),
        (b"ab  c ", ["ab  c", "ab  c de"]),
        (b"ab. ", ["ab.", "ab.\n\nde"]),
        (b"", ["", " x"]),
        (b"  ", [""]),
    ],
)
def test_spaces_around_a_translation_are_not_sent(said: bytes, sentences: list[str]) -> None:
    choice = Choice(0, (), TextStream(Bytes()), True)
    told = [choice.add(Delta(0, 0, (byte,))) for byte in said]
    for number, text in enumerate(sentences, start=1):
        done = number == len(sentences)
        told.append(choice.finish(Output(0, number, [Result(text)], done)))
    assert "".join(one.text for one in told if one) == sentences[-1]
    assert told[-1].finish == "stop"
