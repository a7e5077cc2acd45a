"""Complex numbers and Fourier transforms of torch, as numbers with two parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch_cases import Many, Of, compared, exported, torch

import autotune as at
from autotune.errors import ModelError

fft = torch.fft


def real(z: Any) -> Any:
    return torch.view_as_real(z.resolve_conj())


def arithmetic() -> list[Callable[..., Any]]:
    """Of complex a (3, 4) and b (4,), made of real numbers, and of real x (3, 4)."""
    places = torch.polar(torch.ones(3, 4), torch.arange(12.0).reshape(3, 4))
    return [
        lambda a, b, x: a * b,
        lambda a, b, x: a * x,
        lambda a, b, x: a * 2.5,
        lambda a, b, x: a * (1 + 2j),
        lambda a, b, x: a * places,
        lambda a, b, x: a / b,
        lambda a, b, x: a / x,
        lambda a, b, x: a + b,
        lambda a, b, x: a - x,
        lambda a, b, x: torch.sub(a, b, alpha=0.5),
        lambda a, b, x: -a.conj(),
        lambda a, b, x: torch.exp(a),
        lambda a, b, x: torch.complex(x, x + 1),
        lambda a, b, x: torch.polar(x.abs(), x),
        lambda a, b, x: x.to(torch.complex64) * a,
        lambda a, b, x: a.to(torch.complex128),
        lambda a, b, x: a.reshape(2, 6),
        lambda a, b, x: a.unsqueeze(1).squeeze(1).flatten(),
        lambda a, b, x: b.expand(3, 4),
        lambda a, b, x: a.permute(1, 0),
        lambda a, b, x: a.transpose(-1, -2)[1:, -2],
        lambda a, b, x: a[:, 1::2],
        lambda a, b, x: a[-1],
        lambda a, b, x: torch.cat([a, a * 2], -1),
        lambda a, b, x: torch.stack([a, b.expand(3, 4)], -2),
    ]


def parts() -> list[Callable[..., Any]]:
    """Whose results are real numbers."""
    return [
        lambda a, b, x: a.abs(),
        lambda a, b, x: a.angle(),
        lambda a, b, x: a.real * 2,
        lambda a, b, x: (a * b).imag,
        lambda a, b, x: torch.view_as_real(a.clone()),
    ]


@pytest.mark.slow
def test_complex_numbers_are_those_of_torch() -> None:
    torch.manual_seed(3)
    functions = [lambda *xs, fn=fn: real(fn(*complexes(*xs))) for fn in arithmetic()]
    functions += [lambda *xs, fn=fn: fn(*complexes(*xs)) for fn in parts()]
    compared(Many(functions), torch.randn(3, 4, 2), torch.randn(4, 2), torch.randn(3, 4))


def complexes(a: Any, b: Any, x: Any) -> tuple[Any, ...]:
    return torch.view_as_complex(a), torch.view_as_complex(b), x


@pytest.mark.slow
def test_transforms_are_those_of_torch() -> None:
    torch.manual_seed(3)
    window = torch.hann_window(6)
    functions = [
        lambda x: real(fft.rfft(x)),
        lambda x: real(fft.rfft(x, n=9, dim=0)),
        lambda x: real(fft.rfft(x, n=4)),
        lambda x: real(fft.fft(x, norm="ortho")),
        lambda x: real(fft.ifft(fft.fft(x[:, 0]))),
        lambda x: real(fft.fft2(x)),
        lambda x: real(fft.rfftn(x)),
        lambda x: fft.irfft(fft.rfft(x)),
        lambda x: fft.irfft(fft.rfft(x), n=6, norm="forward"),
        lambda x: fft.irfft2(fft.rfft2(x), s=(5, 7)),
        lambda x: fft.fftshift(fft.fft(x, dim=1).real, 1),
        lambda x: fft.hfft(fft.rfft(x[0])),
        lambda x: torch.stft(x[0], 6, 2, window=window, return_complex=True).abs() ** 2,
    ]
    compared(Many(functions), torch.randn(3, 5, 7), rtol=1e-5)


def test_a_transform_is_exact_where_its_table_is() -> None:
    """Of four elements all sines are whole."""
    compared(Of(lambda x: real(fft.fft(x))), torch.randint(-9, 9, (5, 4)).float(), rtol=0)


@pytest.mark.fast("<lambda>-output .* is complex, .*: return torch.view_as_real of it")
@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (lambda x: fft.rfft(x), "output .* is complex, .*: return torch.view_as_real of it"),
        (lambda x: fft.rfft(x, n=5000).abs(), "its axis has 5000 elements, more than 4096"),
        (
            lambda x: torch.log(fft.rfft(x)).abs(),
            r"aten\.log\.default \(1\): log: complex numbers are not supported by it",
        ),
    ],
)
def test_what_has_no_expression_is_refused(fn: Callable[..., Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        at.import_torch(exported(Of(fn), torch.ones(3, 4)))
