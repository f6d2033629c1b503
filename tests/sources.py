"""A batch source for daemons without learners: recorded completions, put into the outbox like a learner's."""

from pathlib import Path

from ftis_node.clock import now_ms
from ftis_node.manifest import Run
from ftis_node.store.learner import LearnerStore
from ftis_node.store.schema import open_read_only
from ftis_node.wire.codec import encode_payload
from tests.builders import group, payload

TEXTS = (b"24", b"3+4=7", b"19", b"1+1=2")


class BatchSource:
    """Publishes through the daemon of this home; every batch has one group of ``len(TEXTS)`` completions."""

    def __init__(self, home: Path, run: Run) -> None:
        self._store = LearnerStore(home)
        self._run = run
        self._count = 0

    def publish(self) -> None:
        created = now_ms()
        window = self._run.window(created)
        slot = self._store.next_slot(window)
        self._store.add_outbox(
            [(encode_payload(payload(group(slot, TEXTS))), 1)], round_number=self._count, created_at_ms=created,
            window=window, next_slot=slot + 1,
        )  # fmt: skip
        self._count += 1

    def close(self) -> None:
        self._store.close()


def batches_of(home: Path, *tables: str) -> dict[bytes, int]:
    """The batches that a node holds, its own and others', with the times of their making (ms)."""
    database = open_read_only(home)
    try:
        rows = database.execute(
            " UNION ".join(f"SELECT name, created_at_ms FROM {table}" for table in tables or ("received", "published"))
        ).fetchall()
        return {bytes(name): int(created) for name, created in rows}
    finally:
        database.close()
