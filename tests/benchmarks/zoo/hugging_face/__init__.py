# Copyright (c) executorch-slice contributors.
# All rights reserved.
#
# This source code is licensed under the BSD-style license found in the
# LICENSE file in the root directory of this source tree.

"""Models of Hugging Face transformers, small and with random weights.

`MODELS[name]()` builds a case, in eval mode, the same one each time.
"""

import transformers

from ..case import by_name
from . import audio, text, vision

__all__ = ["MODELS"]

transformers.logging.set_verbosity_error()

MODELS = by_name(*text.MODELS, *vision.MODELS, *audio.MODELS)
