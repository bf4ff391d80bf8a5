# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Measures what this package adds to `to_executorch()`, in CPU time.

Run as a script, by itself on the machine. Synthetic graphs first: a chain of kernels in
which a given share of the nodes are aliases, so that the growth with the number of
nodes shows; then models. Ratios are aliased over stock, the median of pairs taken in
turns that swap order.
"""

import argparse
import copy
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from executorch.exir import EdgeProgramManager, to_edge
from executorch_slice import disabled
from executorch_slice.demo_models import MODELS
from executorch_slice.exir.memory import is_alias
from executorch_slice.exir.verification.plan_verifier import verify_plan
from torch import nn, Tensor
from torch.export.graph_signature import TensorArgument

from zoo import Case, ZOO

SHARES = (10, 30, 50)  # percent of the nodes
NODES = (1_000, 4_000, 16_000)
SEGMENT = 250

DEMOS = {name: lambda build=build: Case(*build()) for name, build in MODELS.items()}
BUILDERS: dict[str, Callable[[], Case]] = {**DEMOS, **ZOO}


class Chain(nn.Module):
    """A chain of kernels with about `SEGMENT` nodes when it is lowered.

    A kernel is two nodes, with its alloc. `share` percent of the nodes are aliases.
    Some values are read again much later.
    """

    def __init__(self, share: int) -> None:
        super().__init__()
        self.aliases = SEGMENT * share // 100
        self.kernels = (SEGMENT - self.aliases) // 2

    def forward(self, x: Tensor) -> Tensor:
        recent = [x * 2] * 16
        made = 0
        for step in range(1, self.kernels):
            value, old = recent[-1], recent[step % 16]
            while made < self.aliases * step // self.kernels:
                value = value[:, 1:]
                made += 1
            recent = [*recent[1:], value * old if value.shape == old.shape else -value]
            if recent[-1].shape[1] < 24:
                recent[-1] = torch.cat([recent[-1], x], 1)
        return torch.cat([recent[-1], x], 1)[:, : x.shape[1]]


def repeated(edge: EdgeProgramManager, times: int) -> EdgeProgramManager:
    """`times` such programs, each on the output of the one before.

    Exporting as many nodes would take far longer than lowering them.
    """
    program = edge.exported_program()
    graph, output = program.graph, program.graph.output_node()
    (x,) = (n for n in graph.nodes if n.name in program.graph_signature.user_inputs)
    body = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    (end,) = (last,) = output.args[0]
    copies = {node: node for node in graph.nodes}
    for _ in range(times - 1):
        copies[x] = last
        for node in body:
            with graph.inserting_before(output):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        last = copies[end]
    output.args = ((last,),)
    program.graph_signature.output_specs[0].arg = TensorArgument(last.name)
    program.graph_module.recompile()
    return edge


def export_model(name: str) -> EdgeProgramManager:
    return to_edge(BUILDERS[name]().export())


def chain(nodes: int, share: int) -> EdgeProgramManager:
    edge = to_edge(Case(Chain(share), (torch.ones(1, 64, 4),)).export())
    return repeated(edge, max(nodes // SEGMENT, 1))


@dataclass(frozen=True)
class Cost:
    """What lowering one program costs.

    Attributes:
        nodes, aliases: of the graph that is emitted.
        seconds: of stock's `to_executorch()`.
        ratio: of aliased over stock.
        verifier: its share of the aliased `to_executorch()`.
    """

    nodes: int
    aliases: int
    seconds: float
    ratio: float
    verifier: float


def measure(edge: EdgeProgramManager, pairs: int) -> Cost:
    """Lowers copies of `edge`, which `to_executorch()` changes. Copying is untimed."""
    before: list[float] = []
    after: list[float] = []
    verifying: list[float] = []
    for pair in range(pairs):
        for stock in (True, False) if pair % 2 else (False, True):
            fresh = copy.deepcopy(edge)
            gc.collect()
            with disabled() if stock else nullcontext():
                start = time.process_time()
                manager = fresh.to_executorch()
                (before if stock else after).append(time.process_time() - start)
            if not stock:
                program = manager.exported_program()
                start = time.process_time()
                verify_plan(program)
                verifying.append(time.process_time() - start)
                nodes = list(program.graph.nodes)
    return Cost(
        len(nodes),
        sum(map(is_alias, nodes)),
        statistics.median(before),
        statistics.median(a / b for a, b in zip(after, before)),
        statistics.median(verifying) / statistics.median(after),
    )


def print_row(*cells: str) -> None:
    print("|", " | ".join(cells), "|", flush=True)


def print_heading(first: str, *others: str) -> None:
    print_row(first, *others)
    print_row("---", *("---:" for _ in others))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", nargs="*", choices=BUILDERS, default=list(BUILDERS), metavar="NAME"
    )
    parser.add_argument("--nodes", nargs="*", type=int, default=NODES)
    parser.add_argument("--shares", nargs="*", type=int, default=SHARES)
    parser.add_argument("--pairs", type=int, default=3)
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    headings = ("nodes", "aliases", "stock", "aliased/stock", "verifier", "us/node")
    print_heading("program", *headings)
    cases: dict[str, Callable[[], EdgeProgramManager]] = {
        f"chain, {share} % aliases, {nodes}": partial(chain, nodes, share)
        for share in args.shares
        for nodes in args.nodes
    }
    for name in args.models:
        cases[name] = partial(export_model, name)
    for name, build in cases.items():
        cost = measure(build(), args.pairs)
        print_row(
            name,
            f"{cost.nodes:,}",
            f"{cost.aliases:,}",
            f"{cost.seconds:.2f} s",
            f"{cost.ratio:.3f}",
            f"{cost.verifier:.1%}",
            f"{cost.seconds * (cost.ratio - 1) / cost.nodes * 1e6:.0f}",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
