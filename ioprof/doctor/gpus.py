"""Whether GPUs and DALI can be measured."""

import json
import subprocess
from typing import Any, Final

from ioprof.doctor.finding import Finding, Surroundings, content, limited, missing, ok

_TIMEOUT_S: Final = (
    120  # importing torch from a shared file system that many nodes read at once takes long
)
_TORCH: Final = """
import json, torch
from torch.profiler import ProfilerActivity, supported_activities
found = {"torch": torch.__version__, "built": torch.version.cuda, "available": torch.cuda.is_available()}
found["kernels"] = ProfilerActivity.CUDA in supported_activities()
print(json.dumps(found))
"""  # noqa: E501


def driver(_surroundings: Surroundings) -> Finding:
    """Whether the driver's counters can be sampled."""
    import pynvml  # loads the driver's library, so only when needed

    name = "GPU counters"
    means = "utilisation, memory, PCIe traffic, power and clocks of GPUs are not sampled"
    to_type = (
        "nothing where there is no GPU; in a container: docker run --gpus all, apptainer exec --nv;"
        " else install the NVIDIA driver"
    )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return missing(name, f"NVML: {error}", means, to_type)
    try:
        count, version = pynvml.nvmlDeviceGetCount(), pynvml.nvmlSystemGetDriverVersion()
        names = [
            str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(number)))
            for number in range(count)
        ]
    except pynvml.NVMLError as error:
        return limited(name, f"NVML: {error}", means, "nvidia-smi")
    finally:
        pynvml.nvmlShutdown()
    if not names:
        return missing(name, f"driver {version} shows no GPU", means, to_type)
    return ok(
        name,
        f"{count} × {names[0]}, driver {version}",
        "utilisation, memory, PCIe traffic, power and clocks are sampled",
    )


def kernels(surroundings: Surroundings) -> Finding:
    """Whether torch can record kernels and copies on the device."""
    name, means = (
        "GPU kernels",
        (
            "kernels and copies on the device are not recorded: compute time is the time that the"
            " host waits"
        ),
    )
    found = _run_python(surroundings, _TORCH)
    if isinstance(found, str):
        return missing(
            name,
            f"torch cannot be imported: {found}",
            means,
            f"{surroundings.python} -m pip install torch",
        )
    built = found["built"]
    seen = f"torch {found['torch']}, " + (
        f"built for CUDA {built}" if built else "built without CUDA"
    )
    if not built:
        return missing(
            name,
            seen,
            means,
            "install a torch built for CUDA: see https://pytorch.org/get-started/locally",
        )
    if not found["available"]:
        return missing(
            name,
            f"{seen}, finds no usable GPU",
            means,
            "nvidia-smi, and in a container: docker run --gpus all, apptainer exec --nv",
        )
    if not found["kernels"]:
        return missing(
            name,
            f"{seen}, has no CUPTI",
            means,
            "install torch's own binary packages: they contain CUPTI",
        )
    return ok(name, f"{seen}, with CUPTI", "kernels and copies on the device are recorded")


def restriction(surroundings: Surroundings) -> Finding:
    """Whether the driver restricts its profiling interface to administrators."""
    name = "GPU profiling"
    parameters = content(surroundings.proc / "driver/nvidia/params")
    if parameters is None:
        return ok(name, "no NVIDIA driver sets a limit", "does not apply")
    if "RmProfilingAdminOnly: 1" in parameters:
        means = (
            "kernels and copies may be refused to users (ERR_NVGPUCTRPERM,"
            " CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)"
        )
        setting = "options nvidia NVreg_RestrictProfilingToAdminUsers=0"
        return limited(
            name,
            "the driver restricts profiling to administrators",
            means,
            f"echo '{setting}' > /etc/modprobe.d/ioprof.conf (root; restart)",
        )
    return ok(name, "the driver lets every user profile", "kernels and copies can be recorded")


def dali(surroundings: Surroundings) -> Finding:
    """Whether DALI is installed, as a loader and to be recorded."""
    name = "DALI"
    found = _run_python(
        surroundings,
        "import json, nvidia.dali as dali; print(json.dumps({'version': dali.__version__}))",
    )
    if isinstance(found, str):
        means = "DALI cannot be compared as a loader; jobs that do not use it are not affected"
        return missing(name, found, means, f"{surroundings.python} -m pip install 'ioprof[dali]'")
    return ok(
        name,
        f"DALI {found['version']}",
        "DALI can be compared as a loader, and its iterators are recorded",
    )


def _run_python(surroundings: Surroundings, program: str) -> dict[str, Any] | str:
    """The JSON output of a Python program, or the last line of its error. A separate process, since
    libraries stay loaded.
    """
    ended = subprocess.run(
        [surroundings.python, "-c", program],
        env=dict(surroundings.environment),
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        check=False,
    )
    if ended.returncode:
        lines = ended.stderr.strip().splitlines()
        return lines[-1] if lines else f"the interpreter ended with {ended.returncode}"
    found: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return found
