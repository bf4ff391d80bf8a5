# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Measures what the plan verifier adds to `to_executorch()`, in CPU time.

Run as a script. Synthetic graphs first: a chain of kernels in which a given share of
the nodes are aliases, so that the growth with the number of nodes shows; then models.
"""

import argparse
import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from executorch.exir import EdgeProgramManager, to_edge
from executorch_slice.demo_models import MODELS
from executorch_slice.exir.memory import is_alias
from executorch_slice.exir.verification.plan_verifier import verify_plan
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import nn, Tensor
from torch.export.graph_signature import TensorArgument

from zoo import Case, ZOO

SHARES = (10, 30, 50)  # percent of the nodes
NODES = (1_000, 4_000, 16_000)
SEGMENT = 250


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


def export_model(build: Callable[[], Case]) -> EdgeProgramManager:
    return export(build())


def chain(nodes: int, share: int) -> EdgeProgramManager:
    edge = export(Case(Chain(share), (torch.ones(1, 64, 4),)))
    return repeated(edge, max(nodes // SEGMENT, 1))


def measure(edge: EdgeProgramManager, runs: int) -> tuple[int, int, float, float]:
    """Nodes, aliases, median seconds of to_executorch() and of the verifier in it."""
    whole, alone = [], []
    for _ in range(runs):
        fresh = copy.deepcopy(edge)
        start = time.process_time()
        manager = fresh.to_executorch()
        whole.append(time.process_time() - start)
        programs = [manager.exported_program(name) for name in manager.methods]
        start = time.process_time()
        for program in programs:
            verify_plan(program)
        alone.append(time.process_time() - start)
    nodes = [node for program in programs for node in program.graph.nodes]
    aliases = sum(map(is_alias, nodes))
    return len(nodes), aliases, statistics.median(whole), statistics.median(alone)


def export(case: Case) -> EdgeProgramManager:
    return to_edge(
        torch.export.export(
            case.module.eval(), case.inputs, dynamic_shapes=case.dynamic_shapes
        )
    )


def main() -> int:
    demos = {name: lambda build=build: Case(*build()) for name, build in MODELS.items()}
    builders: dict[str, Callable[[], Case]] = {**demos, **ZOO}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--models", nargs="*", choices=builders, default=list(MODELS), metavar="NAME"
    )
    parser.add_argument("--nodes", nargs="*", type=int, default=NODES)
    parser.add_argument("--shares", nargs="*", type=int, default=SHARES)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()

    warnings.simplefilter("ignore")
    console = Console(width=120)
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("program")
    for heading in ("nodes", "aliases", "to_executorch", "verify", "share", "us/node"):
        table.add_column(heading, justify="right")
    cases: dict[str, Callable[[], EdgeProgramManager]] = {
        f"chain, {share} % aliases, {nodes}": partial(chain, nodes, share)
        for share in args.shares
        for nodes in args.nodes
    }
    for name in args.models:
        cases[name] = partial(export_model, builders[name])
    for name, build in cases.items():
        with console.status(name):
            nodes, aliases, whole, alone = measure(build(), args.runs)
        table.add_row(
            name,
            f"{nodes:,}",
            f"{aliases:,}",
            f"{whole:.2f} s",
            f"{alone * 1e3:.1f} ms",
            f"{alone / whole:.2%}",
            f"{alone / nodes * 1e6:.0f}",
        )
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
