# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Models of Hugging Face transformers, small and with random weights.

`MODELS[name]()` builds a case, in eval mode, the same one each time.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from ..case import by_name
from . import audio, text, vision

__all__ = ["MODELS"]

MODELS = by_name(*text.MODELS, *vision.MODELS, *audio.MODELS)
