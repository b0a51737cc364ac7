"""Operations that the NCCL profiler plugin recorded, from its files to spans."""
