# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Eager, stock and this package must agree on whole programs.

`FUZZ_EXAMPLES` sets how many; `FUZZ_REPORT` names a file that the counts are added to.
"""

import copy
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Iterator, List

import pytest
import torch
from alias_testing import has_right_plan
from executorch.exir import to_edge
from executorch.exir.passes.memory_planning_pass import MemoryPlanningPass
from executorch_slice import AliasConfig, decisions, disabled, ExecutorchBackendConfig
from executorch_slice.compare import LoadedProgram
from executorch_slice.cost import program_cost
from fuzz_programs import example_inputs, Program, Recipe, recipes
from hypothesis import given, HealthCheck, settings
from torch import Tensor

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
ROUNDS = 3
COUNTS: Counter = Counter()


@pytest.fixture(scope="module", autouse=True)
def report() -> Iterator[None]:
    yield
    print("\nfuzz:", dict(COUNTS))
    path = os.environ.get("FUZZ_REPORT")
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(COUNTS) + "\n")


def config(recipe: Recipe) -> ExecutorchBackendConfig:
    inputs, outputs = recipe.planned_io
    return ExecutorchBackendConfig(
        alias=AliasConfig(memory_growth=recipe.memory_growth),
        run_reinplace_pass=recipe.reinplace,
        memory_planning_pass=MemoryPlanningPass(
            alloc_graph_input=inputs, alloc_graph_output=outputs
        ),
    )


def run(program: LoadedProgram, recipe: Recipe) -> List[List[Tensor]]:
    outputs = []
    for round_ in range(ROUNDS):
        results = program(*example_inputs(recipe, round_))
        outputs.append([result.clone() for result in results])
    return outputs


def agree(got: List[List[Tensor]], want: List[List[Tensor]]) -> bool:
    pairs = [pair for g, w in zip(got, want) for pair in zip(g, w)]
    return all(
        g.dtype == w.dtype and torch.allclose(g, w, equal_nan=True) for g, w in pairs
    )


def error_of(action: Any) -> Any:
    """What `action` gives, or the type of what it raises."""
    try:
        return action()
    except Exception as error:
        return type(error)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    database=None,
)
@given(recipes())
def test_programs(recipe: Recipe) -> None:
    module = Program(recipe)
    exported = torch.export.export(
        copy.deepcopy(module), example_inputs(recipe), strict=False
    )
    edge = error_of(lambda: to_edge(exported))
    if isinstance(edge, type):
        COUNTS["refused by to_edge"] += 1
        return
    with disabled():
        stock = error_of(lambda: copy.deepcopy(edge).to_executorch(config(recipe)))
    ours = copy.deepcopy(edge)
    if isinstance(stock, type):
        COUNTS["refused by stock"] += 1
        if error_of(lambda: ours.to_executorch(config(recipe))) is not stock:
            COUNTS["accepted where stock refuses"] += 1
        return
    manager = ours.to_executorch(config(recipe))
    eager = copy.deepcopy(module)
    want = [list(eager(*example_inputs(recipe, round_))) for round_ in range(ROUNDS)]
    stock_outputs = error_of(lambda: run(LoadedProgram(stock), recipe))
    if isinstance(stock_outputs, type):
        COUNTS["stock fails at run time"] += 1
        outputs = error_of(lambda: run(LoadedProgram(manager), recipe))
        assert isinstance(outputs, type) or agree(outputs, want)
        return
    stock_is_right = agree(stock_outputs, want)
    right_plan = has_right_plan(stock)
    outputs = run(LoadedProgram(manager), recipe)
    if stock_is_right or not right_plan:
        assert agree(outputs, want), "this package is wrong"
    else:
        same = agree(outputs, stock_outputs)
        assert same or agree(outputs, want), "this package is wrong otherwise"
    verdicts = [decision.verdict for decision in decisions(manager)]
    before, after = program_cost(stock), program_cost(manager)
    grown = after.arena_bytes > before.arena_bytes
    never = recipe.memory_growth == "never"
    is_right = right_plan and stock_is_right
    COUNTS["programs"] += 1
    COUNTS["stock's plan is wrong"] += not right_plan
    COUNTS["stock's outputs are wrong"] += not stock_is_right
    COUNTS["a kernel is wrong"] += right_plan and not stock_is_right
    COUNTS["copies"] += len(verdicts)
    COUNTS["aliases"] += verdicts.count("alias")
    COUNTS["arena smaller"] += after.arena_bytes < before.arena_bytes
    COUNTS["arena larger"] += grown and never and is_right
    COUNTS["arena larger than a wrong program's"] += grown and never and not is_right
    COUNTS["arena larger, as allowed"] += grown and not never
    if is_right:
        assert after.instructions <= before.instructions
        assert not (grown and never)
