"""An `nn.Module` and its loss to an OP-DAG, by `torch.export`; the only part of `opdag` that needs torch.

`lints`, `watch`, `module_state`, `python_state`, `regions` and `batch` each keep something from going wrong
in silence; `verdicts` says what they found.
"""

from farflung.opdag.capture.capture import Capture, capture
from farflung.opdag.capture.draft import Origin
from farflung.opdag.capture.lint_results import LINTS, Verdict
from farflung.opdag.capture.loss import LossModule

__all__ = ["LINTS", "Capture", "LossModule", "Origin", "Verdict", "capture"]
