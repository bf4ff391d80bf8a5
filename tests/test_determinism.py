# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""The same program is lowered to the same bytes, wherever and whenever."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, Callable, Dict, List, Tuple

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge
from executorch_slice.demo_models import MODELS
from torch import nn, Tensor


class Streaming(nn.Module):
    """Slices, states that are written in several ways, and branches."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("history", "level", "counts"):
            self.register_buffer(name, torch.zeros(6, 8))

    def forward(self, x: Tensor, rows: Tensor, loud: Tensor) -> List[Tensor]:
        old = torch.view_copy(self.history, [8, 6])
        window = torch.cat([self.history[2:], x])
        first, second = (window * 2.0).chunk(2)
        mixed = torch.cond(
            loud,
            lambda v, w: (v[1:] * 2.0, w + 1.0),
            lambda v, w: (v[:2] + w[1:], v * w),
            (first.neg(), second.neg()),
        )
        self.history.index_put_((rows,), window[:2])
        self.level.copy_(self.level + window)
        self.counts.add_(self.level)
        return [old + 1.0, mixed[0][:1] + mixed[1], self.counts[-1] + self.level[0]]


def streaming() -> Tuple[nn.Module, Tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return Streaming(), (torch.randn(2, 8), torch.tensor([0, 3]), torch.tensor(True))


PROGRAMS: Dict[str, Callable[[], Any]] = {**MODELS, "streaming": streaming}


def digest(name: str) -> str:
    """SHA-256 of the `.pte`."""
    module, inputs = PROGRAMS[name]()
    config = ExecutorchBackendConfig(run_reinplace_pass=True)
    manager = to_edge(torch.export.export(module, inputs)).to_executorch(config)
    return hashlib.sha256(manager.buffer).hexdigest()


def digests_elsewhere(names: Iterable[str], hash_seed: str) -> Dict[str, str]:
    """Name and digest of each program, lowered in a process of its own."""
    completed = subprocess.run(
        [sys.executable, __file__, *names],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return dict(line.split() for line in completed.stdout.splitlines())


digest_here = cache(digest)


@pytest.mark.parametrize("name", PROGRAMS)
def test_again_in_the_same_process(name: str) -> None:
    assert digest(name) == digest_here(name)


@pytest.mark.parametrize(
    "hash_seed,names", [("random", ["streaming"]), ("1", PROGRAMS)]
)
def test_in_a_fresh_process(hash_seed: str, names: Iterable[str]) -> None:
    here = {name: digest_here(name) for name in names}
    assert digests_elsewhere(names, hash_seed) == here


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(argument, digest(argument))
