"""The learner: rounds on the store, one after the other.

    restore      newest checkpoint, and the store made to agree with it
    each round   own groups -> outbox -> peers' groups that are here -> train -> commit -> checkpoint

It meets the network half in the store only, and waits for no peer but before its first step. A round is committed
before its checkpoint is written: after a crash in between the round is undone (``LearnerStore.rewind``) and done
again, so that no group is trained on twice in the lineage of any checkpoint.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

import torch

from ftis_node.agreement import agreement_of_round
from ftis_node.clock import now_ms
from ftis_node.config import NodeConfig
from ftis_node.filling import Filling, Places, next_chunk, places_for_peers
from ftis_node.held_out import is_measured
from ftis_node.log import about
from ftis_node.manifest import check_ceilings, parse_run
from ftis_node.own_groups import OwnGroups
from ftis_node.peer_groups import PeerGroups
from ftis_node.round import build_party, longest_sequence, plan_memory, train
from ftis_node.round_report import RoundClock, build_report, count_by_author, describe, log_faults
from ftis_node.store.inbox import ReadyGroup
from ftis_node.store.learner import LearnerStore
from ftis_node.store.reports import RoundReport, Totals
from ftis_node.training.checkpoint import CheckpointProgress, load_newest, save_checkpoint
from ftis_node.training.collate import TrainingGroup
from ftis_node.types import LocalProfile, short_id
from ftis_node.usefulness import weight_factors, weighted

log = logging.getLogger(__name__)

LOG_SECONDS = 2.0


class Learner:
    """Owns the model, the learner's side of the store and the checkpoints of one home."""

    def __init__(
        self,
        home: Path,
        config: NodeConfig,
        *,
        protected: Callable[[], AbstractContextManager[None]],
        after_kill: bool = False,
    ) -> None:
        """``after_kill``: the process before this one was killed, as the kernel does when memory runs out."""
        self._config = config
        self._after_kill = after_kill
        self._protected = protected
        self._checkpoints = home / "checkpoints"
        self._store = LearnerStore(home)
        self._round = 0
        self._activity("loading the run's data and the model")
        if config.training.torch_threads is not None:
            torch.set_num_threads(config.training.torch_threads)
        self._run = parse_run(self._store.run_manifest(), source="stored run manifest")
        check_ceilings(self._run, config.ceilings)
        self._peer_id = self._store.peer_id()
        self._seed = self._store.settle_seed(config.training.seed, secrets.randbits(62))
        self._party = build_party(self._run, config, seed=self._seed)
        self._own_groups = OwnGroups(self._store, self._party, self._peer_id, seed=self._seed, tell=self._tell)
        self._peer_groups = PeerGroups(self._store, self._party, self._tell)
        self._totals = Totals()
        self._logged_at = -LOG_SECONDS

    def __enter__(self) -> Learner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or not issubclass(kind, Exception):  # a stop, not a crash: no batch is to blame
            self._store.inbox.release_unfinished()
        self._store.close()

    def run(self) -> None:
        """Rounds until ``training.max_rounds``; without it, for ever."""
        self._restore()
        self._introduce()
        self._fit_into_memory()
        last = self._config.training.max_rounds
        while last is None or self._round < last:
            self._round += 1
            self._one_round()
        self._activity(f"finished all {self._round} rounds")

    def _one_round(self) -> None:
        clock = RoundClock()
        self._own_groups.begin(self._round)
        self._peer_groups.begin(self._round)
        while True:
            chosen = self._fill(clock)
            self._store.inbox.claim([group.name for group in chosen])
            peers = self._peer_groups.load(chosen)
            if peers or self._own_groups.sampled:
                break
            self._store.inbox.give_up([(group.name, group.group_index) for group in chosen])
        report = self._train(chosen, peers, clock)
        last = self._round == self._config.training.max_rounds
        if last or self._round % self._config.training.checkpoint_every == 0:
            self._save()
        self._log_round(report)

    def _fill(self, clock: RoundClock) -> list[ReadyGroup]:
        """Sample own groups until the step is to be taken; returns the peers' groups in it.

        Where the window's prompts are used up the step is taken with what is there; only without anything this waits.
        """
        training = self._config.training
        places = Places(training.groups_per_step, training.own_groups)
        started = out_of_prompts = False
        while True:
            filling = Filling(len(self._own_groups.sampled), len(self._placed()))
            chosen: list[ReadyGroup] = []
            if filling.sampled >= places.own_groups or out_of_prompts:
                if self._round == 1 and not started:
                    started = True
                    self._peer_groups.await_first(clock)
                chosen = self._peer_groups.collect(places_for_peers(filling, places), clock)
            chunk = next_chunk(filling, len(chosen), places)
            if chunk == 0 or (out_of_prompts and (filling.own or chosen)):
                return chosen
            if out_of_prompts:
                self._own_groups.wait_for_prompts(clock)
            out_of_prompts = not self._own_groups.sample(chunk, clock)

    def _placed(self) -> list[TrainingGroup]:
        """Own groups of this round that take a place in its step."""
        own = self._own_groups.sampled
        return own if self._config.training.places == "any" else [group for group in own if group.teaches]

    def _log_round(self, report: RoundReport) -> None:
        """One line per round, but not more often than people can read."""
        if time.monotonic() - self._logged_at >= LOG_SECONDS or report.round == self._config.training.max_rounds:
            self._logged_at = time.monotonic()
            log.info("%s", describe(report), extra=about(round_number=report.round))
        else:
            log.debug("%s", describe(report), extra=about(round_number=report.round))

    def _activity(self, text: str, *, until_ms: int | None = None) -> None:
        self._store.put_activity(text, round_number=self._round, until_ms=until_ms)

    def _tell(self, text: str, until_ms: int | None) -> None:
        self._activity(text, until_ms=until_ms)

    # --- start ------------------------------------------------------------------------------

    def _restore(self) -> None:
        for name in self._store.inbox.quarantine_repeated():
            log.error(
                "batch %s is quarantined: the learner ended twice while it worked on it",
                short_id(name),
                extra=about(batch=name),
            )
        restored = load_newest(self._checkpoints, model=self._party.loaded.model)
        if restored is not None:
            self._round = restored.progress.round_number
            self._party.trainer.load_state_dict(restored.optimizer_state)
            self._party.engine.sync()
        undone = self._store.rewind(self._round)
        report = self._store.last_report()
        if report is not None:
            self._totals = report.totals
        if restored is not None:
            log.info("resumed after round %d; %d peers' groups used since then are free again", self._round, undone)

    def _introduce(self) -> None:
        model, vocabulary = self._party.loaded.model, self._party.loaded.vocabulary
        parameters = sum(p.numel() for p in model.parameters())
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        lora = f" with LoRA rank {self._config.lora.rank}" if self._config.lora.enabled else ""
        name = self._config.model.label + lora
        profile = LocalProfile(vocabulary.fingerprint, vocabulary.size)
        self._store.put_profile(profile, model=name, parameters=parameters, trainable=trainable)
        log.info("%s: %d parameters, %d of them trained, seed %d", name, parameters, trainable, self._seed)

    def _fit_into_memory(self) -> None:
        """Choose the budgets by a measurement. Raises ModelError when a step can't fit, and says what to change."""
        self._activity("measuring what a step needs")
        longest, chosen = longest_sequence(self._party), plan_memory(self._party)
        budget, text = chosen.micro_batch_tokens, chosen.text
        died = self._store.died_in_step() if self._after_kill else None
        if died is not None:
            budget = max(longest, min(budget, died // 2))
            text = f"killed in the middle of a step, probably for its memory: micro-batches of {budget:,} tokens now"
        self._party.trainer.micro_batch_tokens = budget
        self._party.engine.lower_decode_rows(chosen.decode_rows)
        self._store.put_memory(text)
        log.info("%s", text)

    # --- the step ---------------------------------------------------------------------------

    def _train(
        self, chosen: list[ReadyGroup], peers: list[tuple[ReadyGroup, TrainingGroup]], clock: RoundClock
    ) -> RoundReport:
        """``chosen`` are used up with this, also those that expired before they could be loaded."""
        sampled = self._own_groups.sampled
        own = self._placed() if peers else self._placed() or sampled  # with nothing to learn the step is skipped
        self._activity(f"training on {len(own)} own and {len(peers)} peers' groups")
        trainer = self._party.trainer
        budget = trainer.micro_batch_tokens
        self._store.enter_step(budget)
        weighted_by_use = self._config.training.peer_weighting == "usefulness"
        factors = weight_factors(self._store.measurements()) if weighted_by_use else {}
        groups = weighted([*own, *(group for _, group in peers)], factors)
        agreements = self._measure_agreement(groups, clock)
        step = train(self._party, groups)
        self._store.leave_step()
        if trainer.micro_batch_tokens != budget:
            self._store.put_memory(
                f"ran out in round {self._round}: micro-batches of {trainer.micro_batch_tokens:,} tokens since then"
            )
        aside = [group for group in sampled if not any(group is one for one in own)]
        report = build_report(self._round, step, clock, aside=aside, before=self._totals)
        log_faults(
            step, [ready.name for ready, _ in peers], own=len(own), round_number=self._round,
            untruncated=self._run.manifest.sampling.untruncated,
        )  # fmt: skip
        self._totals = report.totals
        forget_before = now_ms() - 2 * int(self._run.manifest.limits.max_age_seconds * 1000)
        used = [(ready.name, ready.group_index) for ready in chosen]
        by_author = count_by_author(step, agreements, weighted=weighted_by_use)
        self._store.finish_round(self._round, used, report, by_author, forget_before_ms=forget_before)
        return report

    def _measure_agreement(self, groups: list[TrainingGroup], clock: RoundClock) -> dict[bytes, float]:
        """In some rounds: whose samples point where own held-out prompts do."""
        if not is_measured(self._round, self._config.training.agreement_every, seed=self._seed):
            return {}
        self._activity("measuring whether peers' samples help")
        with clock.phase("measuring"):
            return agreement_of_round(self._party, groups, round_number=self._round, seed=self._seed)

    def _save(self) -> None:
        self._activity("writing a checkpoint")
        with self._protected():
            save_checkpoint(
                self._checkpoints,
                model=self._party.loaded.model,
                tokenizer=self._party.loaded.tokenizer,
                optimizer_state=self._party.trainer.state_dict(),
                progress=CheckpointProgress(round_number=self._round),
            )
