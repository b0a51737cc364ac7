"""Converts SOURCE to DESTINATION by a Dask cluster of three workers of its own. Arguments: SOURCE
DESTINATION OPTIONS-AS-JSON."""

import json
import sys
from pathlib import Path

from distributed import LocalCluster

from ioprof.converters import ConvertOptions, engine_for, plan_conversion

if __name__ == "__main__":
    source, destination, options = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    with LocalCluster(n_workers=3, threads_per_worker=2, dashboard_address=None) as cluster:
        engine = engine_for("dask", None, cluster.scheduler_address)
        plan_conversion(source, destination, ConvertOptions(**options), engine=engine).run()
