# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Measures strided slices inside XNNPACK delegates against portable kernels.

Run as a script, by itself on the machine. Prints Markdown. Latency is delegated over
portable (`XnnpackPartitioner(strided_slices=False)`), one thread, the median of pairs
taken in turns; a second ratio, of portable over portable, shows the noise.
"""

import sys
import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
from bench import change, latency_ratio, use_one_thread
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchProgramManager, to_edge_transform_and_lower
from executorch_slice.cost import program_cost
from lowering_cost import print_heading, print_row
from torch import nn, Tensor
from zoo import Case


class Between(nn.Module):
    """`slicing` between what comes `before` and `after` it in the same delegate."""

    def __init__(
        self,
        slicing: Callable[[Tensor], Tensor],
        before: nn.Module | None = None,
        after: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.slicing = slicing
        self.before = before or nn.Identity()
        self.after = after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.after(self.slicing(self.before(x)))
        return y


def rotary(x: Tensor) -> Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.cat([even * 0.8 - odd * 0.6, even * 0.6 + odd * 0.8], -1)


def patches(x: Tensor) -> Tensor:
    """The four neighbours of 2 x 2 patches, channels last, as Swin merges them."""
    return torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], -1)


def focus(x: Tensor) -> Tensor:
    """The same for channels that come first, as YOLO's Focus does."""
    return torch.cat([x[..., i::2, j::2] for j in (0, 1) for i in (0, 1)], 1)


def gated(y: Tensor) -> Tensor:
    return y[:, ::2] * torch.sigmoid(y[:, 1::2])


def halved_image(channels: int, size: int) -> Case:
    conv = nn.Conv2d(channels, channels, 3, padding=1)
    after = nn.Sequential(nn.ReLU(), nn.Conv2d(channels, channels, 1))
    return Case(
        Between(lambda x: x[..., ::2, ::2], conv, after),
        (torch.randn(1, channels, size, size),),
    )


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU())


CASES: dict[str, Callable[[], Case]] = {
    "conv, [::2, ::2], relu, conv at 56": lambda: halved_image(16, 56),
    "the same at 57 (padded)": lambda: halved_image(16, 57),
    "interleaved rotary after linear": lambda: Case(
        Between(rotary, nn.Linear(128, 128)), (torch.randn(64, 128),)
    ),
    "add, patch merging": lambda: Case(
        Between(lambda x: patches(x + x)), (torch.randn(1, 56, 56, 96),)
    ),
    "Focus on an input of 320": lambda: Case(
        Between(focus, after=nn.Conv2d(12, 32, 3, padding=1)),
        (torch.randn(1, 3, 320, 320),),
    ),
    "gates by channel after conv": lambda: Case(
        Between(gated, nn.Conv2d(16, 32, 1)), (torch.randn(1, 16, 28, 28),)
    ),
    "patch merging after an MLP at 28": lambda: Case(
        Between(patches, mlp(192), nn.Linear(768, 384)), (torch.randn(1, 28, 28, 192),)
    ),
    "patch merging of an input of 56": lambda: Case(
        Between(patches, after=nn.Linear(384, 192)), (torch.randn(1, 56, 56, 96),)
    ),
    "a slice alone": lambda: Case(
        Between(lambda x: x[:, ::2]), (torch.randn(1, 56, 56, 96),)
    ),
    "step 3 of 256 (padded), between relus": lambda: Case(
        Between(lambda x: x[:, ::3], nn.ReLU(), nn.ReLU()), (torch.randn(8, 256, 256),)
    ),
    "step 64 of an input": lambda: Case(
        Between(lambda x: x[:, ::64] + 1), (torch.randn(8, 256, 256),)
    ),
}
if find_spec("transformers") is not None:
    from zoo.hugging_face.vision import swin_t

    CASES["Swin-T"] = swin_t


def lower(case: Case, strided_slices: bool) -> ExecutorchProgramManager:
    partitioner = XnnpackPartitioner(strided_slices=strided_slices)
    edge = to_edge_transform_and_lower(case.export(), partitioner=[partitioner])
    return edge.to_executorch()


def main() -> int:
    warnings.simplefilter("ignore")
    use_one_thread()
    print_heading("program", "slices", "instructions", "latency", "noise")
    for name, build in CASES.items():
        torch.manual_seed(0)
        case = build()
        portable, delegated = lower(case, False), lower(case, True)
        before, after = program_cost(portable), program_cost(delegated)
        print_row(
            name,
            change(before.slice_instructions, after.slice_instructions),
            change(before.instructions, after.instructions),
            f"{latency_ratio(portable, delegated, case):.2f}",
            f"{latency_ratio(portable, portable, case):.2f}",
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
