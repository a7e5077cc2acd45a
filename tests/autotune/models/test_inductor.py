"""``at.torch.inductor``: kernels among Inductor's choices, taken where they win, kept by torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from inductor_cases import apart as apart
from inductor_cases import needs_tested
from torch_cases import F, torch

import autotune as at
from autotune.errors import ArgumentError, ModelError
from autotune.models.inductor_clusters import clusters
from autotune.models.inductor_kernels import order_of, task_of
from schedules import te

fx_experimental = pytest.importorskip("torch.fx.experimental.proxy_tensor")


def traced(f: Callable[..., Any], *inputs: Any) -> Any:
    """The graph of a function, in operators of ATen."""
    return fx_experimental.make_fx(f, tracing_mode="fake")(*inputs).graph


def found(f: Callable[..., Any], *inputs: Any) -> list[list[str]]:
    """The clusters of each product of a function, the largest first."""
    return [[c.shown for c in options] for options in clusters(traced(f, *inputs))]


def whole(x: Any) -> Any:
    """Small whole numbers of the same shape, so that sums are exact."""
    return torch.randint(-4, 5, x.shape).to(x.dtype)


A, B, C = torch.empty(6, 8), torch.empty(8, 10), torch.empty(6, 10)


class TestClusters:
    """Which parts of a graph a kernel may compute."""

    def test_an_epilogue_whose_result_is_returned_is_part_of_it(self) -> None:
        assert found(lambda a, b, c: torch.relu(a @ b + c), A, B, C) == [["mm + add + relu", "mm"]]

    def test_an_epilogue_before_another_product_is_part_of_it(self) -> None:
        got = found(lambda a, b, c: torch.relu(a @ b).t() @ c, A, B, C)
        assert got == [["mm + relu", "mm"], ["mm"]]

    def test_what_inductor_fuses_with_a_reduction_is_not(self) -> None:
        assert found(lambda a, b: torch.softmax(a @ b * 2, -1), A, B) == [["mm"]]

    def test_nothing_is_part_of_it_whose_product_is_read_elsewhere_too(self) -> None:
        def two(a: Any, b: Any) -> Any:
            made = a @ b
            return torch.relu(made), made.sum(-1)

        assert found(two, A, B) == [["mm"]]

    def test_several_operators_of_one_epilogue_that_read_the_product_are(self) -> None:
        assert found(lambda a, b: a @ b * torch.sigmoid(a @ b), A, B)[0][-1] == "mm"

        def silu(a: Any, b: Any) -> Any:
            made = a @ b
            return made * torch.sigmoid(made)

        assert found(silu, A, B) == [["mm + sigmoid + mul", "mm"]]

    def test_random_numbers_are_no_epilogue(self) -> None:
        assert found(lambda a, b: torch.bernoulli(torch.sigmoid(a @ b)), A, B) == [["mm"]]

    def test_a_transposed_convolution_is_none(self) -> None:
        x, w = torch.empty(1, 3, 8, 8), torch.empty(3, 4, 3, 3)
        assert found(lambda x, w: F.conv_transpose2d(x, w), x, w) == []

    def test_a_cluster_stays_as_it_was_where_the_graph_changes(self) -> None:
        graph = traced(lambda a, b, c: torch.relu(a @ b).t() @ c, A, B, C)
        first, second = (options[0] for options in clusters(graph))
        apart = second.apart()
        with graph.inserting_after(first.last):
            node = graph.call_function(torch.ops.aten.neg.default, (first.last,))
        first.last.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node)
        assert [str(n.target) for n in apart.nodes] == ["aten.t.default", "aten.mm.default"]
        assert [n.name for n in apart.inputs] == ["x0", "x1"]


CASES: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "mm, bias and relu": (lambda a, b, c: torch.relu(a @ b + c), ((6, 8), (8, 10), (10,))),
    "linear": (F.linear, ((6, 8), (10, 8), (10,))),
    "bmm": (lambda a, b: torch.bmm(a, b) * 2, ((3, 6, 8), (3, 8, 5))),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b, beta=2, alpha=3), ((3, 6, 5), (3, 6, 8), (3, 8, 5))),
    "convolution": (
        lambda x, w, b: torch.relu(F.conv2d(x, w, b, padding=1, stride=2)),
        ((1, 3, 9, 9), (4, 3, 3, 3), (4,)),
    ),
    "grouped convolution": (lambda x, w: F.conv2d(x, w, groups=2), ((2, 4, 6, 6), (6, 2, 3, 3))),
}  # fmt: skip


class TestTasks:
    """The expression of a cluster computes what its operators compute."""

    @pytest.mark.parametrize("name", CASES)
    @pytest.mark.parametrize("turned", [False, True])
    def test_numbers_are_those_of_torch(self, name: str, turned: bool) -> None:
        f, shapes = CASES[name]
        inputs = [whole(torch.empty(s)) for s in shapes]
        cluster = next(iter(clusters(traced(f, *inputs))))[0]
        orders = [tuple(range(x.dim())) for x in inputs]
        order = tuple(range(len(cluster.last.meta["val"].shape)))
        if turned:  # the first axis lies last
            orders, order = [o[1:] + o[:1] for o in orders], order[1:] + order[:1]
        by_node = dict(
            zip([n for n in traced(f, *inputs).nodes if n.op == "placeholder"], inputs, strict=True)
        )
        values = [next(x for n, x in by_node.items() if n.name == i.name) for i in cluster.inputs]
        places = [next(j for j, y in enumerate(inputs) if y is x) for x in values]
        task = task_of(cluster, [orders[j] for j in places], order)
        reads = [i for i in task.reads if isinstance(i, int)]  # no input is a weight
        lying = [np.ascontiguousarray(values[i].permute(orders[places[i]]).numpy()) for i in reads]
        dag = task.workload.dag
        given = [x.reshape(t.shape) for x, t in zip(lying, dag.inputs, strict=True)]
        (made,) = te.evaluate(dag, given)
        expected = f(*inputs).permute(order).numpy()
        assert np.array_equal(made.reshape(expected.shape), expected)

    def test_a_cluster_without_an_expression_is_refused(self) -> None:
        inputs = (x.to(torch.complex64) for x in (A, B))
        cluster = next(iter(clusters(traced(torch.mm, *inputs))))[0]
        with pytest.raises(ModelError, match="input x0 is complex64, which is not supported"):
            task_of(cluster, [(0, 1), (0, 1)], (0, 1))

    @pytest.mark.parametrize(
        ("shape", "strides", "order"),
        [
            ((2, 3), (3, 1), (0, 1)), ((2, 3), (1, 2), (1, 0)), ((1, 4, 5, 6), (120, 1, 24, 4), (0, 2, 3, 1)),
            ((3, 1, 4), (4, 99, 1), (0, 1, 2)), ((2, 3), (4, 1), None), ((2, 3), (0, 1), None), ((), (), ()),
        ],
    )  # fmt: skip
    def test_order_in_memory(self, shape: Any, strides: Any, order: Any) -> None:
        assert order_of(shape, strides) == order


class TestSwitch:
    """When kernels are offered."""

    def test_a_tune_that_is_no_time_is_refused(self) -> None:
        with pytest.raises(
            ArgumentError, match=r"tune=0 is no time above 0: give seconds, such as tune='30s'"
        ):
            at.torch.inductor(tune=0)

    def test_another_torch_is_told_once_and_left_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, "__version__", "2.99.0")
        with pytest.warns(
            UserWarning, match="Inductor chooses alone: it is tested with torch 2.13, and"
        ) as told:
            with at.torch.inductor():
                pass
        assert len(told) == 1

    @needs_tested
    @pytest.mark.slow
    def test_passes_of_the_user_stay(self) -> None:
        from torch._inductor import config

        from autotune.models.inductor_pass import ChoicePass, passes

        theirs = lambda graph: None  # noqa: E731
        with config.patch(post_grad_custom_post_pass=theirs):
            choices = at.torch.inductor().on()
            both = passes()
            choices.off()
            assert both[0] is theirs and isinstance(both[1], ChoicePass)
            assert passes() == [theirs]
        with at.torch.inductor() as choices:
            assert str(choices).startswith("nothing was chosen here: torch compiles at the first call")
        assert passes() == []

    @needs_tested
    @pytest.mark.slow
    def test_code_of_other_settings_is_not_taken(self) -> None:
        from autotune.models.inductor_pass import passes

        names = set()
        every: tuple[dict[str, Any], ...] = ({}, {"tune": 3}, {"threads": 2}, {"db": "other.db"})
        for how in every:
            with at.torch.inductor(**how):
                names.add(passes()[0].uuid())
        assert len(names) == len(every)

    @needs_tested
    @pytest.mark.slow
    @pytest.mark.usefixtures("two_cpus")
    def test_threads_are_those_of_torch_when_it_compiles(self) -> None:
        from autotune.models.inductor_pass import passes

        with at.torch.inductor():
            one = passes()[0].uuid()
            torch.set_num_threads(2)
            assert passes()[0].uuid() != one
            torch.set_num_threads(1)
            assert passes()[0].uuid() == one
