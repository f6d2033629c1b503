"""``ftis-node invite``: the admission key of a run, and invitations signed with it."""

from __future__ import annotations

from pathlib import Path

from ftis_node.admission import make_invitation
from ftis_node.clock import now_ms
from ftis_node.errors import ConfigError, HomeError
from ftis_node.identity import create_key_file, read_key_file
from ftis_node.manifest import AdmissionKey, load_run

DAY_MS = 86_400_000


def run_invite(key_file: Path, *, run_file: Path | None, days: float) -> int:
    """Make the key if there is none, and with a run an invitation. Raises ConfigError, HomeError."""
    if not key_file.exists():
        if run_file is not None:
            raise HomeError(f"--key {key_file}: there is no such key; make one by leaving out --run")
        admission = create_key_file(key_file)
        print(f"Made {key_file}. Keep it: whoever has it can invite. In run.toml write:\n")
        print(f'membership = {{ admission_key = "{admission.peer_id.hex()}" }}')
        return 0
    admission = read_key_file(key_file)
    if run_file is None:
        raise HomeError(f"--key {key_file}: exists already; give --run run.toml to make an invitation with it")
    run = load_run(run_file)
    membership = run.manifest.membership
    if not isinstance(membership, AdmissionKey) or membership.admission_key != admission.peer_id.hex():
        raise ConfigError(
            f'--run {run_file}: must have membership = {{ admission_key = "{admission.peer_id.hex()}" }} to invite'
            " with this key"
        )
    print(make_invitation(admission, run.run_id, expires_at_ms=now_ms() + int(days * DAY_MS)))
    return 0
