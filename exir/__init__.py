# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

# Before any module of this tree: the seams are joined at the end of this import, and
# need modules of the tree that are not half executed by then.
import executorch.exir  # noqa: F401
