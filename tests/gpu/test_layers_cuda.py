"""Both layers on CUDA: what tests/attention_layers.py lists, CUDA graphs and streams."""

import copy

import pytest
import torch
from attention_layers import KINDS, SELF, SHAPES, Layers, Shapes


def step(built: torch.nn.Module, optimizer: torch.optim.Optimizer, signals: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """One step of training; gradients of a step before are overwritten, where a graph expects them."""
    optimizer.zero_grad(set_to_none=True)
    loss = built(*signals).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


class TestCuda(Layers):
    device = "cuda"

    @KINDS
    @SHAPES
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_a_graph_captures_a_step_of_training(self, kind: type, shapes: Shapes, dtype: torch.dtype) -> None:
        built = self.layer(kind, *shapes).to(dtype)
        signals = tuple(x.to(dtype) for x in self.signals(2, *shapes))
        optimizer = torch.optim.SGD(built.parameters(), lr=0.1)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # tables, cuBLAS and the allocator get ready outside of the graph
            for _ in range(3):
                step(built, optimizer, signals)
        torch.cuda.current_stream().wait_stream(stream)
        twin = copy.deepcopy(built)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step(built, optimizer, signals)
        before = [parameter.clone() for parameter in twin.parameters()]
        twin_optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        allowed = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
        for seed in (5, 6):
            for x, fresh in zip(signals, self.signals(seed, *shapes), strict=True):
                x.copy_(fresh[:2])
            graph.replay()
            expected = step(twin, twin_optimizer, signals)
            torch.testing.assert_close(loss, expected, rtol=allowed, atol=allowed)
        for found, wanted in zip(built.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(found, wanted, rtol=allowed, atol=allowed)
        assert any(not torch.equal(x, start) for x, start in zip(built.parameters(), before, strict=True))

    @KINDS
    def test_a_layer_runs_on_the_current_stream(self, kind: type) -> None:
        built, (x, _, _) = self.layer(kind, *SELF), self.signals(2, *SELF)
        expected = built(x).detach()
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        late = torch.zeros_like(x)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            late.copy_(x)  # on another stream, the layer would read zeros
            y = built(late).detach()
        stream.synchronize()
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
