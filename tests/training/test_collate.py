"""Micro-batches: every row once, within the budget, masks from lengths."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from ftis_node.training.collate import TrainingSequence, collate, split_rows


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
    batch = collate(sequences, [0, 1], pad_id=end, device=torch.device("cpu"))
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
    batch = collate(sequences, [0, 1], pad_id=0, device=torch.device("cpu"))
    assert batch.chunk_ids is not None
    assert batch.chunk_ids.tolist() == [[0, 0, 1], [0, 1, 2]]
