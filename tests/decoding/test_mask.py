"""Suppressed tokens: ids of the model, and not all of them."""

import pytest

from outrider.decoding import DecodeConfig, Request, decode
from outrider.errors import ConfigError
from outrider.options import Mode

WORDS = tuple(range(6))


@pytest.mark.parametrize("mode", ["ar", "tandem", "parallel"])
@pytest.mark.parametrize("token", [-1, 6, 10**12])
def test_an_id_outside_the_vocabulary_is_refused(toy, mode: Mode, token: int) -> None:
    config = DecodeConfig(mode=mode, suppress=(2, token))
    message = rf"^suppress: got {token}, expected token ids from 0 to 5$"
    with pytest.raises(ConfigError, match=message):
        decode(toy(), [Request()], config)


def test_suppressing_all_tokens_is_refused(toy) -> None:
    message = r"^suppress: leaves none of 6 tokens allowed; suppress fewer$"
    with pytest.raises(ConfigError, match=message):
        decode(toy(), [Request()], DecodeConfig(suppress=WORDS))
    but_the_end = DecodeConfig(suppress=tuple(token for token in WORDS if token != 1))
    assert decode(toy(), [Request()], but_the_end)[0][0].tokens == ()
    early = but_the_end.changed(min_new_tokens=2)
    with pytest.raises(ConfigError, match=r"none of 6 tokens allowed before min_new_tokens;"):
        decode(toy(), [Request()], early)
