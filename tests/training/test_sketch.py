"""Sketches keep inner products, whatever the shapes of the parameters."""

from __future__ import annotations

import pytest
import torch

from ftis_node.training.sketch import BUCKETS, cosine, sketch


def gradients(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


SHAPES = ((700, 900), (3,), (1000, 31), (BUCKETS + 5,), (17, 2, 5))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, -0.7])
def test_the_cosine_is_that_of_the_gradients(share: float) -> None:
    one, noise = gradients(1, *SHAPES), gradients(2, *SHAPES)
    other = [share * a + (1 - abs(share)) * b for a, b in zip(one, noise, strict=True)]
    flat, flat_other = torch.cat([g.flatten() for g in one]), torch.cat([g.flatten() for g in other])
    expected = torch.nn.functional.cosine_similarity(flat, flat_other, dim=0).item()
    assert cosine(sketch(one), sketch(other)) == pytest.approx(expected, abs=0.01)


def test_low_rank_gradients_do_not_fool_it() -> None:
    """Weight gradients are sums of few outer products: rows and columns are far from independent."""
    left, right, other = gradients(3, (512,), (2048,), (512,))
    one, two = torch.outer(left, right), torch.outer(other - (other @ left) / (left @ left) * left, right)
    assert cosine(sketch([one]), sketch([two])) == pytest.approx(0.0, abs=0.02)


def test_it_is_linear_and_the_same_every_time() -> None:
    one, other = gradients(4, *SHAPES), gradients(5, *SHAPES)
    both = sketch([a + b for a, b in zip(one, other, strict=True)])
    assert torch.allclose(sketch(one) + sketch(other), both, atol=1e-3)
    assert torch.equal(sketch(one), sketch(one))


def test_no_direction_has_no_cosine() -> None:
    zero, one = sketch([torch.zeros(10)]), sketch([torch.ones(10)])
    assert cosine(zero, one) is None
    assert cosine(sketch([torch.full((10,), float("nan"))]), one) is None
    with pytest.raises(ValueError, match="no parameter"):
        sketch([])
