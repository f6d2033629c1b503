"""Micro-batches: every row once, within the budget, masks from lengths."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.training.collate import TrainingSequence, collate, pack_length, pack_rows, split_rows


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(16, 500))
def test_every_row_is_in_one_micro_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    parts = split_rows(lengths, budget)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        longest = max(lengths[row] for row in part)
        assert len(part) == 1 or len(part) * longest <= budget


def test_masks_do_not_depend_on_the_pad_id() -> None:
    """pad == end of sequence: the end token counts, the padding doesn't."""
    end = 9
    sequences = [
        TrainingSequence((1, 2, 3), (4, end), (-0.1, -0.2), 1.0),
        TrainingSequence((1,), (5, 6, 7, end), (-0.1, -0.2, -0.3, -0.4), 0.0),
    ]
    batch = collate(sequences, [[0], [1]], pad_id=end, device=torch.device("cpu"))
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, end], [1, 5, 6, 7, end]]
    assert batch.attention_mask.tolist() == [[1] * 5, [1] * 5]
    assert batch.loss_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.targets[0, :2].tolist() == [4, end]
    assert batch.gather.tolist() == [[2, 3, 0, 0], [0, 1, 2, 3]]
    assert batch.chunk_ids is None


def test_chunks_of_one_sequence_give_every_other_token_a_chunk_of_its_own() -> None:
    sequences = [
        TrainingSequence((1,), (2, 3, 4), (-1.0, 0.0, -2.0), 1.0, chunk_ids=(0, 0, 1)),
        TrainingSequence((1,), (2, 3), (-1.0, -2.0), 0.0),
    ]
    batch = collate(sequences, [[0], [1]], pad_id=0, device=torch.device("cpu"))
    assert batch.chunk_ids is not None
    assert batch.chunk_ids.tolist() == [[0, 0, 1], [0, 1, 2]]


def test_a_pack_holds_its_prompt_once_and_its_completions_do_not_see_each_other() -> None:
    sequences = [
        TrainingSequence((1, 2), (3, 4, 5), (-1.0, -2.0, -3.0), 1.0),
        TrainingSequence((1, 2), (6,), (-4.0,), 0.0),
        TrainingSequence((9,), (8, 7), (-5.0, -6.0), 0.0),
    ]
    batch = collate(sequences, [[0, 1], [2]], pad_id=0, device=torch.device("cpu"))
    assert batch.rows == (0, 1, 2)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5, 6], [9, 8, 7, 0, 0, 0]]
    assert batch.position_ids is not None
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 2], [0, 1, 2, 0, 0, 0]]
    assert batch.pack_of.tolist() == [0, 0, 1]
    assert batch.gather.tolist() == [[1, 2, 3], [1, 0, 0], [0, 1, 0]]
    assert batch.targets.tolist() == [[3, 4, 5], [6, 0, 0], [8, 7, 0]]
    assert batch.attention_mask.shape == (2, 1, 6, 6)
    seen = [[key for key in range(6) if batch.attention_mask[0, 0, query, key]] for query in range(6)]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 5]]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=20),
    st.integers(1, 300),
    st.integers(1, 200),
)
def test_every_row_is_in_one_pack_of_its_prompt_within_the_budget(
    shapes: list[tuple[int, int]], budget: int, hidden: int
) -> None:
    sequences = [
        TrainingSequence((prompt,) * (5 * prompt + 1), (1,) * count, (0.0,) * count, 0.0) for prompt, count in shapes
    ]
    rows = list(range(0, len(sequences), 2))
    packs = pack_rows(sequences, rows, hidden=hidden, budget=budget)
    assert sorted(row for pack in packs for row in pack) == rows
    for pack in packs:
        assert len({sequences[row].prompt_ids for row in pack}) == 1
        assert len(pack) == 1 or pack_length(sequences, pack) <= budget


def test_a_prompt_is_shared_where_that_is_cheaper() -> None:
    long_prompt = [TrainingSequence((1,) * 100, (2,) * 10, (0.0,) * 10, 0.0)] * 4
    long_completions = [TrainingSequence((1,) * 4, (2,) * 500, (0.0,) * 500, 0.0)] * 4
    assert pack_rows(long_prompt, range(4), hidden=64, budget=10_000) == [(0, 1, 2, 3)]
    assert pack_rows(long_completions, range(4), hidden=64, budget=10_000) == [(0,), (1,), (2,), (3,)]
