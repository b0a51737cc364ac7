"""The one part of the build that pyproject.toml cannot say: the C extension, and that ioprof installs without a compiler too."""

from pathlib import Path

from setuptools import Extension, setup

for name in ("converters", "loaders"):
    if not Path(__file__).with_name("ioprof").joinpath(name, "__init__.py").is_file():
        # Unpackers of .zip files, pip's included, write links as text; the wheel would silently lack two packages.
        raise SystemExit(f"ioprof/{name} is not the folder it links to; install ioprof from git or from a .tar.gz, not from a .zip")

setup(
    ext_modules=[
        Extension(
            "ioprof._native",
            sources=["ioprof/native/spans.c"],
            depends=["ioprof/native/ring.h"],
            # gnu11 for atomics and anonymous initialisers; initial-exec because a dynamic thread-local costs a call per span,
            # and may allocate in the thread's first.
            extra_compile_args=[
                "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden", "-ftls-model=initial-exec",
            ],
            optional=True,
        )
    ]
)  # fmt: skip
