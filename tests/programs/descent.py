"""An optimizer for jobs of seconds."""

from typing import Any

import torch
from torch.optim import SGD


class Descent(SGD):
    """SGD without the marks for torch's compiler: the first call of a marked method imports the
    compiler, which takes 1.4 s of CPU time, as long as torch itself and longer than all steps of
    such a job."""

    step = torch.no_grad()(getattr(SGD.step, "__wrapped__", SGD.step))
    zero_grad = getattr(SGD.zero_grad, "__wrapped__", SGD.zero_grad)
    add_param_group: Any = getattr(SGD.add_param_group, "__wrapped__", SGD.add_param_group)
