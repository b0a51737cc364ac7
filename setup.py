"""The one part of the build that pyproject.toml cannot say: the C libraries, and the command in
C.
"""

import os
import platform
import shlex
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

# Of setuptools, which has no other name for it; to be imported after it.
from distutils.command.build_scripts import build_scripts  # isort: skip

for name in ("converters", "loaders"):
    if not Path(__file__).with_name("ioprof").joinpath(name, "__init__.py").is_file():
        # Unpackers of .zip files, pip's included, write links as text; the wheel would silently
        # lack two packages.
        raise SystemExit(
            f"ioprof/{name} is not the folder it links to; install ioprof from git or from a"
            " .tar.gz, not from a .zip"
        )

NATIVE = Path("ioprof/native")
COMMAND = NATIVE / "launcher" / "launcher.c"
"""The command `ioprof`."""

# gnu11 for atomics and anonymous initialisers; initial-exec because a dynamic thread-local costs a
# call per span, and may allocate in the thread's first.
FLAGS = [
    "-std=gnu11",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fvisibility=hidden",
    "-ftls-model=initial-exec",
]

# Where Python was built with link-time optimisation, its flags would hide what the assembly in
# vfork.c refers to.
CAPTURE_FLAGS = [
    *FLAGS,
    "-fno-lto",
    *(["-fcf-protection=none"] if platform.machine() in ("x86_64", "AMD64") else []),
]

# Functions that glibc has in two versions, see versions.map.
HAS_VERSIONS = platform.machine() in ("x86_64", "AMD64")
VERSIONS = NATIVE / "capture" / "versions.map"

# Without fused multiply-add the weights of the filter are the same on every processor.
RESIZE_FLAGS = [
    "-std=gnu11",
    "-O3",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fvisibility=hidden",
]

STABLE_ABI = {"py_limited_api": True, "define_macros": [("Py_LIMITED_API", "0x030B0000")]}
"""One library for Python 3.11 and all later versions (PEP 384), so that one installation records
jobs of all of them."""

CAPTURE = "ioprof._capture"
"""No module, but a library for LD_PRELOAD, of any Python and of programs without."""

STACKS = "ioprof._stacks"
"""No module either: called by ctypes, since it needs nothing of Python's."""

NCCL_PROFILER = "ioprof._nccl_profiler"
"""No module either: a plugin that NCCL loads. It stays loaded when NCCL unloads it: a later
communicator goes on with its file."""

LIBRARIES = (CAPTURE, STACKS, NCCL_PROFILER)
"""These may be missing: what each of them records is then said to be missing."""

WITHOUT_COMPILER = (
    "install a wheel of ioprof (`make wheel` on a machine with a C compiler), or install a compiler"
    " and Python's headers (apt-get install gcc python3-dev) and then ioprof"
)


class BuildLibraries(build_ext):
    """Gives the capture library a name without Python's version, and each extension a folder of its
    own for its objects.
    """

    def build_extension(self, ext: Extension) -> None:
        """Build one extension: two of them compile the same sources with different flags."""
        shared = self.build_temp
        self.build_temp = str(Path(shared, ext.name))
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError) as error:
            if ext.optional:
                raise
            raise SystemExit(
                f"ioprof: {ext.name} cannot be built ({error}); {WITHOUT_COMPILER}"
            ) from None
        finally:
            self.build_temp = shared

    def get_ext_filename(self, fullname: str) -> str:
        """The file of an extension, relative to the build folder."""
        if fullname.rpartition(".")[2] in {name.rpartition(".")[2] for name in LIBRARIES}:
            return str(Path(*fullname.split(".")).with_suffix(".so"))
        return super().get_ext_filename(fullname)


class BuildCommand(build_scripts):
    """Builds the command `ioprof` from C."""

    def get_source_files(self) -> list[str]:
        """What a source distribution has to have."""
        return [str(COMMAND)]

    def run(self) -> None:
        """Build it."""
        self.mkpath(self.build_dir)
        compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror"]
        try:
            subprocess.run(
                [*compiler, *flags, str(COMMAND), "-o", str(Path(self.build_dir, "ioprof"))],
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(
                f"ioprof: the command cannot be built ({error}); {WITHOUT_COMPILER}"
            ) from None


def files(pattern: str, *folders: str) -> list[str]:
    """Files in folders of the C sources, in a fixed order."""
    return sorted(str(path) for folder in folders for path in (NATIVE / folder).glob(pattern))


def of_one_file(name: str, *headers: str) -> Extension:
    """A module of one C source, and the headers that it includes."""
    return Extension(
        f"ioprof._{name}",
        [str(NATIVE / f"{name}.c")],
        depends=[str(NATIVE / header) for header in headers],
        extra_compile_args=RESIZE_FLAGS,
        **STABLE_ABI,
    )


setup(
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    cmdclass={"build_ext": BuildLibraries, "build_scripts": BuildCommand},
    scripts=[str(COMMAND)],
    ext_modules=[
        Extension(
            "ioprof._native",
            files("*.c", "ring", "spans"),
            depends=files("*.h", "ring", "spans"),
            include_dirs=[str(NATIVE / "ring")],
            extra_compile_args=FLAGS,
            **STABLE_ABI,
        ),
        Extension(
            "ioprof._resize",
            ["converters/images/resize.c"],
            extra_compile_args=RESIZE_FLAGS,
            libraries=["m"],
            **STABLE_ABI,
        ),
        Extension(
            "ioprof._bilinear",
            ["converters/images/bilinear.c"],
            extra_compile_args=RESIZE_FLAGS,
            libraries=["m"],
            **STABLE_ABI,
        ),
        Extension(
            "ioprof._jpeg",
            ["converters/images/huffman.c", "converters/images/jpeg.c"],
            depends=["converters/images/huffman.h", "converters/images/jpeg_abi.h"],
            extra_compile_args=[
                "-std=gnu11",
                "-O2",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fvisibility=hidden",
            ],
            libraries=["dl"],
            **STABLE_ABI,
        ),
        Extension(
            "ioprof._probe",
            [str(NATIVE / "probe.c")],
            extra_compile_args=[*FLAGS, "-pthread"],
            extra_link_args=["-pthread"],
            **STABLE_ABI,
        ),
        of_one_file("checksum"),
        of_one_file("chunks", "ring/wire_format.h", "ring/gnu_source.h"),
        of_one_file("intervals"),
        of_one_file("read_sums", "sorted_table.h"),
        of_one_file("bins", "sorted_table.h"),
        Extension(
            "ioprof._scan",
            files("*.c", "scan"),
            depends=files("*.h", "scan"),
            extra_compile_args=[*RESIZE_FLAGS, "-fno-math-errno"],
            **STABLE_ABI,
        ),
        Extension(
            CAPTURE,
            files("*.c", "ring", "capture"),
            depends=[*files("*.h", "ring", "capture"), str(VERSIONS)],
            include_dirs=[str(NATIVE / "ring")],
            define_macros=[("IOPROF_SYMBOL_VERSIONS", "1")] if HAS_VERSIONS else [],
            extra_compile_args=CAPTURE_FLAGS,
            extra_link_args=[
                "-pthread",
                *([f"-Wl,--version-script={VERSIONS}"] if HAS_VERSIONS else []),
            ],
            libraries=["dl"],
            optional=True,
        ),
        Extension(
            NCCL_PROFILER,
            [*files("*.c", "nccl"), str(NATIVE / "ring" / "ring_file.c")],
            depends=files("*.h", "ring", "nccl"),
            include_dirs=[str(NATIVE / "ring")],
            extra_compile_args=[*FLAGS, "-pthread"],
            extra_link_args=["-pthread", "-Wl,-z,nodelete"],
            optional=True,
        ),
        Extension(
            STACKS,
            files("*.c", "stacks"),
            depends=files("*.h", "stacks"),
            extra_compile_args=FLAGS,
            optional=True,
        ),
    ],
)
