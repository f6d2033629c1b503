"""What the wire's 16-bit log-probs do to the objective: at most 1e-3 in loss and gradient."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ftis_node.training.ftis import ftis_loss
from ftis_node.wire.columns import logprobs_of, quantise_logprobs
from tests.training.test_ftis import CASES, inputs_of


@pytest.mark.parametrize(
    "number", [n for n, case in enumerate(CASES) if case["inputs"]["method"] in ("nois", "tis", "f-nois", "f-tis")]
)
def test_quantisation_moves_no_case_by_more_than_a_thousandth(number: int) -> None:
    inputs, config = inputs_of(CASES[number])
    mask = inputs.loss_mask
    # Log-probs above zero can't travel; the worked cases have a few.
    behavior = inputs.behavior_logprobs.clamp(max=0.0)
    travelled = torch.from_numpy(logprobs_of(quantise_logprobs(behavior.double().numpy().ravel()))).reshape(mask.shape)
    results = []
    for logprobs in (behavior, travelled.float()):
        outputs = ftis_loss(replace(inputs, behavior_logprobs=logprobs), config)
        (gradient,) = torch.autograd.grad(outputs.loss, inputs.policy_logprobs)
        results.append((outputs, gradient))
    (before, gradient), (after, gradient_after) = results
    if not torch.equal(before.keep_mask, after.keep_mask):
        assert isinstance(config.kl_threshold, float)
        moved = before.keep_mask != after.keep_mask
        np.testing.assert_allclose(before.divergence[moved].detach(), config.kl_threshold, rtol=0.1)
        return  # a sequence on the threshold itself
    assert abs(before.loss.item() - after.loss.item()) <= 1e-3
    assert (gradient - gradient_after).abs().max().item() <= 1e-3
