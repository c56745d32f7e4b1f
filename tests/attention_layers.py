"""Both layers under what torch does to a module: compile, export, deterministic mode, partial gradients, any device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from s2attn import AttentionS2, NeighborhoodAttentionS2

Shapes = tuple[tuple[int, int], tuple[int, int]]

KINDS = pytest.mark.parametrize("kind", [NeighborhoodAttentionS2, AttentionS2])
SHAPES = pytest.mark.parametrize("shapes", [((12, 24), (6, 12)), ((6, 12), (12, 24))], ids=["down", "up"])
SELF = ((6, 12), (6, 12))


class Layers:
    """The tests; ``device`` comes from the derived class."""

    device: str

    def layer(self, kind: type, in_shape: tuple[int, int], out_shape: tuple[int, int]) -> torch.nn.Module:
        torch.manual_seed(1)
        return kind(
            in_channels=4,
            num_heads=2,
            in_shape=in_shape,
            out_shape=out_shape,
            use_qknorm=True,
            k_channels=6,
            out_channels=10,
        ).to(self.device)

    def signals(self, batch: int, in_shape: tuple[int, int], out_shape: tuple[int, int]) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(batch)
        shapes = (out_shape, in_shape, in_shape)
        return tuple(torch.randn(batch, 4, *shape, generator=generator).to(self.device) for shape in shapes)

    @pytest.fixture
    def _deterministic_mode(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        # without it torch refuses cuBLAS in this mode
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        yield
        torch.use_deterministic_algorithms(False)

    @KINDS
    @SHAPES
    @torch._dynamo.config.patch(error_on_recompile=True)
    def test_one_graph_serves_every_batch(self, kind: type, shapes: Shapes) -> None:
        torch._dynamo.reset()
        built = self.layer(kind, *shapes)
        compiled = torch.compile(built, fullgraph=True, dynamic=True, backend="aot_eager")
        for batch in (2, 3, 5):
            query, key, value = (x.requires_grad_() for x in self.signals(batch, *shapes))
            traced, eager = compiled(query, key, value), built(query, key, value)
            torch.testing.assert_close(traced, eager, rtol=1e-5, atol=1e-6)
            wanted = (query, key, value, *built.parameters())
            for found, expected in zip(
                torch.autograd.grad(traced.sin().sum(), wanted),
                torch.autograd.grad(eager.sin().sum(), wanted),
                strict=True,
            ):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    @KINDS
    @SHAPES
    def test_exports_with_any_batch(self, kind: type, shapes: Shapes) -> None:
        built = self.layer(kind, *shapes).eval()
        batch = {0: torch.export.Dim("batch", min=1, max=64)}
        exported = torch.export.export(built, self.signals(2, *shapes), dynamic_shapes=(batch, batch, batch))
        operators = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
        fused = "aten.scaled_dot_product_attention"
        wanted = "s2attn.neighborhood_attention" if kind is NeighborhoodAttentionS2 else fused
        assert any(name.startswith(wanted) for name in operators), operators
        for size in (1, 2, 7):
            inputs = self.signals(size, *shapes)
            torch.testing.assert_close(exported.module()(*inputs), built(*inputs), rtol=1e-5, atol=1e-6)

    def test_exporting_first_leaves_real_tables_behind(self) -> None:
        # a cutoff of its own: nobody has made the tables of this neighborhood yet
        built = NeighborhoodAttentionS2(4, *SELF, theta_cutoff=0.6543).eval().to(self.device)
        inputs = self.signals(2, *SELF)
        exported = torch.export.export(built, inputs)
        assert {type(table) for table in built.neighborhood.tensors(inputs[0].device)} == {torch.Tensor}
        torch.testing.assert_close(exported.module()(*inputs), built(*inputs), rtol=1e-5, atol=1e-6)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, when the compiler is imported
    @pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # its advice to compute less exactly
    @KINDS
    def test_the_default_compiler_agrees(self, kind: type) -> None:
        torch._dynamo.reset()
        built = self.layer(kind, *SELF)
        compiled = torch.compile(built, fullgraph=True, dynamic=True)
        for batch in (2, 3):
            query, _, _ = self.signals(batch, *SELF)
            query.requires_grad_()
            traced, eager = compiled(query), built(query)
            torch.testing.assert_close(traced, eager, rtol=1e-5, atol=1e-5)
            for found, expected in zip(
                torch.autograd.grad(traced.sin().sum(), (query, built.k_weights)),
                torch.autograd.grad(eager.sin().sum(), (query, built.k_weights)),
                strict=True,
            ):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)

    @KINDS
    @SHAPES
    @pytest.mark.usefixtures("_deterministic_mode")
    def test_deterministic_mode_is_honored(self, kind: type, shapes: Shapes) -> None:
        built, inputs = self.layer(kind, *shapes), self.signals(2, *shapes)
        runs = []
        for _ in range(3):
            leaves = [x.clone().requires_grad_() for x in inputs]
            y = built(*leaves)
            runs.append((y, *torch.autograd.grad(y.sin().sum(), (*leaves, *built.parameters()))))
        for run in runs[1:]:
            assert all(torch.equal(found, first) for found, first in zip(run, runs[0], strict=True))

    @KINDS
    @pytest.mark.parametrize("wanted", range(3))
    @pytest.mark.usefixtures("_deterministic_mode")
    def test_only_the_signal_asked_for_gets_a_gradient(self, kind: type, wanted: int) -> None:
        shapes = ((12, 24), (6, 12))
        built = self.layer(kind, *shapes).requires_grad_(False)
        everything = [x.requires_grad_() for x in self.signals(2, *shapes)]
        expected = torch.autograd.grad(built(*everything).sin().sum(), everything)[wanted]
        only = [x.detach().requires_grad_(i == wanted) for i, x in enumerate(everything)]
        built(*only).sin().sum().backward()
        assert [x.grad is not None for x in only] == [i == wanted for i in range(3)]
        torch.testing.assert_close(only[wanted].grad, expected, rtol=0, atol=0)
