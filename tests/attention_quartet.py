"""What every operator must pass on every device, for every case and dtype: value, gradient, opcheck, determinism.

A test file of a device derives a class from `Quartet`, naming the device; the tests are these.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from attention_cases import EACH_DIRECTION, draw, each_case, each_dtype, errors, expected_of, tolerance

from s2attn.ops import registration


class Quartet:
    """The tests; ``device`` comes from the derived class."""

    device: str

    @classmethod
    def setup_class(cls) -> None:
        registration.load(cls.device)

    @pytest.fixture
    def _deterministic_mode(self) -> Iterator[None]:
        """Use torch's own switch, which also fills memory that an operator forgets to write."""
        torch.use_deterministic_algorithms(True)
        yield
        torch.use_deterministic_algorithms(False)

    @each_dtype
    @each_case
    def test_value(self, name: str, dtype: torch.dtype) -> None:
        expected, allowed = expected_of(name, dtype), tolerance(dtype, self.device)
        y, lse = draw(name, dtype, self.device).forward()
        assert (y.dtype, lse.dtype) == (dtype, torch.float32)
        assert y.is_contiguous()
        assert errors({"y": y}, expected)["y"] < allowed.relative
        torch.testing.assert_close(lse.cpu().double(), expected.lse, rtol=allowed.lse, atol=allowed.lse)
        empty = expected.lse.isinf().all(dim=-1)
        assert (y.cpu()[empty] == 0).all()

    @each_dtype
    @each_case
    def test_gradient(self, name: str, dtype: torch.dtype) -> None:
        expected = expected_of(name, dtype)
        gradients = dict(zip(("dq", "dk", "dv"), draw(name, dtype, self.device).backward(), strict=True))
        for x in gradients.values():
            assert x.dtype == dtype
            assert torch.isfinite(x).all()
        found = errors(gradients, expected)
        assert max(found.values()) < tolerance(dtype, self.device).relative, found
        empty = expected.lse.isinf().all(dim=-1)
        assert (gradients["dq"].cpu()[empty] == 0).all()

    # what it looks at (schema, fakes, autograd) depends on direction, dtype and extents of 1, not on widths
    @each_dtype
    @pytest.mark.parametrize("name", ["one_point", "one_channel", "some_empty", *EACH_DIRECTION])
    def test_opcheck(self, name: str, dtype: torch.dtype) -> None:
        call = draw(name, dtype, self.device)
        torch.library.opcheck(torch.ops.s2attn.neighborhood_attention_backward, call.backward_arguments())
        inputs = tuple(x.requires_grad_() for x in (call.q, call.k, call.v))
        torch.library.opcheck(torch.ops.s2attn.neighborhood_attention, (*inputs, *call.tables, call.problem.heads))

    @each_dtype
    @each_case
    @pytest.mark.usefixtures("_deterministic_mode")
    def test_determinism(self, name: str, dtype: torch.dtype) -> None:
        """Also in torch's deterministic mode, which both operators honor as they are."""
        call = draw(name, dtype, self.device)
        first, again = ((*call.forward(), *call.backward()) for _ in range(2))
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
