"""The one part of the build that pyproject.toml cannot say: the C libraries, and that ioprof installs without a compiler too."""

import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

for name in ("converters", "loaders"):
    if not Path(__file__).with_name("ioprof").joinpath(name, "__init__.py").is_file():
        # Unpackers of .zip files, pip's included, write links as text; the wheel would silently lack two packages.
        raise SystemExit(f"ioprof/{name} is not the folder it links to; install ioprof from git or from a .tar.gz, not from a .zip")

# gnu11 for atomics and anonymous initialisers; initial-exec because a dynamic thread-local costs a call per span, and may allocate
# in the thread's first.
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-ftls-model=initial-exec"]

# Where Python was built with link-time optimisation, its flags would hide what the assembly in vfork.h refers to.
CAPTURE_FLAGS = [*FLAGS, "-fno-lto", *(["-fcf-protection=none"] if platform.machine() in ("x86_64", "AMD64") else [])]

CAPTURE = "ioprof._capture"
"""No module, but a library for LD_PRELOAD, of any Python and of programs without."""


class BuildLibraries(build_ext):
    """Gives the capture library a name without Python's version."""

    def get_ext_filename(self, fullname: str) -> str:
        """The file of an extension, relative to the build folder."""
        if fullname.rpartition(".")[2] == CAPTURE.rpartition(".")[2]:
            return str(Path(*fullname.split(".")).with_suffix(".so"))
        return super().get_ext_filename(fullname)


# Without fused multiply-add the weights of the filter are the same on every processor.
RESIZE_FLAGS = ["-std=gnu11", "-O3", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"]

headers = sorted(str(path) for path in Path("ioprof/native").glob("*.h"))

setup(
    cmdclass={"build_ext": BuildLibraries},
    ext_modules=[
        Extension("ioprof._native", ["ioprof/native/spans.c"], depends=headers, extra_compile_args=FLAGS, optional=True),
        Extension("ioprof._resize", ["converters/resize.c"], extra_compile_args=RESIZE_FLAGS, libraries=["m"], optional=True),
        Extension(
            "ioprof._probe",
            ["ioprof/native/probe.c"],
            extra_compile_args=[*FLAGS, "-pthread"],
            extra_link_args=["-pthread"],
            optional=True,
        ),
        Extension(
            CAPTURE, ["ioprof/native/capture.c"], depends=headers, extra_compile_args=CAPTURE_FLAGS, libraries=["dl"], optional=True
        ),
    ],
)
