"""Every limit of the wire on one page. A peer's numbers are checked against these before use."""

MAX_BATCH_BYTES = 1024 * 1024
"""A signed batch with header, signature and compressed payload; larger payloads are split."""

MAX_PAYLOAD_BYTES = MAX_BATCH_BYTES - 4096
"""A compressed payload; the rest is room for header and signature."""

MAX_INFLATED_BYTES = 8 * MAX_BATCH_BYTES
"""A payload after decompression. Honest ones inflate two- to threefold; a bomb stops here."""

MAX_HEADER_BYTES = 512
"""An encoded header: three hashes, three numbers and a proof of membership."""

MAX_GROUPS = 4096
"""Groups in one batch."""

MAX_TASKS = 32
"""Task names in one batch, as many as a manifest may have."""

MAX_EOS_IDS = 64
"""End-of-sequence ids that a payload may declare."""

MAX_MODEL_NAME = 200
"""Characters of the author's model name."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""What gRPC takes in one message."""

CHUNK_BYTES = 64 * 1024
"""A batch travels in pieces of at most this size, so that other frames aren't held up."""

MAX_NAMES_PER_FRAME = 4096
"""Batch names in one have or want frame (32 bytes each)."""

MAX_MEMBERSHIP_BYTES = 256
"""A proof of membership."""

MAX_PEERS_PER_FRAME = 64
"""Addresses in one peers frame."""

MAX_STATUS_BYTES = 2 * 1024 * 1024
"""A node's status as JSON: 500 peers, as many addresses and refusals, with long names."""

MAX_RECORD_BYTES = 1024
"""A signed node record."""
