"""Every limit of the wire on one page. A peer's numbers are checked against these before use."""

MAX_BATCH_BYTES = 1024 * 1024
"""A signed batch with header, signature and compressed payload; larger payloads are split."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""What gRPC takes in one message."""

CHUNK_BYTES = 64 * 1024
"""A batch travels in pieces of at most this size, so that other frames aren't held up."""

MAX_NAMES_PER_FRAME = 4096
"""Batch names in one have or want frame (32 bytes each)."""

MAX_STREAMS = 64
"""Neighbours that may have dialled this node at the same time."""
