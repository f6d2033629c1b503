"""The size on the wire of English text in a vocabulary of 150,000."""

from scripts.benchmarks.wire import bytes_per_token


def test_bytes_per_token() -> None:
    figures = bytes_per_token()
    assert figures["bytes_per_token_ids_and_logprobs"] <= 4.0
    assert figures["bytes_per_token"] <= 6.0
