from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("hello", "have", "want", "chunk", "ping", "pong", "goodbye", "peers", "twin")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    TWIN_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    have: Have
    want: Want
    chunk: Chunk
    ping: Ping
    pong: Pong
    goodbye: Goodbye
    peers: Peers
    twin: Twin
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., have: _Optional[_Union[Have, _Mapping]] = ..., want: _Optional[_Union[Want, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., peers: _Optional[_Union[Peers, _Mapping]] = ..., twin: _Optional[_Union[Twin, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("record", "at_ms", "signature")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    at_ms: int
    signature: bytes
    def __init__(self, record: _Optional[bytes] = ..., at_ms: _Optional[int] = ..., signature: _Optional[bytes] = ...) -> None: ...

class NodeRecord(_message.Message):
    __slots__ = ("peer_id", "addresses", "certificate_sha256", "run_id", "model", "version", "listen_port", "instance", "created_at_ms", "expires_at_ms", "membership", "dht_addresses", "tokenizer_fingerprint")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LISTEN_PORT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MEMBERSHIP_FIELD_NUMBER: _ClassVar[int]
    DHT_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    peer_id: bytes
    addresses: _containers.RepeatedScalarFieldContainer[str]
    certificate_sha256: bytes
    run_id: bytes
    model: str
    version: str
    listen_port: int
    instance: bytes
    created_at_ms: int
    expires_at_ms: int
    membership: bytes
    dht_addresses: _containers.RepeatedScalarFieldContainer[str]
    tokenizer_fingerprint: bytes
    def __init__(self, peer_id: _Optional[bytes] = ..., addresses: _Optional[_Iterable[str]] = ..., certificate_sha256: _Optional[bytes] = ..., run_id: _Optional[bytes] = ..., model: _Optional[str] = ..., version: _Optional[str] = ..., listen_port: _Optional[int] = ..., instance: _Optional[bytes] = ..., created_at_ms: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., membership: _Optional[bytes] = ..., dht_addresses: _Optional[_Iterable[str]] = ..., tokenizer_fingerprint: _Optional[bytes] = ...) -> None: ...

class SignedRecord(_message.Message):
    __slots__ = ("record", "signature")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    signature: bytes
    def __init__(self, record: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Have(_message.Message):
    __slots__ = ("names", "sizes")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    names: bytes
    sizes: bytes
    def __init__(self, names: _Optional[bytes] = ..., sizes: _Optional[bytes] = ...) -> None: ...

class Want(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: bytes
    def __init__(self, names: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("name", "offset", "data", "last")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    offset: int
    data: bytes
    last: bool
    def __init__(self, name: _Optional[bytes] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., last: _Optional[bool] = ...) -> None: ...

class Peers(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: bytes
    def __init__(self, entries: _Optional[bytes] = ...) -> None: ...

class Twin(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    def __init__(self, record: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class ManifestRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ManifestReply(_message.Message):
    __slots__ = ("manifest", "record")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    record: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., record: _Optional[bytes] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("status_json", "record")
    STATUS_JSON_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    status_json: bytes
    record: bytes
    def __init__(self, status_json: _Optional[bytes] = ..., record: _Optional[bytes] = ...) -> None: ...

class ReachRequest(_message.Message):
    __slots__ = ("port", "certificate_sha256")
    PORT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    port: int
    certificate_sha256: bytes
    def __init__(self, port: _Optional[int] = ..., certificate_sha256: _Optional[bytes] = ...) -> None: ...

class ReachReply(_message.Message):
    __slots__ = ("reached", "host", "reason")
    REACHED_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    reached: bool
    host: str
    reason: str
    def __init__(self, reached: _Optional[bool] = ..., host: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
