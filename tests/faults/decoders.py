"""Decoders: jobs whose worker spends its time in a library that is no image decoder."""

from faults.case import Case

CASES = tuple(
    Case(
        name=f"{library} decodes most of the time",
        program="decode_bound.py",
        arguments=(kind, 14),
        bound_by="decode",
        says=("ecode",),
        names=(advice,),
        needs=(library,),
        # which it would otherwise warn of in a forked worker
        environment=(("TOKENIZERS_PARALLELISM", "false"),),
        like="" if library in ("pyarrow", "zlib") else "pyarrow decodes most of the time",
    )
    for kind, library, advice in (
        ("parquet", "pyarrow", "Store the data in a form that needs less parsing"),
        ("video", "av", "Decode less for each sample"),
        ("tokens", "tokenizers", "Tokenize the text once"),
        ("zlib", "zlib", "Store the data uncompressed"),
    )
)
