"""This CPU through PyTorch. torch is imported when a question comes, not before."""

from __future__ import annotations

from numsim.machines.question import Question
from numsim.machines.torch_library import TorchLibrary


class TorchCpu(TorchLibrary):
    """PyTorch on this CPU."""

    name = "torch-cpu"
    title = "this CPU through PyTorch"
    torch_device = "cpu"

    def _why_not(self, q: Question) -> str:
        if q.operation == "sqrt" and q.output.name in ("fp32", "fp64") and self.torch.backends.mkl.is_available():
            return f"torch's sqrt in {q.output} comes from Intel MKL and is up to 1 ulp off: no rounding predicts it"
        return super()._why_not(q)
