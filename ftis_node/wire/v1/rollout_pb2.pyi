from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SignedBatch(_message.Message):
    __slots__ = ("header", "signature", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    signature: bytes
    payload: bytes
    def __init__(self, header: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., payload: _Optional[bytes] = ...) -> None: ...

class BatchHeader(_message.Message):
    __slots__ = ("run_id", "author", "epoch", "sequence", "created_at_ms", "payload_sha256", "membership")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_SHA256_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    run_id: bytes
    author: bytes
    epoch: int
    sequence: int
    created_at_ms: int
    payload_sha256: bytes
    membership: bytes
    def __init__(self, run_id: _Optional[bytes] = ..., author: _Optional[bytes] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., created_at_ms: _Optional[int] = ..., payload_sha256: _Optional[bytes] = ..., membership: _Optional[bytes] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ...) -> None: ...

class RolloutPayload(_message.Message):
    __slots__ = ("model", "tokenizer_fingerprint", "eos_token_ids", "sampling", "tasks", "group_slots", "group_tasks", "group_sizes", "token_counts", "text_lengths", "finish_reasons", "token_ids", "behavior_logprobs", "token_byte_lengths", "text")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SLOTS_FIELD_NUMBER: _ClassVar[int]
    GROUP_TASKS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TEXT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASONS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BEHAVIOR_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokenizer_fingerprint: bytes
    eos_token_ids: bytes
    sampling: Sampling
    tasks: str
    group_slots: bytes
    group_tasks: bytes
    group_sizes: bytes
    token_counts: bytes
    text_lengths: bytes
    finish_reasons: bytes
    token_ids: bytes
    behavior_logprobs: bytes
    token_byte_lengths: bytes
    text: bytes
    def __init__(self, model: _Optional[str] = ..., tokenizer_fingerprint: _Optional[bytes] = ..., eos_token_ids: _Optional[bytes] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., tasks: _Optional[str] = ..., group_slots: _Optional[bytes] = ..., group_tasks: _Optional[bytes] = ..., group_sizes: _Optional[bytes] = ..., token_counts: _Optional[bytes] = ..., text_lengths: _Optional[bytes] = ..., finish_reasons: _Optional[bytes] = ..., token_ids: _Optional[bytes] = ..., behavior_logprobs: _Optional[bytes] = ..., token_byte_lengths: _Optional[bytes] = ..., text: _Optional[bytes] = ...) -> None: ...
