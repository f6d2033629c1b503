"""Who may take part in a run: everybody, a list of peer ids, or whoever holds an invitation.

There is no coordinator to ask, so membership is proved. An invitation is a key pair whose public half the
run's admission key has signed, with an end. Whoever holds it signs its own peer id with the private half;
that proof (168 bytes) travels in hellos and batches. It is worth nothing to anybody else who sees it.
"""

from __future__ import annotations

import base64
import binascii
import struct

from ftis_node.errors import ConfigError
from ftis_node.identity import Identity, verify_signature
from ftis_node.manifest import AdmissionKey, PeerList, Run
from ftis_node.types import PeerId, RunId

INVITATION_DOMAIN = b"ftis-node/invitation/1\0"
MEMBERSHIP_DOMAIN = b"ftis-node/membership/1\0"
TOKEN_PREFIX = "ftis-invitation-"

_TOKEN = struct.Struct(">32sQ64s")  # private seed, end in ms, signature of the admission key
_PROOF = struct.Struct(
    ">32sQ64s64s"
)  # public key, end in ms, signature of the admission key, signature over the peer id
PROOF_BYTES = _PROOF.size


def make_invitation(admission: Identity, run_id: RunId, *, expires_at_ms: int) -> str:
    """A token for people to send to each other: secret until it is used, and usable until it expires."""
    guest = Identity.generate()
    signature = admission.sign(INVITATION_DOMAIN, _invitation(run_id, guest.peer_id, expires_at_ms))
    packed = _TOKEN.pack(guest.seed(), expires_at_ms, signature)
    return TOKEN_PREFIX + base64.urlsafe_b64encode(packed).decode()


def accept_invitation(token: str, peer_id: PeerId, run: Run, *, now_ms: int) -> bytes:
    """The proof that this peer may take part. Raises ConfigError when the invitation is no good for this run."""
    try:
        packed = base64.b64decode(token.removeprefix(TOKEN_PREFIX).encode("ascii"), altchars=b"-_", validate=True)
        seed, expires_at_ms, signature = _TOKEN.unpack(packed)
    except (binascii.Error, UnicodeEncodeError, struct.error) as error:
        raise ConfigError(f"--invitation: not an invitation; it begins with {TOKEN_PREFIX}") from error
    guest = Identity.from_seed(seed)
    binding = guest.sign(MEMBERSHIP_DOMAIN, run.run_id + peer_id)
    proof = _PROOF.pack(guest.peer_id, expires_at_ms, signature, binding)
    reason = why_not_a_member(run, peer_id, proof, now_ms=now_ms)
    if reason is not None:
        raise ConfigError(f"--invitation: {reason}")
    return proof


def why_not_a_member(run: Run, peer_id: PeerId, proof: bytes, *, now_ms: int) -> str | None:
    """None if the peer may take part now, else the reason in words that it can be told."""
    membership = run.manifest.membership
    if isinstance(membership, PeerList):
        return None if peer_id.hex() in membership.peers else "this run is for a list of peers, and you are not on it"
    if not isinstance(membership, AdmissionKey):
        return None
    if len(proof) != PROOF_BYTES:
        return "this run is by invitation: ask its owner for one, and join with --invitation"
    guest, expires_at_ms, signature, binding = _PROOF.unpack(proof)
    admission = PeerId(bytes.fromhex(membership.admission_key))
    invitation = _invitation(run.run_id, PeerId(guest), expires_at_ms)
    if not verify_signature(admission, INVITATION_DOMAIN, invitation, signature):
        return "the invitation is not for this run"
    if not verify_signature(PeerId(guest), MEMBERSHIP_DOMAIN, run.run_id + peer_id, binding):
        return "the invitation was accepted by another peer"
    if expires_at_ms < now_ms:
        return f"the invitation expired {(now_ms - expires_at_ms) / 3_600_000:.1f} hours ago: ask for a new one"
    return None


def _invitation(run_id: RunId, guest: PeerId, expires_at_ms: int) -> bytes:
    return run_id + guest + expires_at_ms.to_bytes(8, "big")
