import math

import pytest
import torch

from paceline.algo import token_logprobs
from paceline.algo.sampling import Knobs, draw
from paceline.types.records import Sampling

LOGITS = torch.tensor([[2.0, 1.0, 0.0]], dtype=torch.float64)


def scores(token: int, **options: object) -> tuple[float, float]:
    got = token_logprobs(LOGITS, torch.tensor([token]), lambda rows: rows, **options)  # type: ignore[arg-type]
    return got.logp.item(), got.kept.item()


@pytest.mark.parametrize(("temperature", "right"), [(1.0, (-0.407606, -1.407606, -2.407606)), (0.6, (-0.202573, -1.869240, -3.535906))])
def test_logits_are_divided_by_the_temperature_before_the_softmax(temperature: float, right: tuple[float, ...]) -> None:
    got = [scores(token, temperature=temperature)[0] for token in range(3)]
    assert got == pytest.approx(right, abs=1e-6)
    assert scores(0, temperature=0.6)[0] != pytest.approx(-0.679343, abs=0.1), "log-probs divided by the temperature are wrong"


def test_over_the_kept_set_log_probs_are_normalised_again() -> None:
    assert [scores(token, top_k=2)[1] for token in (0, 1)] == pytest.approx([-0.313262, -1.313262], abs=1e-6)
    assert scores(0, top_p=0.6) == pytest.approx((-0.407606, 0.0), abs=1e-6)
    assert scores(0, top_k=2)[0] == pytest.approx(-0.407606, abs=1e-6), "the full log-prob stays beside it"


@pytest.mark.parametrize("top_p", [0.9, 0.7, 0.95, 0.8])
def test_trainer_and_sampler_keep_the_same_set_where_a_token_stands_at_the_edge(top_p: float) -> None:
    for edge in (top_p - 1e-9, top_p + 1e-9):
        logits = torch.tensor([[edge, (1 - edge) * 0.6, (1 - edge) * 0.4]], dtype=torch.float64).log()
        drawn = draw(logits, Knobs.of([Sampling(1, 1.0, top_p)]), torch.zeros(1))
        got = token_logprobs(logits, drawn.ids, lambda rows: rows, top_p=top_p)
        assert got.kept.item() == pytest.approx(drawn.logprob_kept.item(), abs=1e-12)


def test_a_token_that_an_update_moved_out_of_the_kept_set_stays_finite() -> None:
    full, kept = scores(2, top_k=2)
    assert full == pytest.approx(-2.407606, abs=1e-6)
    assert kept == pytest.approx(full, abs=1e-9), "kept set and the token are the whole vocabulary of three here"


def case(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(rows, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, 8, generator=generator, dtype=torch.float64, requires_grad=True)
    return hidden, weight, torch.randint(0, 50, (rows,), generator=generator)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.6}, {"top_p": 0.8, "temperature": 1.5}, {"top_k": 5}])
def test_values_and_gradients_are_those_of_one_plain_log_softmax_whatever_the_chunk(options: dict) -> None:
    hidden, weight, ids = case(23)
    scaled = (hidden @ weight.t()) / options.get("temperature", 1.0)
    if "top_k" in options or "top_p" in options:
        order = scaled.detach().argsort(-1, descending=True)
        mass = scaled.detach().softmax(-1).gather(-1, order).cumsum(-1)
        before = torch.cat([torch.zeros(23, 1), mass[:, :-1]], 1)
        sorted_keep = before < options["top_p"] if "top_p" in options else (torch.arange(50) < options["top_k"]).expand(23, 50)
        keep = torch.zeros(23, 50, dtype=torch.bool).scatter(-1, order, sorted_keep).scatter(-1, ids[:, None], True)
        kept = scaled.masked_fill(~keep, -math.inf).log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    else:
        kept = scaled.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    full = scaled.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    weights = torch.linspace(-1, 1, 23, dtype=torch.float64)
    right = torch.autograd.grad((weights * full + weights.square() * kept).sum(), (hidden, weight))
    for chunk in (1, 7, 23, 512):
        got = token_logprobs(hidden, ids, lambda rows: rows @ weight.t(), chunk=chunk, **options)
        torch.testing.assert_close(got.logp, full, atol=1e-12, rtol=0)
        torch.testing.assert_close(got.kept, kept, atol=1e-12, rtol=0)
        gradients = torch.autograd.grad((weights * got.logp + weights.square() * got.kept).sum(), (hidden, weight))
        for mine, plain in zip(gradients, right, strict=True):
            torch.testing.assert_close(mine, plain, atol=1e-12, rtol=0)


def test_no_more_than_a_chunk_of_logits_exists_forward_or_backward() -> None:
    hidden, weight, ids = case(40)
    seen: list[int] = []

    def head(rows: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows))
        return rows @ weight.t()

    token_logprobs(hidden, ids, head, chunk=16).logp.sum().backward()
    assert seen == [16, 16, 8, 16, 16], "the forward pass in order, the backward pass from the end, whose logits are still there"


def test_entropy_is_that_of_the_full_distribution_at_the_temperature() -> None:
    hidden, weight, ids = case(9)
    got = token_logprobs(hidden, ids, lambda rows: rows @ weight.t(), temperature=0.7, top_k=3, chunk=4, entropy=True)
    right = torch.distributions.Categorical(logits=hidden @ weight.t() / 0.7).entropy()
    torch.testing.assert_close(got.entropy, right.detach(), atol=1e-12, rtol=0)
    assert not got.entropy.requires_grad
    assert token_logprobs(hidden, ids, lambda rows: rows @ weight.t()).entropy.numel() == 0


def test_logits_of_minus_infinity_do_not_make_the_entropy_nan() -> None:
    logits = torch.tensor([[0.0, -math.inf, 0.0]])
    assert token_logprobs(logits, torch.tensor([0]), lambda rows: rows, entropy=True).entropy.item() == pytest.approx(math.log(2))


def test_a_temperature_or_chunk_that_is_not_positive_is_refused() -> None:
    for options in ({"temperature": 0.0}, {"temperature": math.nan}, {"chunk": 0}):
        with pytest.raises(ValueError, match=r"temperature|head_chunk"):
            scores(0, **options)
