# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""How a command ends."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of all commands; docs/cli.md explains them."""

    DONE = 0
    FAILED_CHECK = 1
    USAGE = 2
    FILE = 3
    LOWERING = 4


class CommandError(Exception):
    """A command cannot go on, for a cause that fits into one line."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
